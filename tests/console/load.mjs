// Requests that tests of the console look at.

import assert from "node:assert/strict";

/** What a failed test has left running. */
export const cleanups = [];

export async function stopLoad() {
  await Promise.all(cleanups.map((cleanup) => cleanup()));
}

/** Asks the deployment `/v1` something, so that a prefix is cached. */
export async function chat(content) {
  const body = JSON.stringify({ messages: [{ role: "user", content }], max_tokens: 4 });
  const response = await fetch(`${process.env.CORRAL_PUBLIC}/v1/chat/completions`, { method: "POST", body });
  const text = await response.text();
  assert.equal(response.status, 200, text);
}

/** A request that takes long: four choices, each of nearly a whole context. */
export async function endless() {
  const abort = new AbortController();
  const body = JSON.stringify({ prompt: "12+7=", n: 4, max_tokens: 16_000, ignore_eos: true, stream: true });
  const response = await fetch(`${process.env.CORRAL_PUBLIC}/v1/completions`, { method: "POST", body, signal: abort.signal });
  assert.equal(response.status, 200, response.status === 200 ? "" : await response.clone().text());
  const id = response.headers.get("x-request-id");
  cleanups.push(() => abort.abort());
  const text = response.text().catch((error) => String(error));
  return { id, text, abort };
}

/** Keeps this many requests running until the returned function is called. */
export function keepBusy(count) {
  let stopped = false;
  const running = new Set();
  const workers = Array.from({ length: count }, async () => {
    while (!stopped) {
      const request = await endless();
      running.add(request);
      if (stopped) request.abort.abort();
      await request.text;
      running.delete(request);
    }
  });
  const stop = async () => {
    stopped = true;
    for (const { abort } of running) abort.abort();
    await Promise.all(workers);
  };
  cleanups.push(stop);
  return stop;
}
