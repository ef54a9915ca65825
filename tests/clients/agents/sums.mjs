// An MCP server over stdio with the tool `calculator`, which the demo model knows.
import { createInterface } from "node:readline";

const calculator = {
  name: "calculator",
  description: "Evaluates an arithmetic expression",
  inputSchema: { type: "object", properties: { expression: { type: "string" } }, required: ["expression"] },
};

function answer(method, params) {
  switch (method) {
    case "initialize":
      return {
        protocolVersion: params.protocolVersion,
        capabilities: { tools: {} },
        serverInfo: { name: "sums", version: "1" },
      };
    case "tools/list":
      return { tools: [calculator] };
    case "tools/call":
      return { content: [{ type: "text", text: "4711" }] };
    default:
      return {};
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  if (id !== undefined) {
    console.log(JSON.stringify({ jsonrpc: "2.0", id, result: answer(method, params) }));
  }
}
