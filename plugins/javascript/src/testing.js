// A scripted host: tests a plugin's logic under `node --test`, without WebAssembly or a model.
//
//     const script = new Script({ "12+7=": "19" });
//     const answered = await script.call(handle, new Request("POST", "/", { body: { prompt: "12+7=" } }));
//     assert.deepEqual(answered.json(), { text: "19" });
//
// A script maps prompts to answers, and to errors that the model's calls throw. A prompt that it does not cover is an error,
// so no test passes by accident. There is one token for each byte, and the tokens of `SPECIAL`. `Script.generations` records
// settings, `Script.computed` counts the tokens that a host would compute.
import { NotFound } from "./errors.js";
import { install } from "./host.js";
import { answer } from "./http.js";
import { decodeLossy, encode, joined } from "./utf8.js";

export const SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
export const END = 256;

/** Answers by prompt. Values are texts, or errors. `configuration` is the deployment's. */
export class Script {
  generations = [];
  computed = 0;
  logged = [];
  snapshots = new Map();
  #known = new Set();

  constructor(answers, { configuration = {}, context = 4096, chatTemplate = null } = {}) {
    Object.assign(this, { answers, configuration, context, chatTemplate });
  }

  /** Runs an async function with this script as its host. One script runs at a time. */
  async run(work) {
    const before = install(interfaces(this));
    try {
      return await work();
    } finally {
      install(before);
    }
  }

  /** Sends a request to a handler and reads the response, as a client that disconnects after so many events. */
  call(handle, request, { disconnectAfter = Infinity } = {}) {
    return this.run(async () => {
      const { status, headers, body, framed } = await answer(handle, request);
      const parts = [];
      const read = async (source) => {
        for await (const part of source) {
          if (parts.length >= disconnectAfter) return;
          parts.push(part);
        }
      };
      if (framed) await read(frames(framed));
      if (body instanceof Uint8Array) parts.push(body);
      else await read(body);
      return new Answered(status, headers, joined(parts));
    });
  }

  /** The text of tokens, with special ones written out. */
  text(tokens) {
    return decodeLossy(joined(tokens.map((token) => (token < 256 ? [token] : encode(SPECIAL[token - 256])))));
  }

  /** The tokens that the scripted model generates after these. */
  continuation(tokens) {
    const text = this.text(tokens);
    for (const [prompt, found] of Object.entries(this.answers)) {
      if (typeof found !== "string") {
        if (text.endsWith(prompt)) throw found;
        continue;
      }
      const at = text.lastIndexOf(prompt);
      const written = text.slice(at + prompt.length);
      if (at >= 0 && found.startsWith(written)) return [...encode(found.slice(written.length)), END];
    }
    const known = Object.keys(this.answers).map((prompt) => JSON.stringify(prompt));
    throw new NotFound(`the script has no answer to ${JSON.stringify(text)}; it has ${known.join(", ")}`);
  }

  /** Counts the tokens after the longest prefix that was computed before. Returns the number of others. */
  compute(tokens) {
    const key = (length) => tokens.slice(0, length).join();
    let cached = tokens.length - 1;
    while (cached > 0 && !this.#known.has(key(cached))) cached--;
    this.computed += tokens.length - cached;
    for (let length = cached + 1; length <= tokens.length; length++) this.#known.add(key(length));
    return cached;
  }
}

async function* frames({ generation, around }) {
  for await (const { text } of generation) {
    if (text) yield joined([around.before, encode(JSON.stringify(text)), around.after]);
  }
}

/** A response that a test reads. */
export class Answered {
  constructor(status, headers, body) {
    Object.assign(this, { status, headers, body });
  }

  /** The body as text. */
  text() {
    return decodeLossy(this.body);
  }

  /** The body as JSON. */
  json() {
    return JSON.parse(this.text());
  }

  /** The data of server-sent events; JSON where it is JSON. */
  events() {
    const found = [];
    for (const event of this.text().split("\n\n")) {
      const lines = event.split("\n").filter((line) => line.startsWith("data: "));
      if (!lines.length) continue;
      const data = lines.map((line) => line.slice(6)).join("\n");
      try {
        found.push(JSON.parse(data));
      } catch {
        found.push(data);
      }
    }
    return found;
  }
}

class ScriptedModel {
  constructor(script) {
    this.script = script;
  }

  info() {
    const { context, chatTemplate } = this.script;
    return {
      name: "scripted",
      vocabulary: 256 + SPECIAL.length,
      context,
      embeddingLength: 4,
      bos: null,
      eos: END,
      endOfGeneration: [END, END + 2],
      chatTemplate,
      canFork: true,
      adapters: [],
    };
  }

  requestCounts() {
    return { running: 0, waiting: 0, maxRunning: 1 };
  }

  tokenize(text, special) {
    if (!special) return [...encode(text)];
    const parts = text.split(/(<\|endoftext\|>|<\|im_start\|>|<\|im_end\|>)/);
    return parts.flatMap((part) => (SPECIAL.includes(part) ? [256 + SPECIAL.indexOf(part)] : [...encode(part)]));
  }

  detokenize(tokens, special) {
    return encode(this.script.text(tokens.filter((token) => special || token < 256)));
  }
}

class ScriptedSequence {
  constructor(script, held) {
    Object.assign(this, { script, held });
  }

  append(tokens) {
    this.held.push(...tokens);
  }

  truncate(length) {
    this.held.length = Math.min(length, this.held.length);
  }

  fork() {
    return new ScriptedSequence(this.script, [...this.held]);
  }

  length() {
    return this.held.length;
  }

  tokens(start) {
    return this.held.slice(start);
  }
}

/** Records the settings in the order of the calls. */
function recorder(maxTokens) {
  const settings = [["maxTokens", maxTokens]];
  const record = (name) => (...values) => void settings.push([name, ...values]);
  return new Proxy({ settings }, { get: (target, name) => target[name] ?? record(name) });
}

/** The stream of chunks and the future of the outcome of one generation. */
function generation(script, sequence, { settings }) {
  const prompt = [...sequence.held];
  script.generations.push({ prompt: script.text(prompt), settings });
  const setting = (name) => settings.filter(([one]) => one === name).map(([, value]) => value);
  const left = [];
  const cachedTokens = script.compute(prompt);
  const outcome = { finish: "length", promptTokens: prompt.length, cachedTokens, generatedTokens: 0 };
  let error;
  try {
    for (const token of script.continuation(prompt).slice(0, setting("maxTokens")[0])) {
      outcome.generatedTokens++;
      left.push(token);
      const stop = setting("stop").find((stop) => script.text(left).endsWith(stop));
      if (token === END || stop) {
        outcome.finish = token === END ? "end" : "stop";
        left.splice(stop ? -encode(stop).length : -1);
        break;
      }
    }
  } catch (thrown) {
    error = thrown;
  }
  script.computed += Math.max(0, outcome.generatedTokens - 1);
  const read = async () => {
    const tokens = left.splice(0, 1);
    sequence.held.push(...tokens);
    return tokens.length ? [{ tokens, text: script.text(tokens), logprobs: [] }] : [];
  };
  const future = async () => {
    if (error) throw error;
    return { tag: "ok", val: outcome };
  };
  return [{ read, drop: () => left.splice(0) }, { read: future }];
}

function distribution(script, { held }, { part }) {
  script.compute(held);
  const [token] = script.continuation(held);
  const others = [...encode("abcdefgh")].filter((other) => other !== token);
  const all = [token, ...others].map((one) => ({ token: one, logit: one === token ? 5 : 0 }));
  const candidates = part.tag === "only" ? all.filter((one) => part.val.includes(one.token)) : all.slice(0, part.val);
  return { candidates, logits: [], statistics: null, position: held.length };
}

/** Counts of letters: texts with the same letters have the same vector. */
function vector(tokens) {
  const counts = [0, 1, 2, 3].map((part) => tokens.filter((token) => token % 4 === part).length);
  const length = Math.hypot(...counts) || 1;
  return counts.map((count) => count / length);
}

/** The interfaces of `host()`. */
function interfaces(script) {
  const { snapshots } = script;
  const snapshot = (name) => {
    if (!snapshots.has(name)) throw new NotFound(`there is no snapshot ${JSON.stringify(name)}`);
    return snapshots.get(name);
  };
  return {
    budget: { remaining: () => ({ tokens: null, time: 1e12 }) },
    constraints: {},
    environment: { getEnvironment: () => Object.entries(script.configuration) },
    inference: {
      Options: function Options(maxTokens) {
        return recorder(maxTokens);
      },
      Sequence: { create: () => new ScriptedSequence(script, []) },
    },
    log: (text) => script.logged.push(text),
    models: { available: () => ["scripted"] },
    streams: { generate: (sequence, options) => generation(script, sequence, options) },
    waiting: {
      openModel: (name) => {
        if (name === null || name === "scripted") return new ScriptedModel(script);
        throw new NotFound(`there is no model ${JSON.stringify(name)}; expected "scripted"`);
      },
      compileConstraint: (_, grammar) => grammar,
      embed: (_, inputs) => inputs.map(vector),
      next: (sequence, request) => distribution(script, sequence, request),
      nextMany: (requests) => requests.map((one) => ({ tag: "ok", val: distribution(script, ...one) })),
      appendImage: (sequence, file) => {
        const tokens = [...encode(`[image of ${file.length} bytes]`)];
        sequence.append(tokens);
        return tokens.length;
      },
      saveSnapshot: (sequence, name) => void snapshots.set(name, [...sequence.held]),
      restoreSnapshot: (_, name) => new ScriptedSequence(script, [...snapshot(name)]),
      deleteSnapshot: (_, name) => void (snapshot(name), snapshots.delete(name)),
    },
  };
}
