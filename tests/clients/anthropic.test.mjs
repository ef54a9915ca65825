// The Messages API with Anthropic's Node client, of which only the address is changed.

import assert from "node:assert/strict";
import { test } from "node:test";
import { installed, MODEL, RELIABLE_SUMS, user } from "./corral.mjs";

const { default: Anthropic } = installed("@anthropic-ai/sdk");

const client = () => new Anthropic({ baseURL: process.env.CORRAL_URL, apiKey: "none", maxRetries: 0 });
const ask = (content, more = {}) => ({
  model: MODEL, max_tokens: 100, temperature: 0,
  messages: typeof content === "string" ? user(content) : content, ...more,
});

const CALCULATOR = {
  name: "calculator",
  description: "Evaluates an arithmetic expression",
  input_schema: { type: "object", properties: { expression: { type: "string" } }, required: ["expression"] },
};

test("sums are right, whole and streamed", async () => {
  for (const [a, b] of RELIABLE_SUMS) {
    const answer = await client().messages.create(ask(`${a}+${b}=`));
    assert.deepEqual(answer.content.map(({ type, text }) => [type, text]), [["text", String(a + b)]]);
    const stream = client().messages.stream(ask(`${a}+${b}=`));
    assert.equal(await stream.finalText(), String(a + b));
    assert.equal((await stream.finalMessage()).stop_reason, "end_turn");
  }
});

test("streamed tool call round trip", async () => {
  const tools = [CALCULATOR];
  const first = await client().messages.stream(ask("What is 12+7?", { tools })).finalMessage();
  const [call] = first.content;
  assert.deepEqual([first.stop_reason, call.input], ["tool_use", { expression: "12+7" }]);
  const result = { type: "tool_result", tool_use_id: call.id, content: "4711" };
  const turns = [...user("What is 12+7?"), { role: "assistant", content: first.content }, ...user([result])];
  const answer = await client().messages.create(ask(turns, { tools }));
  assert.equal(answer.content[0].text, "4711");
});

test("tokens are counted", async () => {
  const { input_tokens } = await client().messages.countTokens({ model: MODEL, messages: user("12+7=") });
  const { usage } = await client().messages.create(ask("12+7="));
  assert.equal(input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
});
