// Readers for the fields of a JSON request. A field without a default is required. One with a default may be left out or null.
// A value of another type or out of its range, a missing field and one that no reader names are 400, with the field's name and
// what was expected.
import { Problem } from "./errors.js";
import { wellFormed } from "./utf8.js";

const MOST = 2 ** 31 - 1;
// Characters of a wrong value that an error shows.
const SHOWN = 40;

/** Text. */
export function string(initial) {
  return { expected: "a string", accepts: isText, initial };
}

/** A number without a fraction. */
export function integer(initial, { least = 0, most = MOST } = {}) {
  const accepts = (value) => Number.isInteger(value) && value >= least && value <= most;
  return { expected: `an integer from ${least} to ${most}`, accepts, initial };
}

/** A finite number. */
export function number(initial, { least = -Infinity, most = Infinity } = {}) {
  const bounds = [];
  if (least > -Infinity) bounds.push(`at least ${least}`);
  if (most < Infinity) bounds.push(`at most ${most}`);
  const expected = bounds.length ? `a number of ${bounds.join(" and ")}` : "a number";
  return { expected, accepts: (value) => Number.isFinite(value) && value >= least && value <= most, initial };
}

/** True or false. */
export function boolean(initial) {
  return { expected: "true or false", accepts: (value) => typeof value === "boolean", initial };
}

/** A list of values that another reader accepts. */
export function array(item, initial, { least = 0, most = MOST } = {}) {
  const accepts = (value) => Array.isArray(value) && value.length >= least && value.length <= most;
  return { expected: `an array of ${least} to ${most} items`, accepts, initial, item };
}

/** Any value, for a function that checks it itself. */
export function value(initial) {
  return { expected: "a value", accepts: () => true, initial };
}

/** The fields of a JSON value. */
export function read(body, readers) {
  if (typeof body !== "object" || body === null || Array.isArray(body)) {
    throw new Problem(400, "invalid-body", `the body is ${shown(body)}; expected an object`);
  }
  for (const name of Object.keys(body)) {
    if (Object.hasOwn(readers, name)) continue;
    const known = Object.keys(readers).join(", ");
    throw new Problem(400, "invalid-body", `there is no field ${shown(name)}; expected ${known}`);
  }
  const found = {};
  for (const [name, reader] of Object.entries(readers)) {
    const code = `invalid-${name.replaceAll("_", "-")}`;
    const given = Object.hasOwn(body, name) ? body[name] : undefined;
    if ((given ?? undefined) === undefined && reader.initial !== undefined) {
      found[name] = reader.initial;
    } else if (given === undefined) {
      throw new Problem(400, code, `\`${name}\` is missing; expected ${reader.expected}`);
    } else {
      check(reader, given, name, code);
      found[name] = given;
    }
  }
  return found;
}

function check({ accepts, expected, item }, given, name, code) {
  if (!accepts(given)) throw new Problem(400, code, `\`${name}\` is ${shown(given)}; expected ${expected}`);
  if (item) given.forEach((one, index) => check(item, one, `${name}[${index}]`, code));
}

function isText(given) {
  // JSON can hold half of a surrogate pair, which is no text.
  return typeof given === "string" && wellFormed(given) === given;
}

function shown(given) {
  if (Array.isArray(given)) return `an array of ${given.length} items`;
  const text = typeof given === "number" ? String(given) : JSON.stringify(given);
  return text.length <= SHOWN ? text : `${text.slice(0, SHOWN)}…`;
}
