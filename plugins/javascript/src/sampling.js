// Samplers: settings of the host's, and functions for plugins that choose tokens themselves.
import { integer, number, string } from "./check.js";
import { host } from "./host.js";

const SETTINGS = [
  [
    "penalties",
    ({ lastN = 64, repeat = 1, frequency = 0, presence = 0 }) => ({
      lastN: integer(lastN, "penalties.lastN"),
      repeat: number(repeat, "penalties.repeat"),
      frequency: number(frequency, "penalties.frequency"),
      presence: number(presence, "penalties.presence"),
    }),
  ],
  [
    "dry",
    ({ multiplier, base = 1.75, allowedLength = 2, lastN = 1024, breakers = ["\n", ":", '"', "*"] }) => ({
      multiplier: number(multiplier, "dry.multiplier"),
      base: number(base, "dry.base"),
      allowedLength: integer(allowedLength, "dry.allowedLength"),
      lastN: integer(lastN, "dry.lastN"),
      breakers: breakers.map((breaker) => string(breaker, "dry.breakers")),
    }),
  ],
  [
    "logitBias",
    (biases) =>
      Object.entries(biases).map(([token, bias]) => [integer(Number(token), "logitBias"), number(bias, "logitBias")]),
  ],
  // The temperature comes first, as in OpenAI's API: filters apply to the tempered distribution.
  ["temperature", number],
  ["topK", integer],
  ["topP", number],
  ["minP", number],
  ["seed", (value, name) => integer(value, name, 2 ** 53)],
  ["logprobs", (value, name) => integer(value, name, 256)],
  ["adapter", string],
];

/** Creates the host's options from the settings of `Sequence.generate`. */
export function options(maxTokens, { stop = [], ignoreEos = false, constraint, ...settings }) {
  const made = new (host().inference.Options)(integer(maxTokens, "maxTokens"));
  for (const [name, convert] of SETTINGS) {
    const value = settings[name];
    delete settings[name];
    if (value !== undefined && value !== null) made[name](convert(value, name));
  }
  const [unknown] = Object.keys(settings);
  if (unknown) throw new TypeError(`\`${unknown}\` is not a setting of generate`);
  for (const text of [stop].flat()) made.stop(string(text, "stop"));
  if (ignoreEos) made.ignoreEos();
  if (constraint) made.constrain(constraint.handle);
  return made;
}

/** The most likely token of a distribution of `Sequence.next`. */
export function greedy(distribution) {
  return distribution.candidates[0].token;
}

/** Log probabilities: the logits minus the logarithm of the sum of their exponentials. */
export function logSoftmax(logits) {
  const highest = logits.reduce((one, other) => Math.max(one, other), -Infinity);
  const total = highest + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - highest), 0));
  return logits.map((logit) => logit - total);
}

/** Probabilities of logits. */
export function softmax(logits) {
  return logSoftmax(logits).map(Math.exp);
}

/** Keeps the smallest set of most likely entries whose probabilities sum to `mass`; the others become 0. The result sums
 * to 1. */
export function topP(probabilities, mass) {
  const order = probabilities.map((_, index) => index).sort((one, other) => probabilities[other] - probabilities[one]);
  const kept = probabilities.map(() => 0);
  let total = 0;
  for (const index of order) {
    kept[index] = probabilities[index];
    total += probabilities[index];
    if (total >= mass) break;
  }
  return kept.map((value) => value / total);
}

/** A generator of random numbers from 0 to 1 that repeats them for the same seed. */
export function random(seed) {
  // SplitMix with a state of 32 bits.
  let state = integer(seed, "seed", 2 ** 53) | 0;
  return () => {
    state = (state + 0x9e3779b9) | 0;
    let mixed = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97);
    return ((mixed ^ (mixed >>> 15)) >>> 0) / 2 ** 32;
  };
}

/** Draws a token from the candidates of a distribution, with a generator of `random`. */
export function choose({ candidates }, generator = Math.random, temperature = 1) {
  if (temperature <= 0) return candidates[0].token;
  const weights = softmax(candidates.map(({ logit }) => logit / temperature));
  let left = generator();
  for (const [index, weight] of weights.entries()) {
    left -= weight;
    if (left < 0) return candidates[index].token;
  }
  // The sum of the weights can be less than 1 by rounding.
  return candidates[0].token;
}
