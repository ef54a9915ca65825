// Eta sampling (Hewitt et al., 2022), which the host does not have: the plugin reads each distribution and chooses the token
// itself. The Rust form is `src/lib.rs`.
import { Model, Problem, Response, choose, random } from "corral-sdk";

/** The most likely tokens among which to choose. */
const CANDIDATES = 256;

export default async function handle(request) {
  const body = { epsilon: 0.002, temperature: 1, seed: 0, max_tokens: 64, ...(await request.json()) };
  if (!(body.epsilon >= 0 && body.epsilon <= 1)) {
    throw new Problem(400, "invalid-epsilon", `\`epsilon\` is ${body.epsilon}; expected 0 to 1`);
  }
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
