import assert from "node:assert/strict";
import { test } from "node:test";
import { Deadline, Request } from "corral-sdk";
import { Script } from "corral-sdk/testing";
import handle from "./app.js";

test("each prompt gets an event", async () => {
  const script = new Script({ "1+1=": "2", "2+2=": new Deadline(), "3+3=": "6" });
  const body = { prompts: ["1+1=", "2+2=", "3+3="] };
  const answered = await script.call(handle, new Request("POST", "/", { body }));
  assert.deepEqual(answered.events(), [
    { prompt: 0, text: "2" },
    { prompt: 1, error: new Deadline().message },
    { prompt: 2, text: "6" },
  ]);
});
