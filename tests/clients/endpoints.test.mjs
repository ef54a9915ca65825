// Completions, embeddings, models and responses with the Node client, and the example of the plugin's README.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { promisify } from "node:util";
import { all, client, complete, MODEL, RELIABLE_SUMS } from "./corral.mjs";

const QUESTIONS = RELIABLE_SUMS.map(([a, b]) => `${a}+${b}=`);
const ANSWERS = RELIABLE_SUMS.map(([a, b]) => String(a + b));

test("models are listed and found", async () => {
  assert.deepEqual((await all(client().models.list())).map((model) => model.id), [MODEL]);
  assert.equal((await client().models.retrieve(MODEL)).id, MODEL);
});

test("prompts are completed, whole and streamed", async () => {
  const answer = await complete(QUESTIONS);
  assert.deepEqual(answer.choices.map((choice) => choice.text), ANSWERS);
  const texts = [];
  for await (const chunk of await complete(QUESTIONS, { stream: true })) {
    for (const { index, text } of chunk.choices) texts[index] = (texts[index] ?? "") + text;
  }
  assert.deepEqual(texts, ANSWERS);
  assert.equal((await complete("12+7=", { echo: true })).choices[0].text, "12+7=19");
});

test("embeddings are equal in both encodings", async () => {
  const ask = (more) => client().embeddings.create({ model: MODEL, input: ["The quiet owl", "12+7="], ...more });
  const floats = (await ask({ encoding_format: "float" })).data.map((entry) => entry.embedding);
  // The client requests base64 by default and decodes 32-bit floats.
  const read = (await ask({})).data.map((entry) => entry.embedding);
  assert.equal(floats[0].length, 128);
  for (const [number, vector] of floats.entries()) {
    assert.deepEqual(vector.map(Math.fround), [...read[number]].map(Math.fround));
  }
});

test("responses are right, whole and streamed", async () => {
  for (const [number, input] of QUESTIONS.entries()) {
    const answer = await client().responses.create({ model: MODEL, input, temperature: 0 });
    assert.equal(answer.output_text, ANSWERS[number]);
    assert.equal(answer.status, "completed");
  }
  const events = await all(client().responses.create({ model: MODEL, input: "12+7=", temperature: 0, stream: true }));
  const text = events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta);
  assert.equal(text.join(""), "19");
  assert.equal(events.at(-1).type, "response.completed");
  const stream = client().responses.stream({ model: MODEL, input: "12+7=", temperature: 0 });
  assert.equal((await stream.finalResponse()).output_text, "19");
});

test("the README's JavaScript works", async () => {
  const readme = await readFile(new URL("../../plugins/openai/README.md", import.meta.url), "utf8");
  const [, block] = readme.match(/```javascript\n(.*?)```/s);
  const there = "http://127.0.0.1:8080", importing = 'import OpenAI from "openai";';
  assert.ok(block.includes(there) && block.includes(importing));
  // The package is installed in another directory.
  const from = JSON.stringify(new URL("corral.mjs", import.meta.url));
  const script = block
    .replace(importing, `import { openai } from ${from};\nconst { OpenAI } = openai;`)
    .replace(there, process.env.CORRAL_URL);
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "--eval", script]);
  assert.equal(stdout, "elbat");
});
