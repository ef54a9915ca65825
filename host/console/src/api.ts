// Calls of the admin API. The admin token is kept for this tab only, in session storage.

import { textOf } from "./lines";
import { Store } from "./store";

/** An error that the server answered, or a failed connection (status 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
  ) {
    super(detail);
  }
}

/** Most bytes of an error that are read. */
const MAX_ERROR = 64 * 1024;
const TOKEN_KEY = "corral-admin-token";

export const token = new Store<string | null>(sessionStorage.getItem(TOKEN_KEY));

/** Whether the server refused a call for want of the token. `wrong`: it refused the one that it got. */
export const refusal = new Store<"none" | "missing" | "wrong">("none");

export function logIn(text: string): void {
  sessionStorage.setItem(TOKEN_KEY, text);
  refusal.value = "none";
  token.value = text;
}

export function logOut(): void {
  sessionStorage.removeItem(TOKEN_KEY);
  token.value = null;
}

/** Whether the server refused a call because the admin token was absent or wrong. */
export function needsToken(error: unknown): boolean {
  return error instanceof ApiError && error.status === 401 && error.code === "token-required";
}

/** Sends a request with the token. A response with another status than 2xx is thrown as an `ApiError`. */
export async function send(path: string, init: RequestInit = {}): Promise<Response> {
  const sent = token.value;
  const response = await sendRaw(path, init);
  if (response.ok) return response;
  const error = await errorOf(response);
  // A late refusal says nothing about a token that was entered since.
  if (needsToken(error) && sent === token.value) refusal.value = sent === null ? "missing" : "wrong";
  throw error;
}

/** Sends a request with the token, and returns its response with any status. */
export async function sendRaw(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (token.value !== null && !headers.has("authorization")) headers.set("authorization", `Bearer ${token.value}`);
  try {
    return await fetch(path, { ...init, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server does not answer. Check that it runs.");
  }
}

/** Sends a request, and returns the JSON of its response. */
export async function sendJson<T>(path: string, method = "GET", body?: unknown): Promise<T> {
  const init: RequestInit = { method };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { "content-type": "application/json" };
  }
  const response = await send(path, init);
  const text = await response.text();
  return (text === "" ? null : JSON.parse(text)) as T;
}

/** The address of a call of the public listener's `path`. Throws for a path that would lead out of `/call/`, as with `..`. */
export function callAddress(path: string): string {
  const address = `/call${path.startsWith("/") ? "" : "/"}${path}`;
  if (!new URL(address, location.origin).pathname.startsWith("/call/")) {
    throw new Error(`The path ${path} leads out of the public listener's routes. Write a path without "..".`);
  }
  return address;
}

/** Reads an error in any of the formats that the host and its plugins write. Of a long one, only the beginning is read. */
export async function errorOf(response: Response): Promise<ApiError> {
  const text = await textOf(response, MAX_ERROR);
  try {
    const json = JSON.parse(text);
    const error = json.error ?? json;
    const detail = typeof error === "string" ? error : (error.detail ?? error.message);
    if (typeof detail === "string") {
      return new ApiError(response.status, String(error.code ?? error.type ?? ""), detail);
    }
  } catch {
    // Not JSON: show the text.
  }
  const detail = text.slice(0, 2000).trim() || response.statusText || "no details";
  return new ApiError(response.status, "", `Status ${response.status}: ${detail}`);
}

/** What to show of a caught error. */
export function errorText(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}
