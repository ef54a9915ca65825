// Reads streams of lines, and of server-sent events.

/** Longest line of the host's own answers, in characters. */
export const MAX_LINE = 16 * 1024 * 1024;
/** Longest event of a plugin's answer, in characters. */
export const MAX_EVENT = 1024 * 1024;

function tooLong(what: string, most: number): Error {
  return new Error(`The server sent ${what} of more than ${most / 1024 / 1024} MiB. The connection was closed.`);
}

/** The text of a response, of which at most `most` bytes are read. An error while reading ends it. */
export async function textOf(response: Response, most: number): Promise<string> {
  if (response.body === null) return "";
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  try {
    for (let left = most; left > 0; ) {
      const { done, value } = await reader.read();
      if (done) break;
      text += decoder.decode(value.subarray(0, left), { stream: true });
      left -= value.length;
    }
  } catch {
    // What has arrived is the text.
  }
  reader.cancel().catch(() => undefined);
  return text;
}

/** The lines of a response, without their ends, as they arrive. One longer than `most` characters is an error. */
export async function* linesOf(response: Response, most = MAX_LINE): AsyncGenerator<string> {
  if (response.body === null) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) yield line.endsWith("\r") ? line.slice(0, -1) : line;
      if (rest.length > most) throw tooLong("a line", most);
      if (done) break;
    }
    if (rest !== "") yield rest;
  } finally {
    // Also if the consumer stops early: closes the connection.
    reader.cancel().catch(() => undefined);
  }
}

export interface ServerEvent {
  name: string;
  data: string;
}

/**
 * The server-sent events of a response. Comments come as events named `comment`, so that silence can be noticed. An event of
 * more than `most` characters is an error.
 */
export async function* eventsOf(response: Response, most: number): AsyncGenerator<ServerEvent> {
  let name = "message";
  let data: string[] = [];
  let size = 0;
  for await (const line of linesOf(response, most)) {
    if (line === "") {
      if (data.length > 0) yield { name, data: data.join("\n") };
      name = "message";
      data = [];
      size = 0;
    } else if (line.startsWith(":")) {
      yield { name: "comment", data: line.slice(1) };
    } else {
      size += line.length;
      if (size > most) throw tooLong("an event", most);
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") name = value;
      if (field === "data") data.push(value);
    }
  }
}
