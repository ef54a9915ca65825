// Vercel's AI SDK with its providers for both APIs, and the one for servers like this.

import assert from "node:assert/strict";
import { test } from "node:test";
import { installed, MODEL, RELIABLE_SUMS } from "./corral.mjs";

const { generateText, streamText, Output, embedMany, stepCountIs, tool } = installed("ai");
const { createOpenAI } = installed("@ai-sdk/openai");
const { createAnthropic } = installed("@ai-sdk/anthropic");
const { createOpenAICompatible } = installed("@ai-sdk/openai-compatible");
const { z } = installed("zod");

const settings = { baseURL: `${process.env.CORRAL_URL}/v1`, apiKey: "none" };
const compatible = createOpenAICompatible({ ...settings, name: "corral", supportsStructuredOutputs: true, includeUsage: true });
const MODELS = {
  "openai, responses": createOpenAI(settings).responses(MODEL),
  "openai, chat": createOpenAI(settings).chat(MODEL),
  anthropic: createAnthropic(settings)(MODEL),
  "openai-compatible": compatible(MODEL),
};
const common = (model) => ({ model, temperature: 0, maxRetries: 0, maxOutputTokens: 100 });

for (const [name, model] of Object.entries(MODELS)) {
  test(`${name}: sums are right, whole and streamed`, async () => {
    for (const [a, b] of RELIABLE_SUMS) {
      const asked = { ...common(model), prompt: `${a}+${b}=` };
      assert.equal((await generateText(asked)).text, String(a + b));
      assert.equal(await streamText(asked).text, String(a + b));
    }
  });

  test(`${name}: streamed tools are called`, async () => {
    const called = [];
    const calculator = tool({
      description: "Evaluates an arithmetic expression",
      inputSchema: z.object({ expression: z.string() }),
      execute: ({ expression }) => (called.push(expression), "4711"),
    });
    const asked = { ...common(model), prompt: "What is 12+7?", tools: { calculator }, stopWhen: stepCountIs(3) };
    const stream = streamText(asked);
    const kinds = new Set();
    for await (const part of stream.fullStream) {
      assert.notEqual(part.type, "error", JSON.stringify(part));
      kinds.add(part.type);
    }
    assert.ok(kinds.has("tool-call") && kinds.has("tool-result"), [...kinds].join());
    assert.equal(await stream.text, "4711");
    assert.equal((await generateText(asked)).text, "4711");
    assert.deepEqual(called, ["12+7", "12+7"]);
    const { inputTokens, outputTokens } = await stream.totalUsage;
    assert.ok(inputTokens > 0 && outputTokens > 0);
  });
}

for (const name of ["openai, responses", "openai, chat", "openai-compatible"]) {
  test(`${name}: an object follows the schema`, async () => {
    const output = Output.object({ schema: z.object({ name: z.string(), age: z.number().int() }) });
    const asked = { ...common(MODELS[name]), prompt: "Ada is 36 years old", output };
    assert.deepEqual((await generateText(asked)).output, { name: "Ada", age: 36 });
  });
}

for (const name of ["openai, responses", "openai, chat"]) {
  test(`${name}: log probabilities are those of the text`, async () => {
    const asked = { ...common(MODELS[name]), prompt: "12+7=", providerOptions: { openai: { logprobs: 2 } } };
    for (const answer of [await generateText(asked), streamText(asked)]) {
      const text = await answer.text;
      const { openai } = await answer.providerMetadata;
      assert.equal(openai.logprobs.flat().map(({ token }) => token).join(""), text);
    }
  });
}

test("embeddings have the model's length", async () => {
  const model = compatible.textEmbeddingModel(MODEL);
  const { embeddings } = await embedMany({ model, values: ["a", "12+7="], maxRetries: 0 });
  assert.deepEqual(embeddings.map((vector) => vector.length), [128, 128]);
});
