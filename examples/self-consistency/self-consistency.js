// Samples several answers and returns the most frequent one (Wang et al., 2022). Samples no more than a majority needs. The
// Rust form is `src/lib.rs`.
import { Model, Response, fields } from "corral-sdk";

export default async function handle(request) {
  const body = await request.fields({
    prompt: fields.string(),
    votes: fields.integer(9, { least: 1, most: 63 }),
    temperature: fields.number(0.7),
    seed: fields.integer(0, { most: 2 ** 52 }),
    max_tokens: fields.integer(64),
    ignore_eos: fields.boolean(false),
  });
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
      prompt.fork().generate(body.max_tokens, {
        temperature: body.temperature,
        seed: body.seed + samples + index,
        ignoreEos: body.ignore_eos,
      }),
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
