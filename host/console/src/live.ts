// The connection to `GET /events`: one for the whole page, opened again when it breaks. A hidden page closes it
// after a while, since browsers allow six connections to a server for all their tabs together.

import { errorText, isAbort, needsToken, refusal, send, token } from "./api";
import { History } from "./history";
import { MAX_LINE, eventsOf } from "./lines";
import { Store } from "./store";
import type { RequestSnapshot, Snapshot } from "./types";

export type LinkState = "connecting" | "live" | "broken" | "refused";

export const snapshot = new Store<Snapshot | null>(null);
export const link = new Store<{ state: LinkState; detail: string }>({ state: "connecting", detail: "" });
export const history = new History();

/** Waits before the next attempt: doubled after each failure, up to the last. */
const FIRST_WAIT = 1000;
const LONGEST_WAIT = 15_000;
/** The server sends an event each second; after this silence the connection counts as broken. */
const SILENCE = 15_000;
/** A page that is hidden for this long has no connection. */
const HIDDEN = 60_000;
/** Snapshots from which the speed of each request is computed. */
const RECENT = 4;

const recent: { time: number; requests: Map<string, RequestSnapshot> }[] = [];

/** Tokens a second of a request over the last seconds; null for one that just arrived. */
export function requestSpeed(request: RequestSnapshot): number | null {
  const now = recent.at(-1);
  const then = recent.find((older) => older.requests.has(request.request_id));
  const before = then?.requests.get(request.request_id);
  if (!now || !then || !before || now.time <= then.time) return null;
  return ((request.generated_tokens - before.generated_tokens) * 1000) / (now.time - then.time);
}

function take(next: Snapshot): void {
  history.add(next);
  recent.push({ time: next.time_ms, requests: new Map(next.requests.map((request) => [request.request_id, request])) });
  if (recent.length > RECENT) recent.shift();
  snapshot.value = next;
}

/** Reads events until the connection breaks. */
async function read(signal: AbortSignal, silent: () => void): Promise<void> {
  let timer = setTimeout(silent, SILENCE);
  try {
    const response = await send("/events", { signal, headers: { accept: "text/event-stream" } });
    for await (const event of eventsOf(response, MAX_LINE)) {
      clearTimeout(timer);
      timer = setTimeout(silent, SILENCE);
      if (event.name === "error") throw new Error((JSON.parse(event.data) as { detail?: string }).detail ?? event.data);
      if (event.name !== "snapshot") continue;
      take(JSON.parse(event.data) as Snapshot);
      link.value = { state: "live", detail: "" };
    }
  } finally {
    clearTimeout(timer);
  }
}

/** Whether the page is hidden, and has been for a while: nothing keeps a connection then. */
export const asleep = new Store(false);

function watchVisibility(signal: AbortSignal): void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const change = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => (asleep.value = true), HIDDEN);
    else asleep.value = false;
  };
  change();
  document.addEventListener("visibilitychange", change, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
}

/** Keeps the connection until `signal` aborts. A new token opens it again at once. */
export async function follow(signal: AbortSignal): Promise<void> {
  watchVisibility(signal);
  let wait = FIRST_WAIT;
  while (!signal.aborted) {
    if (asleep.value) {
      link.value = { state: "connecting", detail: "" };
      await nextChange(asleep, signal);
      wait = FIRST_WAIT;
      continue;
    }
    const attempt = new AbortController();
    const stop = () => attempt.abort();
    signal.addEventListener("abort", stop);
    let changed = false;
    const change = () => {
      changed = true;
      stop();
    };
    const unwatch = [token.watch(change), asleep.watch(change)];
    let detail = "The connection ended.";
    try {
      await read(attempt.signal, stop);
    } catch (error) {
      if (needsToken(error)) {
        link.value = { state: "refused", detail: errorText(error) };
        // Not if the token changed while the refusal was on its way.
        if (refusal.value !== "none" && !changed) await nextChange(token, signal);
        wait = FIRST_WAIT;
        continue;
      }
      if (!isAbort(error)) detail = errorText(error);
    } finally {
      signal.removeEventListener("abort", stop);
      for (const end of unwatch) end();
    }
    if (signal.aborted) return;
    if (changed) continue;
    if (link.value.state === "live") wait = FIRST_WAIT;
    link.value = { state: "broken", detail };
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, LONGEST_WAIT);
  }
}

/** Waits until the store changes, or `signal` aborts. */
export function nextChange<T>(store: Store<T>, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      unwatch();
      resolve();
    };
    const unwatch = store.watch(done);
    signal.addEventListener("abort", done, { once: true });
  });
}
