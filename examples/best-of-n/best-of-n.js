// Samples several answers to one prompt and returns the one that the model finds most likely. The Rust form is `src/lib.rs`.
import { Model, Response, fields } from "corral-sdk";

export default async function handle(request) {
  const body = await request.fields({
    prompt: fields.string(),
    n: fields.integer(8, { least: 1, most: 64 }),
    temperature: fields.number(1),
    seed: fields.integer(0, { most: 2 ** 52 }),
    max_tokens: fields.integer(64),
    ignore_eos: fields.boolean(false),
  });
  const prompt = (await Model.open()).sequence(body.prompt);
  // All generations start before the first is read, so that they share steps. They are forks of one sequence: the host
  // computes the prompt once.
  const generations = Array.from({ length: body.n }, (_, index) =>
    prompt.fork().generate(body.max_tokens, {
      temperature: body.temperature,
      seed: body.seed + index,
      logprobs: 0,
      ignoreEos: body.ignore_eos,
    }),
  );
  const answers = [];
  let computed = 0;
  for (const generation of generations) {
    const { text, logprobs } = await generation.rest();
    const { promptTokens, cachedTokens, generatedTokens } = await generation.outcome();
    computed += promptTokens - cachedTokens;
    const mean = logprobs.reduce((sum, { logprob }) => sum + logprob, 0) / generatedTokens;
    answers.push({ text, mean_logprob: Math.round(mean * 1000) / 1000 });
  }
  // Of equal answers the first.
  answers.sort((one, other) => other.mean_logprob - one.mean_logprob);
  return Response.json({
    text: answers[0].text,
    prompt_tokens: prompt.length,
    prompt_tokens_computed: computed,
    answers,
  });
}
