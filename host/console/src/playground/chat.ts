// A conversation over OpenAI's chat route of a deployment. It lives as long as the page, also while another one is shown.

import { callAddress, errorOf, errorText, isAbort, sendRaw } from "../api";
import { MAX_EVENT, eventsOf } from "../lines";
import { Store } from "../store";
import { type Chunk, type Token, type ToolCall, addToolCalls, chunkOf, problemOf } from "./chunk";
import { type Parameters, requestFields } from "./parameters";

/** What is known about an answer. Times are measured here, from the start of the request. */
export interface Facts {
  requestId?: string;
  firstTokenSeconds?: number;
  totalSeconds?: number;
  promptTokens?: number;
  cachedTokens?: number;
  generatedTokens?: number;
  tokensPerSecond?: number;
  finishReason?: string;
}

export interface Turn {
  role: "user" | "assistant" | "tool";
  text: string;
  /** Of an answer. */
  reasoning?: string;
  tokens?: Token[];
  toolCalls?: ToolCall[];
  facts?: Facts;
  error?: string;
  running?: boolean;
  /** Of a tool's result. */
  toolCallId?: string;
}

export const conversation = new Store<Turn[]>([]);
let running: AbortController | null = null;

/** Time between two renders of a growing answer, and longer for one with many tokens, each an element of the page. */
const RENDER_MILLISECONDS = 40;
const MANY_TOKENS = 300;
/** Limits of one answer: characters of its text, and tokens that are shown one by one. */
const MAX_TEXT = 16 * 1024 * 1024;
const MAX_TOKENS = 20_000;

/** The route of chats below a deployment's route. */
export function chatPath(route: string): string {
  const base = route.replace(/\/+$/, "");
  return base === "" ? "/v1/chat/completions" : `${base}/chat/completions`;
}

function messageOf(turn: Turn): Record<string, unknown> {
  if (turn.role === "tool") return { role: "tool", tool_call_id: turn.toolCallId, content: turn.text };
  const message: Record<string, unknown> = { role: turn.role, content: turn.text };
  if (turn.toolCalls?.length) {
    message.tool_calls = turn.toolCalls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return message;
}

/** The body of the request that continues a conversation. */
export function chatRequest(turns: Turn[], parameters: Parameters): Record<string, unknown> {
  const system = parameters.system.trim();
  return {
    ...(parameters.model === "" ? {} : { model: parameters.model }),
    messages: [
      ...(system === "" ? [] : [{ role: "system", content: system }]),
      ...turns.filter((turn) => turn.error === undefined || turn.text !== "").map(messageOf),
    ],
    stream: true,
    stream_options: { include_usage: true },
    ...requestFields(parameters),
  };
}

export function stop(): void {
  running?.abort();
}

export function clear(): void {
  stop();
  conversation.value = [];
}

/** Adds turns, and asks for the next answer. Errors of the parameters are thrown. */
export async function ask(path: string, added: Turn[], parameters: Parameters): Promise<void> {
  const turns = [...conversation.value, ...added];
  const body = chatRequest(turns, parameters);
  const abort = new AbortController();
  running?.abort();
  running = abort;
  const answer: Turn = { role: "assistant", text: "", reasoning: "", tokens: [], toolCalls: [], facts: {}, running: true };
  const show = () => {
    // After "clear", or another question, the answer has no place any more.
    if (running === abort) conversation.value = [...turns, { ...answer }];
  };
  show();
  let ticks = 0;
  const timer = setInterval(() => {
    ticks += 1;
    if (ticks % Math.ceil(((answer.tokens?.length ?? 0) + 1) / MANY_TOKENS) === 0) show();
  }, RENDER_MILLISECONDS);
  const begun = performance.now();
  try {
    await receive(path, body, abort.signal, answer, begun);
  } catch (error) {
    answer.error = isAbort(error) ? "Stopped. The server canceled the request." : errorText(error);
  } finally {
    clearInterval(timer);
    answer.running = false;
    answer.facts = { ...answer.facts, totalSeconds: (performance.now() - begun) / 1000 };
    show();
    if (running === abort) running = null;
  }
}

async function receive(path: string, body: object, signal: AbortSignal, answer: Turn, begun: number): Promise<void> {
  const response = await sendRaw(callAddress(path), {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "content-type": "application/json", accept: "text/event-stream" },
    signal,
  });
  const facts: Facts = (answer.facts = { requestId: response.headers.get("x-request-id") ?? undefined });
  if (!response.ok) throw await errorOf(response);
  if (!response.headers.get("content-type")?.includes("text/event-stream")) {
    throw new Error("This route does not stream OpenAI's chat events. Choose another route, or the raw request.");
  }
  let ended = false;
  let size = 0;
  for await (const event of eventsOf(response, MAX_EVENT)) {
    if (event.name === "comment") continue;
    if (event.data === "[DONE]") {
      ended = true;
      break;
    }
    if (event.name === "error") throw new Error(problemOf(event.data));
    const chunk = chunkOf(event.data);
    size += sizeOf(chunk);
    if (size > MAX_TEXT) throw new Error("The answer is longer than 16 MiB. The request was canceled.");
    take(chunk, answer, facts, begun);
  }
  if (!ended) throw new Error("The stream was cut off before its end.");
}

/** Characters that an answer keeps of a chunk. */
function sizeOf({ content, reasoning, toolCalls, tokens }: Chunk): number {
  let size = content.length + reasoning.length;
  for (const call of toolCalls) size += call.id.length + call.name.length + call.arguments.length;
  for (const { token, alternatives } of tokens) {
    size += alternatives.reduce((sum, alternative) => sum + alternative.token.length, token.length);
  }
  return size;
}

function take(chunk: Chunk, answer: Turn, facts: Facts, begun: number): void {
  if (chunk.content || chunk.reasoning || chunk.toolCalls.length) {
    facts.firstTokenSeconds ??= (performance.now() - begun) / 1000;
  }
  answer.text += chunk.content;
  answer.reasoning = (answer.reasoning ?? "") + chunk.reasoning;
  addToolCalls((answer.toolCalls ??= []), chunk.toolCalls);
  const tokens = (answer.tokens ??= []);
  if (tokens.length + chunk.tokens.length > MAX_TOKENS) {
    throw new Error("The answer has more than 20,000 tokens with probabilities. The request was canceled. Ask without them.");
  }
  for (const token of chunk.tokens) tokens.push(token);
  if (chunk.finishReason) facts.finishReason = chunk.finishReason;
  if (chunk.usage) {
    facts.promptTokens = chunk.usage.prompt;
    facts.generatedTokens = chunk.usage.generated;
    facts.cachedTokens = chunk.usage.cached ?? 0;
  }
  facts.tokensPerSecond = chunk.tokensPerSecond ?? facts.tokensPerSecond;
}
