// What the person may set of a chat request. Empty fields are left to the server.

import { Store } from "../store";

export interface Parameters {
  model: string;
  system: string;
  numbers: Record<string, string>;
  stop: string;
  logprobs: boolean;
  schema: string;
  tools: string;
  toolChoice: string;
  other: string;
}

/** Number fields, in the order of the form. */
export const NUMBERS: { field: string; name: string; hint: string; step: string }[] = [
  { field: "temperature", name: "Temperature", hint: "1", step: "0.1" },
  { field: "max_tokens", name: "Most tokens", hint: "context", step: "1" },
  { field: "top_p", name: "Top p", hint: "1", step: "0.05" },
  { field: "top_k", name: "Top k", hint: "off", step: "1" },
  { field: "min_p", name: "Min p", hint: "0", step: "0.01" },
  { field: "seed", name: "Seed", hint: "random", step: "1" },
  { field: "repeat_penalty", name: "Repeat penalty", hint: "1", step: "0.05" },
  { field: "presence_penalty", name: "Presence penalty", hint: "0", step: "0.1" },
  { field: "frequency_penalty", name: "Frequency penalty", hint: "0", step: "0.1" },
];

/** Alternatives asked for each token. */
const TOP_LOGPROBS = 5;

export const parameters = new Store<Parameters>({
  model: "",
  system: "",
  numbers: { temperature: "0" },
  stop: "",
  logprobs: true,
  schema: "",
  tools: "",
  toolChoice: "auto",
  other: "",
});

function parse(text: string, name: string, example: string, isRight: (value: unknown) => boolean): unknown {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: this is no JSON: ${error instanceof Error ? error.message : error}`);
  }
  if (!isRight(value)) throw new Error(`${name}: expected ${example}.`);
  return value;
}

const isObject = (value: unknown) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The fields of a request. Throws an error that says what is wrong with them. */
export function requestFields(from: Parameters): Record<string, unknown> {
  const fields: Record<string, unknown> = {};
  for (const { field, name } of NUMBERS) {
    const text = from.numbers[field]?.trim() ?? "";
    if (text === "") continue;
    const value = Number(text);
    if (!Number.isFinite(value)) throw new Error(`${name}: ${text} is no number.`);
    fields[field] = value;
  }
  if (from.stop !== "") fields.stop = from.stop;
  if (from.logprobs) Object.assign(fields, { logprobs: true, top_logprobs: TOP_LOGPROBS });
  if (from.schema.trim() !== "") {
    const schema = parse(from.schema, "JSON schema", 'an object, such as {"type": "object"}', isObject);
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
  }
  if (from.tools.trim() !== "") {
    fields.tools = parse(from.tools, "Tools", 'a list, such as [{"type": "function", "function": …}]', Array.isArray);
    fields.tool_choice = from.toolChoice;
  }
  if (from.other.trim() !== "") {
    Object.assign(fields, parse(from.other, "Other fields", 'an object, such as {"top_n_sigma": 1}', isObject));
  }
  return fields;
}
