// Eta sampling (Hewitt et al., 2022), which the host does not have: the plugin reads each distribution and chooses the token
// itself. The Rust form is `src/lib.rs`.
import { Model, Response, choose, fields, random } from "corral-sdk";

/** The most likely tokens among which to choose. */
const CANDIDATES = 256;

export default async function handle(request) {
  const body = await request.fields({
    prompt: fields.string(),
    epsilon: fields.number(0.002, { least: 0, most: 1 }),
    temperature: fields.number(1, { least: 0 }),
    seed: fields.integer(0, { most: 2 ** 52 }),
    max_tokens: fields.integer(64),
  });
  const model = await Model.open();
  const sequence = model.sequence(body.prompt);
  const start = sequence.length;
  const generator = random(body.seed);
  let considered = 0;
  let distributions = 0;
  while (sequence.length - start < body.max_tokens) {
    const distribution = await sequence.next({ top: CANDIDATES, statistics: true });
    distributions++;
    const candidates = eta(distribution, body.epsilon);
    considered += candidates.length;
    const token = choose({ candidates }, generator, body.temperature);
    if (model.info.endOfGeneration.includes(token)) break;
    sequence.append([token]);
  }
  const text = model.detokenize(sequence.tokens(start));
  return Response.json({ text, distributions, considered_tokens: considered });
}

/** Drops tokens that are unlikely by themselves and for a distribution of this entropy. Keeps the first. */
function eta({ candidates, statistics }, epsilon) {
  const least = Math.min(epsilon, Math.sqrt(epsilon) * Math.exp(-statistics.entropy));
  return candidates.filter(({ logit }, index) => index === 0 || Math.exp(logit - statistics.logNormalizer) >= least);
}
