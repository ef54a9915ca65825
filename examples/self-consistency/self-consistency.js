// Samples several answers and returns the most frequent one (Wang et al., 2022). Samples no more than a majority needs. The
// Rust form is `src/lib.rs`.
import { Model, Problem, Response } from "corral-sdk";

export default async function handle(request) {
  const body = { votes: 9, temperature: 0.7, seed: 0, max_tokens: 64, ...(await request.json()) };
  if (!(body.votes >= 1 && body.votes <= 63)) {
    throw new Problem(400, "invalid-votes", `\`votes\` is ${body.votes}; expected 1 to 63`);
  }
  const prompt = (await Model.open()).sequence(body.prompt);
  // Votes in the order of the first ones; the sort is stable, so of equal answers the earliest is first.
  const tally = new Map();
  const ranked = () => [...tally].sort(([, one], [, other]) => other - one);
  let samples = 0;
  let tokens = 0;
  for (;;) {
    // Answers that the leading one still needs for a majority, if as many may be asked for.
    const leading = ranked()[0]?.[1] ?? 0;
    const wave = Math.min(Math.floor(body.votes / 2) + 1 - leading, body.votes - samples);
    if (wave <= 0) break;
    const generations = Array.from({ length: wave }, (_, index) =>
      prompt.fork().generate(body.max_tokens, { temperature: body.temperature, seed: body.seed + samples + index }),
    );
    for (const generation of generations) {
      const found = answer(await generation.text());
      tally.set(found, (tally.get(found) ?? 0) + 1);
      tokens += (await generation.outcome()).generatedTokens;
    }
    samples += wave;
  }
  const answers = ranked().map(([answer, votes]) => ({ answer, votes }));
  return Response.json({ ...answers[0], samples, generated_tokens: tokens, answers });
}

/** The last number of a text, so that answers can differ in their reasoning; without one, the text. */
function answer(text) {
  return text.match(/-?\d+/g)?.at(-1) ?? text.trim();
}
