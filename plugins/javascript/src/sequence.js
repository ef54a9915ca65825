// Sequences: tokens, and the model's state for them; and generations in progress.
import { integer, string, tokens as tokenList } from "./check.js";
import { call, fromHost, unwrap } from "./errors.js";
import { host } from "./host.js";
import { options } from "./sampling.js";

/** A list of tokens. Forks share the model's state: nothing is copied or computed again. */
export class Sequence {
  constructor(model, handle) {
    Object.assign(this, { model, handle });
  }

  /** The number of tokens. */
  get length() {
    return this.handle.length();
  }

  /** The tokens from a position on. */
  tokens(start = 0) {
    return Array.from(this.handle.tokens(integer(start, "start")));
  }

  /** Appends text or tokens, and returns the sequence. */
  append(text, options = {}) {
    const tokens = Array.isArray(text) ? tokenList(text, "text") : this.model.tokenize(text, options);
    if (tokens.length) call(() => this.handle.append(tokens));
    return this;
  }

  /** Appends an image or audio, the bytes of a PNG, JPEG, GIF, WebP or WAV file, for a model with a projector. Append text
   * before generating. Returns the number of positions that it takes. */
  async appendImage(file) {
    if (!(file instanceof Uint8Array)) throw new TypeError("`file` is no Uint8Array; expected the bytes of a picture");
    return call(() => host().waiting.appendImage(this.handle, file));
  }

  /** Shortens the sequence to its first tokens. */
  truncate(length) {
    call(() => this.handle.truncate(integer(length, "length")));
  }

  /** A sequence with the same tokens and state. */
  fork() {
    return new Sequence(this.model, call(() => this.handle.fork()));
  }

  /** Generates at most `maxTokens` tokens. Without samplers, always the most likely token. */
  generate(maxTokens, settings = {}) {
    const [chunks, outcome] = call(() => host().streams.generate(this.handle, options(maxTokens, settings)));
    return new Generation(chunks, outcome);
  }

  /** The distribution of the next token: its `candidates`, each with `token` and `logit`, the most likely first. `top`
   * candidates, or those of `only`, or with `top: null` all `logits`. */
  async next({ top = 20, only, statistics = false, matcher } = {}) {
    return call(() => host().waiting.next(this.handle, request(top, only, statistics, matcher)));
  }

  /** Saves the sequence under a name, beyond this request. */
  async save(name) {
    call(() => host().waiting.saveSnapshot(this.handle, string(name, "name")));
  }
}

/** `Sequence.next` for several sequences, which share a step. The first error is thrown. */
export async function nextMany(sequences, { top = 20, only, statistics = false } = {}) {
  const requests = sequences.map(({ handle }) => [handle, request(top, only, statistics)]);
  return call(() => host().waiting.nextMany(requests)).map(unwrap);
}

function request(top, only, statistics, matcher) {
  const part = only
    ? { tag: "only", val: tokenList(only, "only") }
    : top === null
      ? { tag: "logits" }
      : { tag: "top", val: integer(top, "top") };
  return { part, statistics: Boolean(statistics), matcher: matcher?.handle ?? null };
}

/** A generation. Iterate over its chunks, each with `text` and `tokens`, or await `text()`. Afterwards `outcome()` tells
 * why and with how many tokens it ended. */
export class Generation {
  #chunks;
  #future;
  #outcome;

  constructor(chunks, outcome) {
    this.#chunks = chunks;
    this.#future = outcome;
  }

  async *[Symbol.asyncIterator]() {
    try {
      while (this.#chunks) {
        const [chunk] = await this.#chunks.read(1);
        if (!chunk) return;
        yield chunk;
      }
    } finally {
      // At its end, or if the loop was left: then this cancels the generation.
      this.cancel();
    }
  }

  /** Waits for the end, and returns the remaining output as one chunk. Throws the generation's error. */
  async rest() {
    const rest = { text: "", tokens: [], logprobs: [] };
    for await (const { text, tokens, logprobs } of this) {
      rest.text += text;
      rest.tokens.push(...tokens);
      rest.logprobs.push(...logprobs);
    }
    await this.outcome();
    return rest;
  }

  /** Waits for the end, and returns the remaining text. Throws the generation's error. */
  async text() {
    return (await this.rest()).text;
  }

  /** Waits for the end: `finish`, `promptTokens`, `cachedTokens`, `generatedTokens`, … Throws the generation's error.
   * Call it after the chunks: the stream's end does not tell whether it succeeded. */
  async outcome() {
    try {
      this.#outcome ??= await this.#future.read();
    } catch (error) {
      throw fromHost(error);
    }
    return unwrap(this.#outcome);
  }

  /** Ends the generation now. */
  cancel() {
    this.takeChunks()?.drop();
  }

  /** The stream of chunks, for the host to frame. The caller reads `outcome` afterwards. */
  takeChunks() {
    const chunks = this.#chunks;
    this.#chunks = undefined;
    return chunks;
  }
}
