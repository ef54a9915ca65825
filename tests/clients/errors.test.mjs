// Errors of the client, and disconnects.

import assert from "node:assert/strict";
import { test } from "node:test";
import { chat, client, metrics, MODEL, openai, user, waitUntil } from "./corral.mjs";

const ENDLESS = { stream: true, max_tokens: 4000, ignore_eos: true };

function ask(which, key) {
  return client(which, key).chat.completions.create({ model: MODEL, messages: user("12+7="), temperature: 0 });
}

test("unknown model gets 404", async () => {
  await assert.rejects(chat("12+7=", { model: "large" }), (error) => {
    assert.ok(error instanceof openai.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
});

for (const [more, param] of [
  [{ temperature: "hot" }, "temperature"],
  [{ messages: "12+7=" }, "messages"],
  [{ n: 0 }, "n"],
  [{ response_format: { type: "yaml" } }, "response_format"],
  [{ tools: 5 }, "tools"],
  [{ audio: { voice: "alloy", format: "wav" } }, "audio"],
]) {
  test(`invalid value is named: ${JSON.stringify(more)}`, async () => {
    await assert.rejects(chat("12+7=", more), (error) => {
      assert.ok(error instanceof openai.BadRequestError);
      assert.equal(error.type, "invalid_request_error");
      assert.ok(error.param.startsWith(param), error.param);
      return true;
    });
  });
}

test("missing key is refused", async () => {
  const answer = await ask("CORRAL_KEYED_URL", process.env.CORRAL_KEY);
  assert.equal(answer.choices[0].message.content, "19");
  await assert.rejects(ask("CORRAL_KEYED_URL", "corral_of-nobody"), openai.AuthenticationError);
  await assert.rejects(ask("CORRAL_KEYED_URL", process.env.CORRAL_OTHER_KEY), openai.PermissionDeniedError);
});

/** A stream that goes on for long, of which the first chunk is there. */
async function held(which, more = {}) {
  const request = { model: MODEL, messages: user("12+7="), temperature: 0, ...ENDLESS, ...more };
  const stream = await client(which).chat.completions.create(request);
  const chunks = stream[Symbol.asyncIterator]();
  await chunks.next();
  return stream;
}

test("full queue has retry-after", async () => {
  for (const [which, kind] of [
    ["CORRAL_NARROW_URL", openai.RateLimitError],
    ["CORRAL_BUSY_URL", openai.InternalServerError],
  ]) {
    const stream = await held(which);
    await assert.rejects(ask(which), (error) => {
      assert.ok(error instanceof kind, String(error));
      assert.ok(Number(error.headers.get("retry-after")) >= 1);
      return true;
    });
    stream.controller.abort();
  }
});

test("disconnect frees every sequence", async () => {
  const cancelled = "corral_engine_requests_canceled_total";
  for (const n of [1, 3]) {
    const before = (await metrics())[cancelled];
    const stream = await held("CORRAL_URL", { n });
    // The first chunk may arrive before the engine reports the request as running.
    await waitUntil("they run", (now) => now.corral_engine_requests_running === n);
    stream.controller.abort();
    const gone = (now) => now.corral_engine_requests_running === 0 && now[cancelled] - before >= n;
    const after = await waitUntil("they are gone", gone);
    assert.equal(after[cancelled] - before, n);
  }
});
