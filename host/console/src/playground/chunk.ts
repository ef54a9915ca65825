// The parts of a streamed answer. A plugin writes them, so no value is used before its type is checked.

export interface Alternative {
  token: string;
  logprob: number;
}

export interface Token extends Alternative {
  alternatives: Alternative[];
}

export interface ToolCall {
  /** Its place among the calls of the answer. */
  index: number;
  id: string;
  name: string;
  arguments: string;
}

export interface ToolCallPart extends Omit<ToolCall, "index"> {
  index: number | undefined;
}

export interface Chunk {
  content: string;
  reasoning: string;
  toolCalls: ToolCallPart[];
  tokens: Token[];
  finishReason: string;
  usage: { prompt: number | undefined; generated: number | undefined; cached: number | undefined } | null;
  tokensPerSecond: number | undefined;
}

/** Tool calls of one answer. */
const MAX_TOOL_CALLS = 64;
/** Alternatives of a token that are kept; OpenAI's API has at most 20. */
const MAX_ALTERNATIVES = 20;

type Fields = Record<string, unknown>;

function malformed(name: string, expected: string): Error {
  return new Error(`The answer has a malformed event: "${name}" is not ${expected}.`);
}

/** Each of these accepts an absent or null value, too. */
function fields(value: unknown, name: string): Fields {
  if (value === undefined || value === null) return {};
  if (typeof value !== "object" || Array.isArray(value)) throw malformed(name, "an object");
  return value as Fields;
}

function list(value: unknown, name: string): unknown[] {
  if (value === undefined || value === null) return [];
  if (!Array.isArray(value)) throw malformed(name, "an array");
  return value;
}

function text(value: unknown, name: string): string {
  if (value === undefined || value === null) return "";
  if (typeof value !== "string") throw malformed(name, "a string");
  return value;
}

function number(value: unknown, name: string): number | undefined {
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "number" || !Number.isFinite(value)) throw malformed(name, "a finite number");
  return value;
}

function alternative(value: unknown, name: string): Alternative {
  const { token, logprob } = fields(value, name);
  if (typeof token !== "string") throw malformed("token", "a string");
  const checked = number(logprob, "logprob");
  if (checked === undefined) throw malformed("logprob", "a finite number");
  return { token, logprob: Math.min(checked, 0) };
}

function toolCall(value: unknown): ToolCallPart {
  const part = fields(value, "tool_calls");
  const called = fields(part.function, "function");
  const index = number(part.index, "index");
  if (index !== undefined && !(Number.isInteger(index) && index >= 0 && index < MAX_TOOL_CALLS)) {
    throw malformed("index", `an integer from 0 to ${MAX_TOOL_CALLS - 1}`);
  }
  const string = (value: unknown) => (typeof value === "string" ? value : "");
  return { index, id: string(part.id), name: string(called.name), arguments: string(called.arguments) };
}

function parse(data: string): unknown {
  try {
    return JSON.parse(data);
  } catch {
    throw new Error("The answer has a malformed event: its data is not JSON.");
  }
}

/** The message of an event named `error`, which holds a problem as the host writes it. */
export function problemOf(data: string): string {
  return text(fields(parse(data), "data").detail, "detail") || data;
}

/** Reads a chunk of OpenAI's chat API. An error in it is thrown, as are values of other types than the API has. */
export function chunkOf(data: string): Chunk {
  const chunk = fields(parse(data), "data");
  if (chunk.error) {
    const { error } = chunk;
    throw new Error(typeof error === "string" ? error : text(fields(error, "error").message, "message") || "no details");
  }
  const choice = fields(list(chunk.choices, "choices")[0], "choices");
  const delta = fields(choice.delta, "delta");
  const usage = fields(chunk.usage, "usage");
  return {
    content: text(delta.content, "content"),
    reasoning: text(delta.reasoning_content, "reasoning_content"),
    toolCalls: list(delta.tool_calls, "tool_calls").map(toolCall),
    tokens: list(fields(choice.logprobs, "logprobs").content, "content of logprobs").map((value) => {
      const others = list(fields(value, "content of logprobs").top_logprobs, "top_logprobs").slice(0, MAX_ALTERNATIVES);
      return {
        ...alternative(value, "content of logprobs"),
        alternatives: others.map((other) => alternative(other, "top_logprobs")),
      };
    }),
    finishReason: text(choice.finish_reason, "finish_reason"),
    usage: chunk.usage
      ? {
          prompt: number(usage.prompt_tokens, "prompt_tokens"),
          generated: number(usage.completion_tokens, "completion_tokens"),
          cached: number(fields(usage.prompt_tokens_details, "prompt_tokens_details").cached_tokens, "cached_tokens"),
        }
      : null,
    tokensPerSecond: number(fields(chunk.timings, "timings").predicted_per_second, "predicted_per_second"),
  };
}

/** Adds the parts of tool calls to the calls so far. A part without an index is a call of its own. */
export function addToolCalls(calls: ToolCall[], parts: ToolCallPart[]): void {
  for (const part of parts) {
    const index = part.index ?? calls.length;
    let call = calls.find((call) => call.index === index);
    if (!call) {
      if (calls.length === MAX_TOOL_CALLS) throw new Error(`The answer calls more than ${MAX_TOOL_CALLS} tools.`);
      call = { index, id: "", name: "", arguments: "" };
      calls.push(call);
    }
    call.id = part.id || call.id;
    call.name += part.name;
    call.arguments += part.arguments;
  }
}
