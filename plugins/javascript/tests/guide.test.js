// The code of the guide: each block is a module of its own, and answers.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Request } from "../src/index.js";
import { Script } from "../src/testing.js";

const guide = readFileSync(new URL("../../../docs/javascript.md", import.meta.url), "utf8");
const addresses = {
  "corral-sdk": new URL("../src/index.js", import.meta.url),
  "corral-sdk/testing": new URL("../src/testing.js", import.meta.url),
};
const [app, withFields, withEvents, tests] = [...guide.matchAll(/^```js\n(.*?)^```$/gms)].map(([, code]) => {
  const linked = code.replace(/(?<= from )"(.*?)"/g, (quoted, name) => (addresses[name] ? `"${addresses[name]}"` : quoted));
  // The first block is the plugin that the last one tests.
  const url = `data:text/javascript,${encodeURIComponent(linked)}`;
  addresses["./app.js"] ??= url;
  return url;
});

async function ask(url, body) {
  const { default: handle } = await import(url);
  return new Script({ "12+7=": "19" }).call(handle, new Request("POST", "/", { body }));
}

test("the first plugin answers", async () => {
  assert.equal((await ask(app, "12+7=")).text(), "19");
});

test("fields are read", async () => {
  const settings = { temperature: 0.5, max_tokens: 8, stop: ["\n"] };
  for (const more of [{}, settings]) {
    assert.deepEqual((await ask(withFields, { prompt: "12+7=", ...more })).json(), { text: "19" });
  }
  const { status, code } = (await ask(withFields, { prompt: "12+7=", max_tokens: 4097 })).json();
  assert.deepEqual([status, code], [400, "invalid-max-tokens"]);
});

test("events end with the tokens", async () => {
  assert.deepEqual((await ask(withEvents, "12+7=")).events(), [{ text: "1" }, { text: "9" }, { tokens: 3 }]);
});

// Its tests are added to those of this file.
await import(tests);
