// Checks of arguments: the bindings crash on a value of another type, and on lone surrogates.
import { wellFormed } from "./utf8.js";

export function string(value, name) {
  if (typeof value !== "string") throw new TypeError(`\`${name}\` is ${typeof value}; expected a string`);
  return wellFormed(value);
}

export function number(value, name) {
  if (typeof value !== "number") throw new TypeError(`\`${name}\` is ${typeof value}; expected a number`);
  return value;
}

export function integer(value, name, limit = 2 ** 31) {
  if (!Number.isInteger(value) || value < 0 || value >= limit) {
    throw new TypeError(`\`${name}\` is ${String(value)}; expected an integer from 0 to ${limit - 1}`);
  }
  return value;
}

export function tokens(value, name) {
  if (!Array.isArray(value)) throw new TypeError(`\`${name}\` is ${typeof value}; expected a list of tokens`);
  for (const token of value) integer(token, `a token of ${name}`);
  return value;
}
