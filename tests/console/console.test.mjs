// The web console in a browser, over a server with the demo model. `tests/tests/operation/console_browser.rs` starts both.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, test } from "node:test";
import { ADMIN, PATIENCE, TOKEN, admin, checkAccessibility, closeBrowser, open, until } from "./browser.mjs";
import { chat, cleanups, endless, keepBusy, stopLoad } from "./load.mjs";
import { LOOKS, PAGES, tokensOf } from "./pages.mjs";
import "./untrusted.mjs";

const COMPONENTS = process.env.CORRAL_COMPONENTS;

after(async () => {
  await stopLoad();
  await closeBrowser();
});

/** Chooses a component in the form that is open. */
async function chooseFile(page, name) {
  await page.locator("input[type=file]").setInputFiles(join(COMPONENTS, name));
  await page.getByText(name).waitFor();
}

test("token is asked for, refused and accepted", async () => {
  const { page, close } = await open("deployments", { token: null });
  await page.getByLabel("Token", { exact: true }).fill("wrong");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByText("This is not the admin token").waitFor();
  assert.equal(await page.getByRole("heading", { name: "All deployments" }).count(), 0);
  await page.getByLabel("Token", { exact: true }).fill(TOKEN);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "All deployments" }).waitFor();
  // It is kept for this tab, and nowhere else.
  const stored = await page.evaluate(() => [Object.values(localStorage).join(), document.cookie, Object.values(sessionStorage)]);
  assert.deepEqual(stored, ["", "", [TOKEN]]);
  assert.ok(!page.url().includes(TOKEN));
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("Token", { exact: true }).waitFor();
  await close();
});

test("token that became wrong is asked for again", async () => {
  const { page, close } = await open("deployments", { token: "of another server" });
  await page.getByLabel("Token", { exact: true }).waitFor();
  await close();
});

test("chat streams the right answer with probabilities", async () => {
  const { page, close } = await open("playground");
  await page.getByLabel("Message", { exact: true }).fill("12+7=");
  await page.keyboard.press("Enter");
  await page.getByText("ended by stop").waitFor();
  const tokens = tokensOf(page);
  assert.equal((await tokens.allTextContents()).join("").trim(), "19");
  assert.match(await tokens.first().getAttribute("aria-label"), /, \d+\.\d %$/);
  const facts = await page.locator(".facts").first().textContent();
  assert.match(facts, /first token after .*\d+ prompt tokens, \d+ cached\d+ generated/);
  // The arrows choose tokens; their alternatives are shown.
  await page.getByRole("listbox").focus();
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.locator(".alternative").count(), 5);
  // The same request once more finds its prompt in the cache.
  await page.getByRole("button", { name: "Clear" }).click();
  await page.getByLabel("Message", { exact: true }).fill("12+7=");
  await page.getByRole("button", { name: "Send" }).click();
  await page.getByText("ended by stop").waitFor();
  assert.match(await page.locator(".facts").first().textContent(), /prompt tokens, [1-9]\d* cached/);
  await close();
});

test("answer arrives in parts", async () => {
  const { page, close } = await open("playground");
  await page.getByLabel("Most tokens").fill("20000");
  await page.getByText("Other fields").click();
  await page.getByLabel("Fields of the request, as JSON").fill('{"ignore_eos": true}');
  await page.getByRole("checkbox", { name: "Probabilities of tokens" }).uncheck();
  await page.getByLabel("Message", { exact: true }).fill("repeat: owls");
  await page.keyboard.press("Enter");
  const answer = page.locator(".turn.assistant .text");
  const length = async () => (await answer.textContent()).length;
  const first = await until("a first part", async () => ((await answer.count()) > 0 ? await length() : 0));
  await until("more of it", async () => (await length()) > first + 20);
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByText("Stopped. The server canceled the request.").waitFor();
  await close();
});

test("JSON schema and tools constrain the answer", async () => {
  const { page, close } = await open("playground");
  await page.getByText("JSON schema", { exact: true }).click();
  const schema = page.getByLabel("Schema of the answer");
  await schema.fill('{"type": ');
  await page.getByLabel("Message", { exact: true }).fill("12+7=");
  await page.getByRole("button", { name: "Send" }).click();
  await page.getByText("JSON schema: this is no JSON").first().waitFor();
  await schema.fill('{"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["sum"], "additionalProperties": false}');
  await page.getByRole("button", { name: "Send" }).click();
  await page.getByText("ended by stop").waitFor();
  const answer = JSON.parse((await tokensOf(page).allTextContents()).join(""));
  assert.deepEqual(Object.keys(answer), ["sum"]);

  await page.getByRole("button", { name: "Clear" }).click();
  await schema.fill("");
  await page.getByText("Tools", { exact: true }).click();
  const tool = { name: "add", parameters: { type: "object", properties: { a: { type: "integer", minimum: 0, maximum: 9 } }, required: ["a"], additionalProperties: false } };
  await page.getByLabel("Functions, as JSON").fill(JSON.stringify([{ type: "function", function: tool }]));
  await page.getByLabel("Choice").selectOption("required");
  await page.getByLabel("Message", { exact: true }).fill("3+4=");
  await page.getByRole("button", { name: "Send" }).click();
  const result = page.getByLabel("Result of add");
  await result.waitFor();
  assert.match(await page.locator(".turn.assistant .note").textContent(), /^add\(\{.*"a".*\}\)$/);
  await result.fill("7");
  await page.getByLabel("Choice").selectOption("none");
  await page.getByRole("button", { name: "Send results" }).click();
  await until("the second answer", async () => (await page.getByText("ended by").count()) === 2);
  await close();
});

test("raw request shows status, headers and body", async () => {
  const { page, close } = await open("playground");
  await page.getByRole("tab", { name: "Raw request" }).click();
  await page.getByLabel("Route").selectOption("/hello");
  await page.getByLabel("Body", { exact: true }).fill("20+22=");
  await page.getByRole("button", { name: "Send" }).click();
  const body = page.getByRole("region", { name: "Body of the response" });
  await until("the response", async () => (await body.count()) === 1 && (await body.textContent()) === "42");
  await page.getByText(/^\d+ headers$/).click();
  await page.getByText("x-request-id").waitFor();
  // The server's refusals are shown like any other response.
  await page.getByLabel("Path and query").fill("/nowhere/at/all?x=1");
  await page.getByRole("button", { name: "Send" }).click();
  await until("the refusal", async () => (await body.textContent()).includes('"no-route"') || (await body.textContent()).includes("not_found"));
  await close();
});

test("request can be copied as programs", async () => {
  const { page, close } = await open("playground");
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.getByLabel("Message", { exact: true }).fill("12+7=");
  await page.getByRole("checkbox", { name: "Probabilities of tokens" }).uncheck();
  const copied = async (language) => {
    await page.getByRole("tab", { name: language }).click();
    await page.getByRole("button", { name: "Copy" }).click();
    await page.getByText(`Copied as ${language}.`).waitFor();
    return page.evaluate(() => navigator.clipboard.readText());
  };
  const { spawnSync } = await import("node:child_process");
  const runs = [
    ["curl", "bash", "-c"],
    ["Python", "python3", "-c"],
    ["JavaScript", "node", "--input-type=module", "-e"],
  ];
  for (const [language, program, ...before] of runs) {
    const text = await copied(language);
    assert.ok(!text.includes(TOKEN), language);
    const { stdout, stderr } = spawnSync(program, [...before, text], { encoding: "utf8", timeout: PATIENCE });
    const answer = [...stdout.matchAll(/"content":"(.*?)"/g)].map((match) => match[1]).join("");
    assert.equal(answer, "19", `${language}: ${stdout} ${stderr}`);
  }
  await close();
});

test("running request appears and is canceled", async () => {
  const { page, close } = await open("requests");
  await page.getByText("No request runs").waitFor();
  const { id, text, abort } = await endless();
  const row = page.getByRole("row").filter({ hasText: id });
  await row.waitFor();
  await until("tokens", async () => /decode/.test(await row.textContent()) && Number((await row.getByRole("cell").nth(6).textContent()).replace(/\D/g, "")) > 50);
  await page.getByRole("button", { name: `Cancel request ${id}` }).click();
  await page.getByText(`Request ${id} was canceled.`).waitFor();
  await row.waitFor({ state: "detached" });
  assert.match(await text, /cancel/);
  abort.abort();
  await close();
});

test("figures and charts move without a reload", async () => {
  const { page, close } = await open("overview");
  const rest = keepBusy(1);
  const figure = page.locator(".figure").filter({ hasText: "Tokens a second" }).locator("dd").first();
  const number = async () => Number((await figure.textContent()).replace(/[^\d.]/g, ""));
  await until("tokens a second", async () => (await number()) > 1);
  // Nothing moves when values change.
  const boxes = () => page.locator(".figure, .panel").evaluateAll((all) => all.map((one) => JSON.stringify(one.getBoundingClientRect())));
  const before = await boxes();
  const chart = page.getByRole("img", { name: /^Tokens a second in the last 15 minutes/ });
  const pixels = () => chart.locator("canvas").evaluate((canvas) => canvas.toDataURL());
  const drawn = await pixels();
  await until("a changed chart", async () => (await pixels()) !== drawn);
  assert.deepEqual(await boxes(), before);
  await rest();
  await until("the end of the request", async () => (await number()) === 0);
  await close();
});

test("deployment is uploaded, split, rolled back, paused and removed", async () => {
  const { page, close } = await open("deployments");
  await page.getByRole("button", { name: "New deployment" }).click();
  // The validation's answer.
  await chooseFile(page, "unknown-import.wasm");
  await page.getByRole("button", { name: "Deploy", exact: true }).click();
  await page.getByText(/test:unknown-import/).waitFor();
  // A file can be dropped, too.
  const bytes = readFileSync(join(COMPONENTS, "browser-1.wasm"));
  const transfer = await page.evaluateHandle((base64) => {
    const data = new DataTransfer();
    const content = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    data.items.add(new File([content], "browser-1.wasm", { type: "application/wasm" }));
    return data;
  }, bytes.toString("base64"));
  await page.dispatchEvent(".drop", "drop", { dataTransfer: transfer });
  await page.getByText("browser-1.wasm").waitFor();
  await page.getByLabel("Name").fill("browser");
  await page.getByLabel("Routes").fill("/browser /browser-too");
  await page.getByLabel("Other fields of the manifest, as JSON").fill('{"limits": {"time-seconds": 1}}');
  await page.getByRole("button", { name: "Deploy", exact: true }).click();
  await page.getByText("Valid. Revision 1 of browser answers at /browser, /browser-too.").waitFor();
  await page.getByRole("link", { name: "browser", exact: true }).click();

  // As for a page without TLS from another machine, the browser computes no digest; the server checks that of the page.
  await page.evaluate(() => Object.defineProperty(crypto, "subtle", { value: undefined }));
  await page.getByRole("button", { name: "New revision" }).click();
  await chooseFile(page, "browser-2.wasm");
  await page.getByRole("checkbox", { name: "Route all requests to it at once" }).uncheck();
  await page.getByRole("button", { name: "Deploy", exact: true }).click();
  await page.getByText("Valid. Revision 2 of browser gets no requests yet.").waitFor();

  const traffic = async () => (await admin("GET", "/deployments/browser")).deployment.traffic.map(({ revision, weight }) => [revision, weight]);
  assert.deepEqual(await traffic(), [[1, 1]]);
  await page.getByLabel("Add a revision to the split").selectOption("2");
  const slider = page.getByRole("slider", { name: "Revision 2" });
  await slider.focus();
  for (let step = 0; step < 25; step += 1) await page.keyboard.press("ArrowRight");
  assert.equal(await page.getByRole("slider", { name: "Revision 1" }).inputValue(), "75");
  await page.getByRole("button", { name: "Apply" }).click();
  await page.getByText("Requests are split as chosen.").waitFor();
  assert.deepEqual(await traffic(), [[1, 75], [2, 25]]);

  await page.getByRole("button", { name: "Roll back" }).click();
  await page.getByText("The previous split is back.").waitFor();
  assert.deepEqual(await traffic(), [[1, 1]]);
  await page.getByRole("button", { name: "Route all here: revision 2" }).click();
  await page.getByText("Revision 2 gets all requests.").waitFor();
  assert.equal((await traffic()).map(([revision]) => revision).join(), "2");

  // The log follows what the plugin writes.
  const log = page.getByRole("log");
  await page.getByText("Following").waitFor();
  const answer = await fetch(`${process.env.CORRAL_PUBLIC}/browser/log`);
  assert.equal(await answer.text(), "ok");
  await log.getByText("a line on the standard error").waitFor();
  assert.match(await log.textContent(), new RegExp(`rev\\. 2 ${answer.headers.get("x-request-id")} a line on the standard output`));

  // How often a limit stopped a request.
  const late = await fetch(`${process.env.CORRAL_PUBLIC}/browser/sleeper`);
  assert.equal(late.status, 504);
  const limit = page.getByRole("row").filter({ hasText: "time-seconds" }).first();
  await until("the counted limit", async () => /1$/.test((await limit.getByRole("cell").nth(2).textContent()).trim()));

  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByText("Requests are refused. Running ones continue.").waitFor();
  assert.equal((await fetch(`${process.env.CORRAL_PUBLIC}/browser/ok`)).status, 503);
  await page.getByRole("button", { name: "Resume" }).click();
  await page.getByText("Requests are served again.").waitFor();
  assert.equal((await fetch(`${process.env.CORRAL_PUBLIC}/browser/ok`)).status, 200);

  await page.getByRole("button", { name: "Remove" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
  await page.getByText("browser was removed.").waitFor();
  await page.getByRole("heading", { name: "All deployments" }).waitFor();
  assert.equal((await fetch(`${process.env.CORRAL_PUBLIC}/browser/ok`)).status, 404);
  await close();
});

/** The rows of the tree of `/v1`: the level of each, whether it is a branch, and its button to drop it. */
function prefixRows(page) {
  const tree = page.getByRole("treegrid", { name: "Entries: /v1" });
  return { tree, rows: tree.locator("tbody").getByRole("row"), branches: tree.locator("tr.branch"), drop: tree.getByRole("button", { name: /^Drop/ }) };
}

test("cached prefix is shown and dropped", async () => {
  for (const text of ["repeat: a prefix for the console", "repeat: another one"]) await chat(text);
  const { page, close } = await open("prefix-cache");
  const { tree } = prefixRows(page);
  const entries = tree.locator("tbody tr:not(.branch)");
  await entries.first().waitFor();
  const before = await entries.count();
  assert.match(await entries.first().textContent(), /\d+ tokens?entry \d+.*\d+(cells|RAM|disk)/);
  await entries.first().getByRole("button", { name: /^Drop entry/ }).click();
  await page.getByText("1 entry dropped.").waitFor();
  await until("a smaller tree", async () => (await entries.count()) === before - 1);
  await page.getByRole("button", { name: "Drop all" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Drop all" }).click();
  await page.getByText("Nothing is cached").waitFor();
  await close();
});

test("prefixes form a tree that collapses", async () => {
  await admin("DELETE", "/prefix-cache");
  const begin = "repeat: two conversations with the same beginning";
  for (const text of [`${begin} and one end`, `${begin}, or another`, "12+7="]) await chat(text);
  const { page, close } = await open("prefix-cache");
  const { rows, branches, drop } = prefixRows(page);
  await until("the tree", async () => (await rows.count()) === 5);
  const levels = () => rows.evaluateAll((all) => all.map((row) => row.ariaLevel).join(""));
  // The chat's first tokens, then the beginning of two of the chats.
  const inner = branches.filter({ hasText: "shared by 2 entries" });
  assert.equal(await branches.count(), 2);
  assert.match(await branches.first().textContent(), /\d+ tokens?shared by 3 entries.*(cells|RAM|disk) \d/);
  assert.equal([...(await levels())].sort().join(""), "12233");

  // With the mouse, and with the keyboard.
  await inner.getByRole("button", { name: "Collapse" }).click();
  await until("fewer rows", async () => (await rows.count()) === 3);
  await rows.first().focus();
  await page.keyboard.press("ArrowLeft");
  await until("one row", async () => (await rows.count()) === 1);
  assert.equal(await rows.first().getAttribute("aria-expanded"), "false");
  await page.keyboard.press("ArrowRight");
  await until("the rows below", async () => (await rows.count()) === 3);
  await page.keyboard.press("End");
  await page.keyboard.press("ArrowLeft");
  assert.equal(await page.evaluate(() => document.activeElement.ariaLevel), "1");
  await page.getByRole("button", { name: "Collapse all of /v1" }).click();
  await page.getByRole("button", { name: "Expand all of /v1" }).click();
  await until("all rows", async () => (await rows.count()) === 5);

  // A branch is dropped with its entries, and nothing else.
  await inner.getByRole("button", { name: /^Drop 2 entries/ }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Drop" }).click();
  await page.getByText("2 entries dropped.").waitFor();
  await until("one entry", async () => (await rows.count()) === 1 && (await drop.count()) === 1);
  await close();
});

test("prefixes are shown while a model is busy", async () => {
  await chat("repeat: a prefix under load");
  const rest = keepBusy(2);
  const { page, close } = await open("prefix-cache");
  const { rows } = prefixRows(page);
  const lists = [];
  page.on("response", (response) => new URL(response.url()).pathname === "/prefix-cache" && lists.push(response.status()));
  await rows.first().waitFor();
  await until("four lists", () => lists.length >= 4);
  assert.deepEqual([...new Set(lists)], [200]);
  assert.ok((await rows.count()) > 0);
  assert.equal(await page.getByText("are missing").count(), 0);
  await rest();
  await close();
});

test("model in a long step leaves the other prefixes shown", async () => {
  const { page, close } = await open("overview");
  const entry = { model: "small", entry: 1, deployment: "/v1", adapter: 0, tokens: 9, shared_tokens: 0, hits: 1, location: "cells", retained: false };
  const missing = [{ model: "large", reason: "a step of the model large takes long" }];
  const stale = [{ model: "small", age_seconds: 4.5 }];
  await page.route("**/prefix-cache", (route) => route.fulfill({ json: { entries: [entry], omitted: 0, stale, missing } }));
  await page.getByRole("link", { name: "Prefix cache" }).click();
  await page.getByText("The entries of large are missing: a step").waitFor();
  await page.getByText("A step of small takes long: its entries are those of 4.50 s ago.").waitFor();
  await prefixRows(page).rows.filter({ hasText: "small" }).waitFor();
  await close();
});

test("page of another origin can do nothing", async () => {
  // The origin differs by its port, and by its name, too.
  const server = createServer((_, response) => response.setHeader("content-type", "text/html").end("<h1>Another page</h1>"));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  cleanups.push(() => server.close());
  const { port } = server.address();
  const before = JSON.stringify([await admin("GET", "/deployments"), await admin("GET", "/models")].map(({ deployments, models }) => deployments ?? models.map(({ model, state }) => [model, state])));
  const requests = async () => (await (await fetch(`${ADMIN}/metrics`)).text()).match(/^corral_deployment_requests_total.*$/gm).join();
  const served = await requests();
  for (const host of ["127.0.0.1", "localhost"]) {
    const { page, close } = await openOther(`http://${host}:${port}/`);
    const outcomes = await page.evaluate(
      async ([admin, token]) => {
        const headers = { authorization: `Bearer ${token}` };
        const attempts = {
          read: () => fetch(`${admin}/events`),
          readWithToken: () => fetch(`${admin}/deployments`, { headers }),
          session: () => fetch(`${admin}/session`),
          metrics: () => fetch(`${admin}/metrics`),
          call: () => fetch(`${admin}/call/hello`, { method: "POST", body: "1+1=", mode: "no-cors" }),
          callWithToken: () => fetch(`${admin}/call/hello`, { method: "POST", body: "1+1=", headers }),
          drop: () => fetch(`${admin}/prefix-cache`, { method: "DELETE", headers }),
          load: () => fetch(`${admin}/models/tiny`, { method: "DELETE", headers }),
          deploy: () => fetch(`${admin}/deployments/evil`, { method: "POST", body: "{}", mode: "no-cors" }),
        };
        const outcomes = {};
        for (const [name, attempt] of Object.entries(attempts)) {
          // An opaque response tells a page nothing, and no answer is read here.
          outcomes[name] = await attempt().then((response) => response.type, () => "failed");
        }
        // The console in a frame, where clicks could be stolen.
        const frame = document.createElement("iframe");
        frame.src = `${admin}/`;
        document.body.append(frame);
        await new Promise((resolve) => frame.addEventListener("load", resolve));
        let inside;
        try {
          inside = frame.contentDocument === null ? "another document" : "empty";
        } catch {
          inside = "another document";
        }
        // A form needs no script and no permission.
        const form = document.createElement("form");
        form.method = "post";
        form.action = `${admin}/call/hello`;
        form.target = "elsewhere";
        document.body.append(form);
        form.submit();
        await new Promise((resolve) => setTimeout(resolve, 500));
        return { outcomes, inside };
      },
      [ADMIN, TOKEN],
    );
    for (const [name, outcome] of Object.entries(outcomes.outcomes)) {
      assert.ok(["failed", "opaque"].includes(outcome), `${host}: ${name}: ${outcome}`);
    }
    const frame = page.frames().find((frame) => frame !== page.mainFrame());
    assert.equal(await frame.locator("#app").count().catch(() => 0), 0, "the console shows in a frame");
    await close();
  }
  const now = JSON.stringify([await admin("GET", "/deployments"), await admin("GET", "/models")].map(({ deployments, models }) => deployments ?? models.map(({ model, state }) => [model, state])));
  assert.equal(now, before);
  assert.equal(await requests(), served, "a plugin was called");
});

/** A page that is not the console; what the browser reports of it does not matter. */
async function openOther(url) {
  const { page } = await open("", { token: null, url: ADMIN });
  await page.goto(url);
  return { page, close: () => page.context().close() };
}

test("console survives that the server is away", async () => {
  const { page, close } = await open("overview");
  await page.getByText("Live").waitFor();
  await page.context().setOffline(true);
  // Open connections of the browser go on; a new one fails.
  await page.evaluate(() => location.reload()).catch(() => undefined);
  await page.context().setOffline(false);
  // The reload that failed may end later and interrupt this one.
  await until("the page again", () => page.goto(`${ADMIN}/#/overview`).then(() => true, () => false));
  await page.getByText("Live").waitFor();
  await page.route("**/events", (route) => route.abort());
  await page.reload();
  await page.getByText("Reconnecting").waitFor();
  await page.unroute("**/events");
  await page.getByText("Live").waitFor();
  // The browser reports the failed requests; that is what this test is about.
  await close().catch((error) => assert.match(String(error), /ERR_(FAILED|INTERNET_DISCONNECTED)/));
});

test("keyboard reaches the menu, the content and the theme", async () => {
  const { page, close } = await open("overview");
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "content");
  await page.getByRole("link", { name: "Requests" }).focus();
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(outline, "solid");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Requests", exact: true }).waitFor();
  const background = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const light = await background();
  await page.getByRole("button", { name: "Dark theme" }).focus();
  await page.keyboard.press("Enter");
  assert.notEqual(await background(), light);
  await page.reload();
  await page.getByRole("button", { name: "Light theme" }).waitFor();
  assert.notEqual(await background(), light);
  await close();
});

test("every page is accessible at both widths in both themes", async () => {
  await admin("PUT", "/deployments/kept/paused", { paused: false });
  for (const look of LOOKS) {
    // Anew each time: longer ones would fill all cells, and the chat would wait.
    const rest = keepBusy(2);
    for (const { name, path, token, prepare } of PAGES) {
      const { page, close } = await open(path, { ...look, token });
      await page.getByRole("heading", { level: 1 }).waitFor();
      await prepare(page);
      await checkAccessibility(page, `${name} ${look.name}`);
      await close();
    }
    await rest();
  }
});
