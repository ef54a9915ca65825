// Classifies a text by the probabilities of the labels after it. Generates nothing. The Rust form is `src/lib.rs`.
import { Model, Problem, Response, fields } from "corral-sdk";

export default async function handle(request) {
  const { prompt: text, labels } = await request.fields({
    prompt: fields.string(),
    labels: fields.array(fields.string(), undefined, { least: 2, most: 100 }),
  });
  check(labels);
  const model = await Model.open();
  const prompt = model.sequence(text);
  const tokens = labels.map((label) => model.tokenize(label));
  // One distribution after the prompt has the first tokens of all labels.
  const only = [...new Set(tokens.map(([first]) => first))].sort((one, other) => one - other);
  const firsts = await prompt.next({ only, statistics: true });
  const scored = [];
  for (const [index, label] of labels.entries()) {
    const sequence = prompt.fork();
    let total = logprob(firsts, tokens[index][0]);
    for (const [position, token] of tokens[index].slice(1).entries()) {
      sequence.append([tokens[index][position]]);
      total += logprob(await sequence.next({ only: [token], statistics: true }), token);
    }
    scored.push({ label, probability: Math.exp(total) });
  }
  const total = scored.reduce((sum, { probability }) => sum + probability, 0);
  scored.sort((one, other) => other.probability - one.probability);
  return Response.json({
    label: scored[0].label,
    // Small if the model would rather write something else.
    probability_of_any_label: rounded(total),
    labels: scored.map(({ label, probability }) => ({ label, share: rounded(probability / (total || 1)) })),
  });
}

/** The log probability of one of the candidates. */
function logprob({ candidates, statistics }, token) {
  return candidates.find((candidate) => candidate.token === token).logit - statistics.logNormalizer;
}

function rounded(value) {
  return Math.round(value * 1000) / 1000;
}

function check(labels) {
  for (const [index, label] of labels.entries()) {
    const longer = labels.find((other, at) => at !== index && other.startsWith(label));
    if (longer !== undefined) {
      const expected = "expected labels that differ before their end";
      throw new Problem(400, "invalid-labels", `the label "${longer}" begins with the label "${label}"; ${expected}`);
    }
  }
}
