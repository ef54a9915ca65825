// Tests of the console with answers that no server of the suite gives: those of malformed plugins, and rare states of the host.

import assert from "node:assert/strict";
import { test } from "node:test";
import { open, until } from "./browser.mjs";

const STREAM = "text/event-stream";
const CHAT = "**/call/**/chat/completions";
const delta = (fields) => ({ choices: [{ index: 0, delta: fields }] });
const logprobs = (content) => ({ choices: [{ index: 0, delta: { content: "a" }, logprobs: { content } }] });

/** Chunks of a plugin, and what the console says about them. */
const MALFORMED = [
  [delta({ tool_calls: [{ index: 4294967294, id: "a" }] }), /"index" is not an integer from 0 to 63/],
  [delta({ tool_calls: [{ index: -1, id: "a" }] }), /"index" is not an integer from 0 to 63/],
  [delta({ tool_calls: [{ index: "__proto__", id: "polluted" }] }), /"index" is not a finite number/],
  [delta({ tool_calls: Array.from({ length: 65 }, () => ({ id: "a" })) }), /calls more than 64 tools/],
  [delta({ content: { a: 1 } }), /"content" is not a string/],
  [logprobs([{ token: 5, logprob: -1 }]), /"token" is not a string/],
  [logprobs([{ token: "a", logprob: null }]), /"logprob" is not a finite number/],
  [logprobs([{ token: "a", logprob: -1, top_logprobs: 7 }]), /"top_logprobs" is not an array/],
  [logprobs([{ token: "a", logprob: -1, top_logprobs: [null] }]), /"token" is not a string/],
  [logprobs(Array.from({ length: 20_001 }, () => ({ token: "a", logprob: -1 }))), /more than 20,000 tokens/],
  [{ choices: [{ finish_reason: { a: 1 } }] }, /"finish_reason" is not a string/],
  [{ choices: [], usage: { prompt_tokens: { a: 1 } } }, /"prompt_tokens" is not a finite number/],
  [{ choices: 7 }, /"choices" is not an array/],
  [{ error: { message: 5 } }, /"message" is not a string/],
  ["{", /its data is not JSON/],
  [delta({ content: "a".repeat(2 * 1024 * 1024) }), /of more than 1 MiB/],
];

test("malformed answers of a plugin are errors of the answer", async () => {
  const { page, close } = await open("playground");
  let body = "";
  await page.route(CHAT, (route) => route.fulfill({ contentType: STREAM, body }));
  const ask = async () => {
    const clear = page.getByRole("button", { name: "Clear" });
    if (await clear.isEnabled()) await clear.click();
    await page.getByLabel("Message", { exact: true }).fill("12+7=");
    await page.getByRole("button", { name: "Send" }).click();
  };
  for (const [chunk, message] of MALFORMED) {
    const data = typeof chunk === "string" ? chunk : JSON.stringify(chunk);
    body = `data: ${data}\n\ndata: [DONE]\n\n`;
    await ask();
    await page.locator(".turn .note.bad").getByText(message).waitFor();
  }
  assert.equal(await page.evaluate(() => [].id), undefined);

  // Parts of calls may come in any order; what is no string in them counts as empty.
  const parts = [
    { index: 63, id: "second", function: { name: "sub", arguments: { a: 1 } } },
    { index: 0, id: 5, function: { name: "add", arguments: '{"a"' } },
    { index: 0, function: { arguments: ": 1}" } },
  ];
  body = `${parts.map((part) => `data: ${JSON.stringify(delta({ tool_calls: [part] }))}\n\n`).join("")}data: [DONE]\n\n`;
  await ask();
  await page.getByLabel("Result of add").waitFor();
  assert.deepEqual(await page.locator(".turn.assistant .note").allTextContents(), ["sub()", 'add({"a": 1})']);
  await close();
});

test("answer without an end is cut off at a limit", async () => {
  const { page, close } = await open("playground");
  const event = `data: ${JSON.stringify(delta({ reasoning_content: "a".repeat(1000 * 1000) }))}\n\n`;
  await page.route(CHAT, (route) => route.fulfill({ contentType: STREAM, body: event.repeat(17) }));
  await page.getByLabel("Message", { exact: true }).fill("12+7=");
  await page.getByRole("button", { name: "Send" }).click();
  await page.locator(".turn .note.bad").getByText("The answer is longer than 16 MiB.").waitFor();
  await close();
});

test("typed path can't leave the routes of plugins", async () => {
  const { page, close } = await open("playground");
  const sent = [];
  page.on("request", (request) => sent.push(new URL(request.url()).pathname));
  await page.getByRole("tab", { name: "Raw request" }).click();
  await page.getByLabel("Method").selectOption("DELETE");
  for (const path of ["/../models/tiny", "/a/../../models/tiny", "..\\models/tiny", "/%2e%2e/models/tiny", ".."]) {
    await page.getByLabel("Path and query").fill(path);
    await page.getByRole("button", { name: "Send" }).click();
    await page.getByRole("alert").getByText(`The path ${path} leads out`).waitFor();
  }
  assert.deepEqual(sent.filter((path) => path.startsWith("/models")), []);
  await close();
});

test("page that fails leaves the others", async () => {
  const { page, close } = await open("overview");
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.route("**/prefix-cache", (route) => route.fulfill({ json: { entries: 5, omitted: 0 } }));
  await page.getByRole("link", { name: "Prefix cache" }).click();
  await page.getByRole("heading", { name: "This page cannot be shown" }).waitFor();
  await page.getByRole("link", { name: "Overview" }).click();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.unroute("**/prefix-cache");
  await page.getByRole("link", { name: "Prefix cache" }).click();
  await page.getByRole("heading", { name: "Prefix cache" }).first().waitFor();
  await close();
});

/** A model's snapshot, with observations that all lie in one bucket. */
function modelAt(model, generated, bucket) {
  const bounds = [0.01, 0.1, 1];
  const histogram = { bounds, counts: bounds.map((bound) => (bound >= bucket ? generated : 0)), sum: 0, count: generated };
  return {
    model,
    state: "loaded",
    memory_bytes: 1,
    leases: 0,
    calls_waiting: 0,
    requests_running: 0,
    requests_waiting: 0,
    cells: { total: 100, running: 0, cached: 0, free: 100 },
    counters: { steps: generated, rows: generated, computed_tokens: generated, generated_tokens: generated, prompt_tokens: 0, prefix_cache_hit_tokens: 0, requests_failed: 0 },
    histograms: { time_to_first_token_seconds: histogram, inter_token_latency_seconds: histogram },
  };
}

test("loading and unloading a model does not count as its work", async () => {
  // One model works; another, which did much before, comes and goes.
  const loaded = [false, false, false, true, true, false, true, true, true];
  const { page, close } = await open("deployments");
  for (const seconds of [4, 5, 6, 8]) {
    const events = loaded.slice(0, seconds + 1).map((other, second) => {
      const models = [modelAt("works", 500 + 10 * second, 0.01), ...(other ? [modelAt("idle", 1_000_000, 1)] : [])];
      const snapshot = { time_ms: 1e12 + second * 1000, started_ms: 1e12, version: "0", ready: true, not_ready: [], http: { in_flight: 0, connections: 0, responses: {} }, models, requests: [], requests_omitted: 0, deployments: [] };
      return `event: snapshot\ndata: ${JSON.stringify(snapshot)}\n\n`;
    });
    await page.unroute("**/events");
    await page.route("**/events", (route) => route.fulfill({ contentType: STREAM, body: events.join("") }));
    await page.goto(`${new URL(page.url()).origin}/#/overview`);
    await page.reload();
    const figure = (name) => page.locator(".figure").filter({ hasText: name }).locator("dd").first();
    await until(`tokens a second after ${seconds} s`, async () => (await figure("Tokens a second").textContent()) === "10");
    assert.equal(await figure("Inter-token latency").textContent(), "5 ms");
    assert.equal(await figure("Rows in each step").textContent(), "1");
  }
  await close();
});

/** Streams of the page: where, the end of their address, and what says that they are open. */
const STREAMS = [
  ["overview", /\/events$/, "Live"],
  ["deployments/kept", /\/logs\?follow=true&/, "Following"],
];

test("hidden page closes its streams until it is shown", async () => {
  for (const [path, address, opened] of STREAMS) {
    const { page, close } = await open(path);
    await page.clock.install();
    await page.reload();
    await page.getByText(opened).waitFor();
    const events = [];
    page.on("request", (request) => address.test(request.url()) && events.push("opened"));
    page.on("requestfailed", (request) => address.test(request.url()) && events.push("closed"));
    const show = (visible) =>
      page.evaluate((visible) => {
        Object.defineProperty(document, "hidden", { value: !visible, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
      }, visible);
    // A short time changes nothing.
    await show(false);
    await page.clock.runFor(5_000);
    await show(true);
    await page.clock.runFor(1_000);
    assert.deepEqual(events, [], path);
    await show(false);
    await page.clock.fastForward(61_000);
    await until("the end of the connection", () => events.includes("closed"));
    await page.clock.runFor(60_000);
    assert.equal(events.at(-1), "closed", `${path}: it was opened while hidden`);
    await show(true);
    await until("a new connection", () => events.at(-1) === "opened");
    await page.getByText(opened).waitFor();
    await close();
  }
});
