// Models: metadata, tokenization and embeddings.
import { string, tokens as tokenList } from "./check.js";
import { call } from "./errors.js";
import { Constraint } from "./grammar.js";
import { host } from "./host.js";
import { Sequence } from "./sequence.js";
import { decodeLossy } from "./utf8.js";

/** Names of the models that this deployment may open. The first is the default. */
export function availableModels() {
  return host().models.available();
}

/** The deployment's `[configuration]`. */
export function configuration() {
  return Object.fromEntries(host().environment.getEnvironment());
}

/** The request's remaining `tokens`, or null without a quota, and `time` in nanoseconds. */
export function remainingBudget() {
  return host().budget.remaining();
}

/** An opened model. `info` has its metadata: `name`, `vocabulary`, `context`, `chatTemplate`, … */
export class Model {
  constructor(handle) {
    this.handle = handle;
    this.info = handle.info();
  }

  /** Opens a model by name; without a name, the default model. */
  static async open(name) {
    return new Model(call(() => host().waiting.openModel(name === undefined ? null : string(name, "name"))));
  }

  /** How many requests of the model are `running` and `waiting`, those of all deployments; at most `maxRunning` run. */
  requestCounts() {
    return call(() => this.handle.requestCounts());
  }

  /** Converts text to tokens. With `special`, control tokens in the text are read as such. */
  tokenize(text, { special = false } = {}) {
    return call(() => this.handle.tokenize(string(text, "text"), special));
  }

  /** Converts tokens to text; incomplete characters become U+FFFD. */
  detokenize(tokens, { special = false } = {}) {
    return decodeLossy(Uint8Array.from(call(() => this.handle.detokenize(tokenList(tokens, "tokens"), special))));
  }

  /** Creates a sequence of a prompt. With `special`, control tokens in its text are read as such. */
  sequence(prompt = "", options = {}) {
    const sequence = new Sequence(this, call(() => host().inference.Sequence.create(this.handle)));
    if (typeof prompt === "string" && prompt && this.info.bos !== null) sequence.append([this.info.bos]);
    return sequence.append(prompt, options);
  }

  /** Computes one vector of length 1 for each text. */
  async embed(texts) {
    const first = this.info.bos === null ? [] : [this.info.bos];
    const inputs = texts.map((text) => [...first, ...this.tokenize(text)]);
    return call(() => host().waiting.embed(this.handle, inputs, null, null));
  }

  /** Loads the sequence that `Sequence.save` saved under this name. */
  async restore(name) {
    return new Sequence(this, call(() => host().waiting.restoreSnapshot(this.handle, string(name, "name"))));
  }

  /** Deletes a snapshot. */
  async deleteSnapshot(name) {
    call(() => host().waiting.deleteSnapshot(this.handle, string(name, "name")));
  }

  /** Compiles a JSON schema. */
  jsonSchema(schema) {
    return this.#compile("json-schema", JSON.stringify(schema));
  }

  /** Compiles a grammar of any JSON object. */
  jsonObject() {
    return this.#compile("json-object");
  }

  /** Compiles a regular expression, which the whole text matches. */
  regex(pattern) {
    return this.#compile("regex", typeof pattern === "object" ? pattern.source : pattern);
  }

  /** Compiles a grammar in llguidance's variant of Lark. */
  lark(grammar) {
    return this.#compile("lark", grammar);
  }

  /** Compiles a grammar in llama.cpp's GBNF. */
  gbnf(grammar) {
    return this.#compile("gbnf", grammar);
  }

  async #compile(tag, text) {
    const grammar = tag === "json-object" ? { tag } : { tag, val: string(text, "grammar") };
    return new Constraint(call(() => host().waiting.compileConstraint(this.handle, grammar)));
  }
}
