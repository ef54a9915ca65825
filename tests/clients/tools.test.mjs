// Tools and schemas with the Node client.

import assert from "node:assert/strict";
import { test } from "node:test";
import { chat, client, MODEL, streamed, RELIABLE_SUMS, user } from "./corral.mjs";

const CALCULATOR = {
  type: "function",
  function: {
    name: "calculator",
    description: "Evaluates an arithmetic expression",
    parameters: {
      type: "object",
      properties: { expression: { type: "string" } },
      required: ["expression"],
      additionalProperties: false,
    },
  },
};
const NAMED = { type: "function", function: { name: "calculator" } };

function add(expression) {
  const [a, b] = expression.split("+").map(Number);
  return a + b;
}

/** The calls of a stream, put together from its deltas. */
async function calls(chunks) {
  const found = [];
  for await (const chunk of await chunks) {
    for (const { index, id, function: called } of chunk.choices[0]?.delta.tool_calls ?? []) {
      found[index] ??= { id, name: called.name, arguments: "" };
      found[index].arguments += called.arguments ?? "";
    }
  }
  return found;
}

for (const tool_choice of ["auto", "required", NAMED]) {
  test(`calculator is called: ${JSON.stringify(tool_choice)}`, async () => {
    const more = { tools: [CALCULATOR], tool_choice };
    const [choice] = (await chat("What is 12+7?", more)).choices;
    const [call] = choice.message.tool_calls;
    assert.equal(call.function.name, "calculator");
    assert.deepEqual(JSON.parse(call.function.arguments), { expression: "12+7" });
    const [other, ...none] = await calls(chat("What is 12+7?", { ...more, stream: true }));
    assert.deepEqual([other.name, JSON.parse(other.arguments), none], ["calculator", { expression: "12+7" }, []]);
    assert.ok(other.id);
  });
}

test("tool_choice none calls nothing", async () => {
  const [choice] = (await chat("12+7=", { tools: [CALCULATOR], tool_choice: "none" })).choices;
  assert.equal(choice.message.content, "19");
  assert.ok(!choice.message.tool_calls);
});

test("tool call round trip gives the right sum", async () => {
  for (const [a, b] of RELIABLE_SUMS) {
    const messages = user(`What is ${a}+${b}?`);
    const [{ message, finish_reason }] = (await chat(messages, { tools: [CALCULATOR] })).choices;
    assert.equal(finish_reason, "tool_calls");
    const [call] = message.tool_calls;
    const content = String(add(JSON.parse(call.function.arguments).expression));
    messages.push(message, { role: "tool", tool_call_id: call.id, content });
    const answer = await chat(messages, { tools: [CALCULATOR] });
    assert.equal(answer.choices[0].message.content, String(a + b));
    const stream = await streamed(chat(messages, { tools: [CALCULATOR], stream: true }));
    assert.deepEqual(stream, { texts: [String(a + b)], reasons: ["stop"] });
  }
});

for (const stream of [false, true]) {
  test(`client tool runner completes, ${stream ? "streamed" : "whole"}`, async () => {
    const asked = [];
    const calculator = ({ expression }) => (asked.push(expression), String(add(expression)));
    const tools = [{ ...CALCULATOR, function: { ...CALCULATOR.function, function: calculator, parse: JSON.parse } }];
    const runner = client().chat.completions.runTools({
      model: MODEL, messages: user("What is 20+22?"), temperature: 0, tools, stream,
    });
    assert.equal(await runner.finalContent(), "42");
    assert.deepEqual(asked, ["20+22"]);
  });
}

const CARD = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};

test("response follows JSON mode and a schema", async () => {
  const form = { type: "json_schema", json_schema: { name: "card", strict: true, schema: CARD } };
  for (const response_format of [{ type: "json_object" }, form]) {
    const answer = await chat("Ada is 36 years old", { response_format });
    assert.deepEqual(JSON.parse(answer.choices[0].message.content), { name: "Ada", age: 36 });
    const stream = await streamed(chat("Ada is 36 years old", { response_format, stream: true }));
    assert.deepEqual(JSON.parse(stream.texts[0]), { name: "Ada", age: 36 });
  }
});
