// Chat completions with the Node client.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { all, chat, client, UNCACHED, MODEL, streamed, RELIABLE_SUMS, user } from "./corral.mjs";

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

test("later turns reuse earlier ones", async () => {
  const messages = [{ role: "system", content: `The conversation ${randomUUID()}.` }];
  const cached = [];
  for (const [a, b] of RELIABLE_SUMS) {
    messages.push(...user(`${a}+${b}=`));
    const answer = await chat(messages);
    assert.equal(answer.choices[0].message.content, String(a + b));
    messages.push(answer.choices[0].message);
    cached.push(answer.usage.prompt_tokens_details.cached_tokens);
  }
  assert.ok(cached.every((count, turn) => turn === 0 || count > cached[turn - 1]), String(cached));
});

test("any number of choices", async () => {
  const answer = await chat("12+7=", { n: 3 });
  assert.deepEqual(answer.choices.map((choice) => [choice.index, choice.message.content]), [[0, "19"], [1, "19"], [2, "19"]]);
  const stream = await streamed(chat("12+7=", { n: 3, stream: true }));
  assert.deepEqual(stream, { texts: ["19", "19", "19"], reasons: ["stop", "stop", "stop"] });
});

test("stop and max_tokens end the text", async () => {
  for (const [more, text, reason] of [
    [{ stop: "owls" }, "Blue ", "stop"],
    [{ stop: ["nothing", "ls,"] }, "Blue ow", "stop"],
    [{ max_tokens: 4 }, "Blue", "length"],
    [{ max_completion_tokens: 4 }, "Blue", "length"],
  ]) {
    const [choice] = (await chat(OWLS, more)).choices;
    assert.deepEqual([choice.message.content, choice.finish_reason], [text, reason]);
    assert.deepEqual(await streamed(chat(OWLS, { ...more, stream: true })), { texts: [text], reasons: [reason] });
  }
});

for (const seed of [1, 2, 3]) {
  test(`seed ${seed} gives one text, whole and streamed`, async () => {
    const more = { temperature: 1, seed, max_tokens: 100, ignore_eos: true };
    const text = (await chat("Hello", more, UNCACHED)).choices[0].message.content;
    assert.equal((await chat("Hello", more, UNCACHED)).choices[0].message.content, text);
    assert.deepEqual((await streamed(chat("Hello", { ...more, stream: true }, UNCACHED))).texts, [text]);
    const other = await chat("Hello", { ...more, seed: seed + 100 }, UNCACHED);
    assert.notEqual(other.choices[0].message.content, text);
  });
}

test("samplers take effect", async () => {
  const free = { temperature: 2, seed: 1, max_tokens: 40, ignore_eos: true };
  const text = async (more) => (await chat("Hello", { ...free, ...more }, UNCACHED)).choices[0].message.content;
  const greedy = await text({ temperature: 0 });
  for (const more of [{ top_k: 1 }, { top_p: 0.0001 }, { min_p: 1 }]) assert.equal(await text(more), greedy);
  const plain = await text({});
  assert.notEqual(plain, greedy);
  for (const more of [{ presence_penalty: 2 }, { frequency_penalty: 2 }]) assert.notEqual(await text(more), plain);
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

test("logit_bias bans and forces", async () => {
  const answer = await fetch(`${process.env.CORRAL_URL}/tokenize`, {
    method: "POST",
    body: JSON.stringify({ content: "15" }),
  });
  const [one, five] = (await answer.json()).tokens;
  const banned = await chat("12+7=", { logit_bias: { [one]: -100 }, max_tokens: 8 });
  assert.ok(!banned.choices[0].message.content.includes("1"));
  const forced = await chat("12+7=", { logit_bias: { [five]: 100 }, max_tokens: 3 });
  assert.equal(forced.choices[0].message.content, "555");
});
