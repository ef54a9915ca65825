/** A scripted host: tests a plugin's logic under `node --test`, without WebAssembly or a model. */
import type { CorralError, Request, Response, Token } from "./index.js";

/** The special tokens; their numbers follow those of the bytes. */
export const SPECIAL: string[];
/** The token that ends a generation. */
export const END: Token;

/** Answers by prompt: texts, or errors that the model's calls throw. */
export class Script {
  constructor(
    answers: Record<string, string | CorralError>,
    options?: { configuration?: Record<string, string>; context?: number; chatTemplate?: string | null },
  );
  /** The calls of `Sequence.generate`, with settings in the order in which they reach the host. */
  readonly generations: { prompt: string; settings: [name: string, ...values: unknown[]][] }[];
  /** The tokens that a host would compute. */
  readonly computed: number;
  /** What the plugin's log would have. */
  readonly logged: string[];
  /** Runs an async function with this script as its host. One script runs at a time. */
  run<Value>(work: () => Promise<Value>): Promise<Value>;
  /** Sends a request to a handler and reads the response, as a client that disconnects after so many events. */
  call(
    handle: (request: Request) => Promise<Response>,
    request: Request,
    options?: { disconnectAfter?: number },
  ): Promise<Answered>;
  /** The text of tokens, with special ones written out. */
  text(tokens: Token[]): string;
  /** The tokens that the scripted model generates after these. */
  continuation(tokens: Token[]): Token[];
  /** Counts the tokens after the longest prefix that was computed before. Returns the number of others. */
  compute(tokens: Token[]): number;
}

/** A response that a test reads. */
export class Answered {
  private constructor();
  readonly status: number;
  readonly headers: Record<string, string>;
  readonly body: Uint8Array;
  /** The body as text. */
  text(): string;
  /** The body as JSON. */
  json(): any;
  /** The data of server-sent events; JSON where it is JSON. */
  events(): any[];
}
