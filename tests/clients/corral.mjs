// Shared by the suites: the clients from the directory of `setup.sh`, server addresses, metrics.

import { createRequire } from "node:module";

const require = createRequire(`${process.env.CORRAL_CLIENTS}/node/`);

/** The official package. */
export const openai = require("openai");

/** Another package of that directory. */
export const installed = require;

/** Name of the demo model. */
export const MODEL = "tiny";

/** Sums that the demo model answers correctly at any position. */
export const RELIABLE_SUMS = [[12, 7], [20, 22], [3, 4], [31, 27], [45, 54]];

// Far above what anything takes, because machines are busy.
const PATIENCE = 300_000;

/** A client without retries. */
export function client(which = "CORRAL_URL", apiKey = "none") {
  return new openai.OpenAI({ baseURL: `${process.env[which]}/v1`, apiKey, maxRetries: 0, timeout: PATIENCE });
}

/** A conversation of one user message. */
export function user(content) {
  return [{ role: "user", content }];
}

/** The greedy response to a message or a list of messages. */
export function chat(content, more = {}) {
  const messages = typeof content === "string" ? user(content) : content;
  return client().chat.completions.create({ model: MODEL, messages, temperature: 0, ...more });
}

/** The greedy completion of a prompt. */
export function complete(prompt, more = {}) {
  return client().completions.create({ model: MODEL, prompt, temperature: 0, ...more });
}

/** The text and finish reason of each choice of a chat stream. */
export async function streamed(chunks) {
  const texts = [], reasons = [];
  for await (const chunk of await chunks) {
    for (const { index, delta, finish_reason } of chunk.choices) {
      texts[index] = (texts[index] ?? "") + (delta.content ?? "");
      if (finish_reason) reasons[index] = finish_reason;
    }
  }
  return { texts, reasons };
}

/** All items of an async iterable. */
export async function all(items) {
  const found = [];
  for await (const item of await items) found.push(item);
  return found;
}

/** The current metrics: the sum of each family. */
export async function metrics() {
  const answer = await fetch(`${process.env.CORRAL_ADMIN}/metrics`);
  const sums = {};
  for (const line of (await answer.text()).trim().split("\n")) {
    if (line.startsWith("#")) continue;
    const cut = line.lastIndexOf(" ");
    const name = line.slice(0, cut).replace(/\{.*/, "");
    sums[name] = (sums[name] ?? 0) + Number(line.slice(cut + 1));
  }
  return sums;
}

/** Waits until `condition` holds and returns the metrics. */
export async function waitUntil(what, condition) {
  const deadline = Date.now() + PATIENCE;
  for (;;) {
    const now = await metrics();
    if (condition(now)) return now;
    if (Date.now() > deadline) throw new Error(`no sign that ${what}: ${JSON.stringify(now)}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
