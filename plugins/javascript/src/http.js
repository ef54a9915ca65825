// HTTP: requests, responses and server-sent events.
import { response as checkResponse, string } from "./check.js";
import { Cancelled, CorralError, Problem } from "./errors.js";
import { read } from "./fields.js";
import { host } from "./host.js";
import { decode, encode, joined } from "./utf8.js";

/** Default limit of request bodies, in bytes. */
const BODY_LIMIT = 1 << 20;
// Stands for the text in a sample event, so that the bytes around it are known.
const SAMPLE = "\u{10ffff}";

/** An HTTP request. Header names are in lower case. */
export class Request {
  #body;

  /** `body` is text, bytes, a value to send as JSON, or an iterator of bytes. */
  constructor(method, target, { headers = {}, body = "" } = {}) {
    const [path, query = ""] = target.split("#")[0].split(/\?(.*)/s);
    this.method = method;
    this.path = path;
    this.query = parse(query);
    this.headers = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
    const isValue = typeof body === "object" && !(body instanceof Uint8Array) && !body[Symbol.asyncIterator];
    const sent = isValue ? JSON.stringify(body) : body;
    this.#body = typeof sent === "string" ? encode(sent) : sent;
  }

  /** Reads the whole body; a larger one is 413. */
  async body(limit = BODY_LIMIT) {
    if (!(this.#body instanceof Uint8Array)) {
      const parts = [];
      let length = 0;
      for await (const part of this.#body) {
        parts.push(part);
        length += part.length;
        if (length > limit) break;
      }
      this.#body = joined(parts);
    }
    if (this.#body.length > limit) throw new Problem(413, "body-too-large", `the body is larger than ${limit} bytes`);
    return this.#body;
  }

  /** Reads the body as UTF-8. */
  async text(limit = BODY_LIMIT) {
    const bytes = await this.body(limit);
    try {
      return decode(bytes);
    } catch {
      throw new Problem(400, "invalid-body", "the body is not UTF-8");
    }
  }

  /** Reads the body as JSON. */
  async json(limit = BODY_LIMIT) {
    const text = await this.text(limit);
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new Problem(400, "invalid-body", `the body is not JSON: ${error.message}`);
    }
  }

  /** Reads the body as a JSON object with these fields; see `fields.js`. */
  async fields(readers) {
    return read(await this.json(), readers);
  }
}

/** The members of a query. Of several with one name, the first. */
function parse(query) {
  const members = {};
  for (const part of query.split("&")) {
    if (!part) continue;
    const [name, value] = part.split(/=(.*)/s).map(unquoted);
    if (!Object.hasOwn(members, name)) members[name] = value ?? "";
  }
  return members;
}

function unquoted(text) {
  try {
    return decodeURIComponent(text.replaceAll("+", " "));
  } catch {
    return text;
  }
}

/** Writes server-sent events. Writing waits until the client has taken the event, and throws `Cancelled` after the client
 * has disconnected. */
export class EventWriter {
  #write;

  constructor(write) {
    this.#write = write;
  }

  /** Sends an event, with a name if it has one. */
  async data(text, name) {
    const lines = text.split(/\r\n|\r|\n/).map((line) => `data: ${line}\n`);
    await this.bytes(encode(`${name ? `event: ${name}\n` : ""}${lines.join("")}\n`));
  }

  /** Sends an event with a value as JSON. */
  async json(value, name) {
    await this.data(JSON.stringify(value), name);
  }

  /** Sends bytes as they are. */
  async bytes(data) {
    if (!(await this.#write(data))) throw new Cancelled();
  }
}

/** An HTTP response. */
export class Response {
  /** `body` is bytes, or an iterator of bytes. */
  constructor(body = new Uint8Array(), { status = 200, headers = {} } = {}) {
    Object.assign(this, { body, status, headers });
  }

  /** Text. */
  static text(text, status = 200) {
    return new Response(encode(string(text, "text")), { status, headers: { "content-type": "text/plain; charset=utf-8" } });
  }

  /** A value as JSON. */
  static json(value, status = 200) {
    return new Response(encode(JSON.stringify(value)), { status, headers: { "content-type": "application/json" } });
  }

  /** The problem details of an error. */
  static problem(error) {
    const response = Response.json(error.problem(), error.status);
    Object.assign(response.headers, { "content-type": "application/problem+json" }, error.headers);
    return response;
  }

  /** Server-sent events: a function that writes them, or an iterator of their values. */
  static events(write) {
    const headers = { "content-type": "text/event-stream", "cache-control": "no-cache" };
    return new Response(written(typeof write === "function" ? write : values(write)), { headers });
  }

  /** An event with the value `event(text)` for each chunk of a generation's text. The host writes these without running
   * the plugin, which costs a fraction. Then `end` writes the remaining events, after `await generation.outcome()`. */
  static textEvents(generation, event, end = async () => void (await generation.outcome())) {
    const response = Response.events(end);
    response.framed = { generation, around: around(event) };
    return response;
  }
}

function values(iterator) {
  return async (events) => {
    for await (const value of iterator) await (typeof value === "string" ? events.data(value) : events.json(value));
  };
}

/** The bytes of an event before and after its text, which is quoted JSON. */
export function around(event) {
  const quoted = JSON.stringify(SAMPLE);
  const parts = JSON.stringify(event(SAMPLE))?.split(quoted) ?? [];
  if (parts.length !== 2) throw new TypeError("`event` must return a value that contains the text once, unchanged");
  return { before: encode(`data: ${parts[0]}`), after: encode(`${parts[1]}\n\n`) };
}

/** The bytes that a function writes. One write waits at a time, until the reader wants the next one. */
async function* written(write) {
  const waiting = [];
  let ended = false;
  let closed = false;
  let wake = () => {};
  const events = new EventWriter((data) => {
    if (closed) return Promise.resolve(false);
    return new Promise((taken) => {
      waiting.push({ data, taken });
      wake();
    });
  });
  writeEvents(write, events).then(() => {
    ended = true;
    wake();
  });
  try {
    while (waiting.length || !ended) {
      if (!waiting.length) await new Promise((resolve) => (wake = resolve));
      const { data, taken } = waiting.shift() ?? {};
      if (!data) continue;
      let more = false;
      try {
        yield data;
        more = true;
      } finally {
        taken(more);
      }
    }
  } finally {
    closed = true;
    for (const { taken } of waiting) taken(false);
  }
}

/** Writes events. An error becomes the last one, named `error`. */
async function writeEvents(write, events) {
  try {
    await write(events);
  } catch (error) {
    if (error instanceof Cancelled) return;
    await events.json(problemOf(error).problem(), "error").catch(() => {});
  }
}

/** Calls a plugin's function. An error becomes its response; any other exception is 500 `plugin-failed`, and its stack
 * goes to the plugin's log. */
export async function answer(handle, request) {
  try {
    const response = await handle(request);
    if (!(response instanceof Response)) {
      throw new TypeError(`the handler returned ${typeof response}; expected a Response, as of Response.text`);
    }
    checkResponse(response);
    return response;
  } catch (error) {
    return Response.problem(problemOf(error));
  }
}

function problemOf(error) {
  if (error instanceof CorralError) return error;
  host().log(`${error}\n${error?.stack ?? ""}`.trimEnd());
  const hint = /not a function$/.test(error?.message) ? ": is an `await` missing?" : "";
  return new Problem(500, "plugin-failed", `the plugin failed: ${error}${hint}`);
}
