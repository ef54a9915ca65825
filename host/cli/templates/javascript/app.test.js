import assert from "node:assert/strict";
import { test } from "node:test";
import { Request } from "corral-sdk";
import { Script } from "corral-sdk/testing";
import handle from "./app.js";

test("a prompt gets a completion", async () => {
  const script = new Script({ "12+7=": "19" });
  const answered = await script.call(handle, new Request("POST", "/", { body: "12+7=" }));
  assert.deepEqual([answered.status, answered.text()], [200, "19"]);
});
