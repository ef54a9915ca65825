// What this page may do on the server.

import { logIn, refusal, sendRaw } from "./api";
import { Store } from "./store";
import type { Session } from "./types";

export const session = new Store<Session | null>(null);

/** Asks the server. Null if it does not answer. */
export async function loadSession(): Promise<Session | null> {
  try {
    const response = await sendRaw("/session");
    if (!response.ok) return null;
    session.value = (await response.json()) as Session;
    return session.value;
  } catch {
    return null;
  }
}

/** Whether the server accepts this token; if so, it is kept. Throws if the server does not answer. */
export async function tryToken(token: string): Promise<boolean> {
  const response = await sendRaw("/session", { headers: { authorization: `Bearer ${token}` } });
  const answer = (await response.json()) as Session;
  if (!answer.authorized) return false;
  session.value = answer;
  logIn(token);
  return true;
}

/** Whether changes are accepted; asks for the token if they are not. */
export function mayChange(): boolean {
  const current = session.value;
  if (!current || current.authorized) return true;
  refusal.value = "missing";
  return false;
}
