// WASI HTTP: from the component's request to its response. Imported in a component only.
import * as budget from "corral:inference/budget";
import * as constraints from "corral:inference/constraints";
import * as inference from "corral:inference/inference";
import * as streams from "corral:inference/inference-async";
import * as waiting from "corral:inference/inference-sync";
import * as models from "corral:inference/models";
import * as environment from "wasi:cli/environment@0.3.0";
import * as stderr from "wasi:cli/stderr@0.2.12";
import * as wasi from "wasi:http/types@0.3.0";
import * as entropy from "wasi:random/random@0.2.12";
import { call } from "./errors.js";
import { install } from "./host.js";
import { Request, answer } from "./http.js";
import { decodeLossy, encode } from "./utf8.js";

install({ budget, constraints, environment, inference, log, models, streams, waiting });
// QuickJS has no console.
const print = (...values) => log(values.map(String).join(" "));
globalThis.console ??= { debug: print, error: print, info: print, log: print, warn: print };
// The state of the engine's own generator is part of the component: every instance would draw the same numbers.
Math.random = () => new DataView(Uint8Array.from(entropy.getRandomBytes(4)).buffer).getUint32(0) / 2 ** 32;

/** Makes a plugin's function the component's handler. */
export function handler(handle) {
  if (typeof handle !== "function") throw new TypeError("the plugin's default export must be a function");
  return { handle: async (request) => respond(await answer(handle, received(request))) };
}

function log(text) {
  const bytes = encode(`${text}\n`);
  const stream = stderr.getStderr();
  // The most that one call takes.
  for (let at = 0; at < bytes.length; at += 4096) stream.blockingWriteAndFlush(bytes.subarray(at, at + 4096));
}

function received(request) {
  const { tag, val } = request.getMethod();
  const headers = {};
  for (const [name, value] of request.getHeaders().copyAll()) headers[name.toLowerCase()] ??= decodeLossy(value);
  const target = request.getPathWithQuery() ?? "/";
  const done = wit.Future.from({ tag: "ok" }, wit.Future.RESULT_VOID_ERROR_CODE).readable;
  const [body] = wasi.Request.consumeBody(request, done);
  return new Request(tag === "other" ? val : tag.toUpperCase(), target, { headers, body });
}

function respond({ status, headers, body, framed }) {
  let stream = body;
  if (framed) {
    const framing = { first: new Uint8Array(), ...framed.around, json: true };
    stream = call(() => streams.frame(framed.generation.takeChunks(), framing, body));
  } else if (body instanceof Uint8Array) {
    stream = body.length ? [body] : null;
  }
  const fields = wasi.Fields.fromList(Object.entries(headers).map(([name, value]) => [name, encode(value)]));
  const trailers = wit.Future.from({ tag: "ok", val: null }, wit.Future.RESULT_OPTION_OTHER_ERROR_CODE).readable;
  const [response] = wasi.Response.new(fields, stream, trailers);
  response.setStatusCode(status);
  return response;
}
