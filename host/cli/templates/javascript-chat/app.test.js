import assert from "node:assert/strict";
import { test } from "node:test";
import { Request } from "corral-sdk";
import { Script } from "corral-sdk/testing";
import handle from "./app.js";

const messages = [{ role: "user", content: "12+7=" }];

function ask(body) {
  const prompt = "<|im_start|>user\n12+7=<|im_end|>\n<|im_start|>assistant\n";
  return new Script({ [prompt]: "19" }).call(handle, new Request("POST", "/", { body }));
}

test("a question is answered", async () => {
  assert.deepEqual((await ask({ messages })).json(), { text: "19" });
  const events = (await ask({ messages, stream: true })).events();
  assert.deepEqual(events, [{ text: "1" }, { text: "9" }, { generated_tokens: 3 }]);
});

test("a message without content is refused", async () => {
  assert.equal((await ask({ messages: [{ role: "user" }] })).status, 400);
});
