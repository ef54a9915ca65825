// Checks of arguments and of responses: the bindings crash on a value of another type, and on lone surrogates.
import { wellFormed } from "./utf8.js";

// Headers that the host sets, or that belong to a connection: a component may not set them.
const FORBIDDEN_HEADERS = [
  "connection",
  "host",
  "http2-settings",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "transfer-encoding",
  "upgrade",
];

export function string(value, name) {
  if (value instanceof Promise) throw new TypeError(`\`${name}\` is a promise; expected a string: is an \`await\` missing?`);
  if (typeof value !== "string") throw new TypeError(`\`${name}\` is ${typeof value}; expected a string`);
  return wellFormed(value);
}

export function number(value, name) {
  if (typeof value !== "number") throw new TypeError(`\`${name}\` is ${typeof value}; expected a number`);
  return value;
}

export function integer(value, name, limit = 2 ** 31, least = 0) {
  if (!Number.isInteger(value) || value < least || value >= limit) {
    throw new TypeError(`\`${name}\` is ${String(value)}; expected an integer from ${least} to ${limit - 1}`);
  }
  return value;
}

export function tokens(value, name) {
  if (!Array.isArray(value)) throw new TypeError(`\`${name}\` is ${typeof value}; expected a list of tokens`);
  for (const token of value) integer(token, `a token of ${name}`);
  return value;
}

/** Checks the parts of a response. */
export function response({ status, headers, body }) {
  integer(status, "status", 600, 200);
  if (body !== null && !(body instanceof Uint8Array) && !body[Symbol.asyncIterator]) {
    throw new TypeError(`\`body\` is ${typeof body}; expected bytes or an async iterator of them: Response.text takes text`);
  }
  for (const [name, value] of Object.entries(headers)) {
    if (!/^[\w!#$%&'*+.^`|~-]+$/.test(name)) {
      throw new TypeError(`a header has the name ${JSON.stringify(name)}; expected letters, digits and hyphens`);
    }
    if (FORBIDDEN_HEADERS.includes(name.toLowerCase())) {
      throw new TypeError(`the plugin sets the header ${name}, which the host sets; remove it`);
    }
    if (/[\0-\x08\x0a-\x1f\x7f]/.test(string(value, name))) {
      throw new TypeError(`the header ${name} is ${JSON.stringify(value)}; expected a string without control characters`);
    }
  }
}
