// Shared by the tests of the console: a browser, pages that fail a test on any error, and the server's address.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.CORRAL_CONSOLE}/`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

/** The admin listener, such as `http://127.0.0.1:8081`. */
export const ADMIN = process.env.CORRAL_ADMIN;
export const TOKEN = process.env.CORRAL_TOKEN;

// Far above what anything takes, because machines are busy.
export const PATIENCE = Number(process.env.PATIENCE ?? 120_000);

export const WIDTHS = { wide: { width: 1280, height: 900 }, narrow: { width: 390, height: 844 } };
export const THEMES = ["light", "dark"];

let browser;

/** Opens a new session of the browser, with nothing stored. `token`: logged in. */
export async function open(path, { token = TOKEN, viewport = WIDTHS.wide, colorScheme = "light", url = ADMIN } = {}) {
  // Chromium's own sandbox needs what containers lack. The pages are those of this checkout.
  browser ??= await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  const context = await browser.newContext({ viewport, colorScheme, reducedMotion: "reduce" });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(error.message));
  // A refused answer is one of the things that are tested; everything else that the browser reports is an error, such as a
  // violation of the content security policy.
  page.on("console", (message) => {
    if (message.type() === "error" && !/the server responded with a status of \d+/.test(message.text())) errors.push(message.text());
  });
  if (token) await page.addInitScript((token) => sessionStorage.setItem("corral-admin-token", token), token);
  await page.goto(`${url}/#/${path}`);
  const close = async () => {
    await context.close();
    assert.deepEqual(errors, []);
  };
  return { page, close };
}

export async function closeBrowser() {
  await browser?.close();
}

/** Fails if axe-core finds a violation of its rules, or if the page is wider than the screen. */
export async function checkAccessibility(page, what) {
  // Evaluated by the debugger, which the content security policy does not concern.
  await page.evaluate(`${axe};0`);
  const { violations, passes } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target, failureSummary }) => `${target} ${failureSummary}`)}`);
  assert.deepEqual(found, [], what);
  assert.ok(passes.length > 10, `${what}: axe-core checked little`);
  const beyond = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(beyond <= 0, `${what}: ${beyond} pixels wider than the screen`);
}

/** Sends a request to the admin listener, as a program. */
export async function admin(method, path, body) {
  const response = await fetch(ADMIN + path, {
    method,
    headers: { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
  return text === "" ? null : JSON.parse(text);
}

/** Calls `poll` until it returns something. */
export async function until(what, poll) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const found = await poll();
    if (found) return found;
    assert.ok(Date.now() < end, `${what} did not happen`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
