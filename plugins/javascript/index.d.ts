/** Plugins for Corral in JavaScript: types of the package's main module. */

/** An index into the model's vocabulary. */
export type Token = number;

/** An error that a handler may throw: the client gets its status, code and detail. */
export class CorralError extends Error {
  constructor(detail: string);
  readonly status: number;
  readonly code: string;
  readonly headers: Record<string, string>;
  /** The problem details. */
  problem(): { type: string; status: number; code: string; detail: string };
}
/** An error that the plugin defines. `code` is stable: clients may match on it. */
export class Problem extends CorralError {
  constructor(status: number, code: string, detail: string);
}
/** An argument is invalid. */
export class Invalid extends CorralError {}
/** No model, snapshot or sampling plugin of this name is available. */
export class NotFound extends CorralError {}
/** The deployment does not grant this operation or this amount. */
export class NotGranted extends CorralError {}
/** The call needs more positions than a sequence may have. */
export class ContextFull extends CorralError {
  constructor(needed: number, limit: number);
  readonly needed: number;
  readonly limit: number;
}
/** A queue, quota or rate limit is full. Retrying after `retryAfter` seconds can succeed. */
export class Refused extends CorralError {
  constructor(reason: string, retryAfter: number);
  readonly retryAfter: number;
}
/** The request's deadline passed. */
export class Deadline extends CorralError {
  constructor();
}
/** The client disconnected, or the operator canceled the request. */
export class Cancelled extends CorralError {
  constructor();
}
/** The model, the device or the disk failed. */
export class Failed extends CorralError {}

export interface ModelInfo {
  name: string;
  vocabulary: number;
  context: number;
  embeddingLength: number;
  bos: Token | null;
  eos: Token | null;
  endOfGeneration: Token[];
  chatTemplate: string | null;
  canFork: boolean;
  adapters: string[];
}

/** Names of the models that this deployment may open. The first is the default. */
export function availableModels(): string[];
/** The deployment's `[configuration]`. */
export function configuration(): Record<string, string>;
/** The request's remaining tokens, or null without a quota, and its time in nanoseconds. */
export function remainingBudget(): { tokens: number | null; time: number };

/** An opened model. */
export class Model {
  private constructor();
  readonly info: ModelInfo;
  /** Opens a model by name; without a name, the default model. */
  static open(name?: string): Promise<Model>;
  /** How many requests of the model run and wait, those of all deployments, and how many may run at a time. */
  requestCounts(): { running: number; waiting: number; maxRunning: number };
  /** Converts text to tokens. With `special`, control tokens in the text are read as such. */
  tokenize(text: string, options?: { special?: boolean }): Token[];
  /** Converts tokens to text; incomplete characters become U+FFFD. */
  detokenize(tokens: Token[], options?: { special?: boolean }): string;
  /** Creates a sequence of a prompt. With `special`, control tokens in its text are read as such. */
  sequence(prompt?: string | Token[], options?: { special?: boolean }): Sequence;
  /** Computes one vector of length 1 for each text. */
  embed(texts: string[]): Promise<number[][]>;
  /** Loads the sequence that `Sequence.save` saved under this name. */
  restore(name: string): Promise<Sequence>;
  /** Deletes a snapshot. */
  deleteSnapshot(name: string): Promise<void>;
  /** Compiles a JSON schema. */
  jsonSchema(schema: object | boolean): Promise<Constraint>;
  /** Compiles a grammar of any JSON object. */
  jsonObject(): Promise<Constraint>;
  /** Compiles a regular expression, which the whole text matches. */
  regex(pattern: string | RegExp): Promise<Constraint>;
  /** Compiles a grammar in llguidance's variant of Lark. */
  lark(grammar: string): Promise<Constraint>;
  /** Compiles a grammar in llama.cpp's GBNF. */
  gbnf(grammar: string): Promise<Constraint>;
}

/** A compiled grammar. */
export class Constraint {
  private constructor();
  /** A matcher at the start of the text, for `Sequence.next`. */
  matcher(): Matcher;
}

/** Tracks which tokens a constraint allows next, for plugins that choose tokens themselves. */
export class Matcher {
  private constructor();
  /** A copy in the same state. */
  fork(): Matcher;
  /** Whether the token may follow. */
  allows(token: Token): boolean;
  /** Advances by one token. */
  accept(token: Token): void;
  /** Advances over the tokens that the grammar forces next, and returns them. */
  forced(maxTokens: number): Token[];
  /** Whether only an end-of-generation token can follow. */
  isComplete(): boolean;
}

/** Settings of `Sequence.generate`. Without samplers, always the most likely token is generated. */
export interface Settings {
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  penalties?: { lastN?: number; repeat?: number; frequency?: number; presence?: number };
  dry?: { multiplier: number; base?: number; allowedLength?: number; lastN?: number; breakers?: string[] };
  logitBias?: Record<Token, number>;
  seed?: number;
  stop?: string | string[];
  ignoreEos?: boolean;
  constraint?: Constraint;
  /** The log probability of each token, and of so many most likely ones. */
  logprobs?: number;
  /** The name of a LoRA adapter. */
  adapter?: string;
}

/** What to return of a distribution: `top` candidates, those of `only`, or with `top: null` all `logits`. */
export interface NextOptions {
  top?: number | null;
  only?: Token[];
  statistics?: boolean;
}

/** The model's distribution of the next token. */
export interface Distribution {
  candidates: { token: Token; logit: number }[];
  logits: number[];
  statistics: { logNormalizer: number; entropy: number } | null;
  position: number;
}

/** A list of tokens. Forks share the model's state: nothing is copied or computed again. */
export class Sequence {
  private constructor();
  readonly model: Model;
  /** The number of tokens. */
  readonly length: number;
  /** The tokens from a position on. */
  tokens(start?: number): Token[];
  /** Appends text or tokens, and returns the sequence. */
  append(text: string | Token[], options?: { special?: boolean }): this;
  /** Appends an image or audio, the bytes of a PNG, JPEG, GIF, WebP or WAV file. Returns the number of positions that it takes. */
  appendImage(file: Uint8Array): Promise<number>;
  /** Shortens the sequence to its first tokens. */
  truncate(length: number): void;
  /** A sequence with the same tokens and state. */
  fork(): Sequence;
  /** Generates at most `maxTokens` tokens. */
  generate(maxTokens: number, settings?: Settings): Generation;
  /** The distribution of the next token. */
  next(options?: NextOptions & { matcher?: Matcher }): Promise<Distribution>;
  /** Saves the sequence under a name, beyond this request. */
  save(name: string): Promise<void>;
}

/** `Sequence.next` for several sequences, which share a step. The first error is thrown. */
export function nextMany(sequences: Sequence[], options?: NextOptions): Promise<Distribution[]>;

/** A part of the generated output. `logprobs` has an entry for each token if the setting is there. */
export interface Chunk {
  text: string;
  tokens: Token[];
  logprobs: { logprob: number; top: [Token, number][] }[];
}

export interface Outcome {
  finish: "end" | "stop" | "length";
  promptTokens: number;
  cachedTokens: number;
  generatedTokens: number;
  /** Times in nanoseconds. */
  queueTime: number;
  prefillTime: number;
  decodeTime: number;
}

/** A generation in progress. Leaving a loop over its chunks cancels it. */
export class Generation implements AsyncIterable<Chunk> {
  private constructor();
  [Symbol.asyncIterator](): AsyncGenerator<Chunk, void, undefined>;
  /** Waits for the end, and returns the remaining output as one chunk. */
  rest(): Promise<Chunk>;
  /** Waits for the end, and returns the remaining text. */
  text(): Promise<string>;
  /** Waits for the end. Call it after the chunks: the stream's end does not tell whether it succeeded. */
  outcome(): Promise<Outcome>;
  /** Ends the generation now. */
  cancel(): void;
}

/** The most likely token. */
export function greedy(distribution: Pick<Distribution, "candidates">): Token;
/** Draws a token from the candidates, with a generator of `random`. */
export function choose(
  distribution: Pick<Distribution, "candidates">,
  generator?: () => number,
  temperature?: number,
): Token;
/** A generator of random numbers from 0 to 1 that repeats them for the same seed. */
export function random(seed: number): () => number;
/** Log probabilities of logits. */
export function logSoftmax(logits: number[]): number[];
/** Probabilities of logits. */
export function softmax(logits: number[]): number[];
/** Keeps the smallest set of most likely entries whose probabilities sum to `mass`; the others become 0. */
export function topP(probabilities: number[], mass: number): number[];

/** A reader of `fields`. */
export interface Field<Value> {
  readonly expected: string;
  accepts(value: unknown): boolean;
  readonly initial: Value | undefined;
}
export type FieldValues<Readers> = { [Name in keyof Readers]: Readers[Name] extends Field<infer Value> ? Value : never };

/** Readers for the fields of a JSON request. A field without an initial value is required; one with it may be left out or
 * null. A value of another type or out of its range, a missing field and one that no reader names are 400. */
export const fields: {
  /** Text. */
  string(): Field<string>;
  string<Initial extends string | null>(initial: Initial): Field<string | Initial>;
  /** A number without a fraction; by default from 0 to 2^31 - 1. */
  integer(initial?: number, range?: { least?: number; most?: number }): Field<number>;
  integer(initial: null, range?: { least?: number; most?: number }): Field<number | null>;
  /** A finite number. */
  number(initial?: number, range?: { least?: number; most?: number }): Field<number>;
  number(initial: null, range?: { least?: number; most?: number }): Field<number | null>;
  /** True or false. */
  boolean(initial?: boolean): Field<boolean>;
  /** A list of values that another reader accepts. */
  array<Item>(item: Field<Item>, initial?: Item[], length?: { least?: number; most?: number }): Field<Item[]>;
  /** Any value, for a function that checks it itself. */
  value(initial?: unknown): Field<any>;
  /** The fields of a JSON value. */
  read<Readers extends Record<string, Field<unknown>>>(body: unknown, readers: Readers): FieldValues<Readers>;
};

/** An HTTP request. Header names are in lower case. */
export class Request {
  constructor(
    method: string,
    target: string,
    options?: { headers?: Record<string, string>; body?: string | Uint8Array | object | AsyncIterable<Uint8Array> },
  );
  readonly method: string;
  readonly path: string;
  /** Of several members with one name, the first. */
  readonly query: Record<string, string>;
  readonly headers: Record<string, string>;
  /** Reads the whole body; one larger than `limit` bytes (default 1 MiB) is 413. */
  body(limit?: number): Promise<Uint8Array>;
  /** Reads the body as UTF-8. */
  text(limit?: number): Promise<string>;
  /** Reads the body as JSON. */
  json(limit?: number): Promise<any>;
  /** Reads the body as a JSON object with these fields. */
  fields<Readers extends Record<string, Field<unknown>>>(readers: Readers): Promise<FieldValues<Readers>>;
}

/** Writes server-sent events. Writing waits until the client has taken the event, and throws `Cancelled` after the client
 * has disconnected. */
export class EventWriter {
  private constructor();
  /** Sends an event, with a name if it has one. */
  data(text: string, name?: string): Promise<void>;
  /** Sends an event with a value as JSON. */
  json(value: unknown, name?: string): Promise<void>;
  /** Sends bytes as they are. */
  bytes(data: Uint8Array): Promise<void>;
}

/** An HTTP response. */
export class Response {
  constructor(
    body?: Uint8Array | AsyncIterable<Uint8Array>,
    options?: { status?: number; headers?: Record<string, string> },
  );
  status: number;
  headers: Record<string, string>;
  body: Uint8Array | AsyncIterable<Uint8Array>;
  /** Text. */
  static text(text: string, status?: number): Response;
  /** A value as JSON. */
  static json(value: unknown, status?: number): Response;
  /** The problem details of an error. */
  static problem(error: CorralError): Response;
  /** Server-sent events: a function that writes them, or an iterator of their values. */
  static events(write: ((events: EventWriter) => Promise<void>) | AsyncIterable<unknown>): Response;
  /** An event with the value `event(text)` for each chunk of a generation's text. The host writes these without running
   * the plugin. Then `end` writes the remaining events, after `await generation.outcome()`. */
  static textEvents(
    generation: Generation,
    event: (text: string) => unknown,
    end?: (events: EventWriter) => Promise<void>,
  ): Response;
}
