// Samples several answers to one prompt and returns the one that the model finds most likely. The Rust form is `src/lib.rs`.
import { Model, Problem, Response } from "corral-sdk";

export default async function handle(request) {
  const body = { n: 8, temperature: 1, seed: 0, max_tokens: 64, ...(await request.json()) };
  if (!(body.n >= 1 && body.n <= 64)) throw new Problem(400, "invalid-n", `\`n\` is ${body.n}; expected 1 to 64`);
  const prompt = (await Model.open()).sequence(body.prompt);
  // All generations start before the first is read, so that they share steps. They are forks of one sequence: the host
  // computes the prompt once.
  const generations = Array.from({ length: body.n }, (_, index) =>
    prompt.fork().generate(body.max_tokens, { temperature: body.temperature, seed: body.seed + index, logprobs: 0 }),
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
