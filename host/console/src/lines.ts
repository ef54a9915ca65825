// Reads streams of lines, and of server-sent events.

/** Longest line that is kept, in characters; a server that sends more is refused. */
const MAX_LINE = 16 * 1024 * 1024;

/** The lines of a response, without their ends, as they arrive. */
export async function* linesOf(response: Response): AsyncGenerator<string> {
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
      if (rest.length > MAX_LINE) throw new Error("The server sent a line of more than 16 MiB.");
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

/** The server-sent events of a response. Comments come as events named `comment`, so that silence can be noticed. */
export async function* eventsOf(response: Response): AsyncGenerator<ServerEvent> {
  let name = "message";
  let data: string[] = [];
  for await (const line of linesOf(response)) {
    if (line === "") {
      if (data.length > 0) yield { name, data: data.join("\n") };
      name = "message";
      data = [];
    } else if (line.startsWith(":")) {
      yield { name: "comment", data: line.slice(1) };
    } else {
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") name = value;
      if (field === "data") data.push(value);
    }
  }
}
