// Chat completions with the Node client: what it reads and sends. The Python suite tests what the server does.

import assert from "node:assert/strict";
import { test } from "node:test";
import { all, chat, client, MODEL, streamed, RELIABLE_SUMS, user } from "./corral.mjs";

const OWLS = "repeat: Blue owls, 7!";

for (const [a, b] of RELIABLE_SUMS) {
  test(`${a}+${b} is right, whole and streamed`, async () => {
    const answer = await chat(`${a}+${b}=`);
    assert.equal(answer.choices[0].message.content, String(a + b));
    assert.equal(answer.choices[0].finish_reason, "stop");
    const stream = await streamed(chat(`${a}+${b}=`, { stream: true }));
    assert.deepEqual(stream, { texts: [String(a + b)], reasons: ["stop"] });
  });
}

test("response identifies itself", async () => {
  const answer = await chat("12+7=");
  assert.equal(answer.object, "chat.completion");
  assert.equal(answer.model, MODEL);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
});

test("stream has usage if requested", async () => {
  const whole = await chat(OWLS);
  const chunks = await all(chat(OWLS, { stream: true, stream_options: { include_usage: true } }));
  const last = chunks.pop();
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.prompt_tokens, whole.usage.prompt_tokens);
  assert.equal(last.usage.completion_tokens, whole.usage.completion_tokens);
  assert.ok(chunks.every((chunk) => !chunk.usage));
  assert.ok((await all(chat(OWLS, { stream: true }))).every((chunk) => !chunk.usage));
});

test("client stream helper assembles the message", async () => {
  const stream = client().chat.completions.stream({ model: MODEL, messages: user(OWLS), temperature: 0 });
  let text = "";
  stream.on("content", (delta) => (text += delta));
  assert.equal(await stream.finalContent(), "Blue owls, 7!");
  assert.equal(text, "Blue owls, 7!");
});

test("any number of choices", async () => {
  const answer = await chat("12+7=", { n: 3 });
  assert.deepEqual(answer.choices.map((choice) => [choice.index, choice.message.content]), [[0, "19"], [1, "19"], [2, "19"]]);
  const stream = await streamed(chat("12+7=", { n: 3, stream: true }));
  assert.deepEqual(stream, { texts: ["19", "19", "19"], reasons: ["stop", "stop", "stop"] });
});

test("every token has a logprob", async () => {
  const more = { logprobs: true, top_logprobs: 5 };
  const [choice] = (await chat(OWLS, more)).choices;
  const entries = choice.logprobs.content;
  assert.equal(entries.map((entry) => entry.token).join("").replace("<|im_end|>", ""), "Blue owls, 7!");
  for (const { token, logprob, bytes, top_logprobs } of entries) {
    assert.ok(Number.isFinite(logprob) && logprob <= 1e-4);
    assert.equal(Buffer.from(bytes).toString(), token);
    assert.equal(top_logprobs.length, 5);
    const total = top_logprobs.reduce((sum, top) => sum + Math.exp(top.logprob), 0);
    assert.ok(total > 0.9 && total < 1.001, String(total));
  }
  const chunks = await all(chat(OWLS, { ...more, stream: true }));
  const streamedEntries = chunks.flatMap((chunk) => chunk.choices[0]?.logprobs?.content ?? []);
  assert.deepEqual(streamedEntries.map((entry) => entry.token), entries.map((entry) => entry.token));
});
