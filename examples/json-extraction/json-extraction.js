// Extracts data from texts as JSON that matches the caller's schema. A constraint keeps the model to the schema: no answer
// is invalid, and none is asked for twice. The Rust form is `src/lib.rs`; it renders the model's own chat template, this one
// writes ChatML.
import { Model, Response, fields } from "corral-sdk";

export default async function handle(request) {
  const { texts, schema, instructions, max_tokens: maxTokens } = await request.fields({
    texts: fields.array(fields.string(), undefined, { least: 1, most: 64 }),
    // The host checks it.
    schema: fields.value(),
    instructions: fields.string(null),
    max_tokens: fields.integer(256),
  });
  const model = await Model.open();
  // Compiled once for all texts. A malformed schema is a 400 with its mistake.
  const constraint = await model.jsonSchema(schema);
  const generations = texts.map((text) => {
    const sequence = model.sequence();
    if (instructions) turn(sequence, "system", instructions);
    turn(sequence, "user", text).append("<|im_start|>assistant\n", { special: true });
    // The host computes the beginning that the prompts share once.
    return sequence.generate(maxTokens, { constraint });
  });
  return Response.json({ results: await Promise.all(generations.map(read)) });
}

/** Appends a message. Control tokens in its text are plain characters. */
function turn(sequence, role, text) {
  sequence.append(`<|im_start|>${role}\n`, { special: true });
  return sequence.append(text).append("<|im_end|>\n", { special: true });
}

/** The value, or an error if the limit cut it off. */
async function read(generation) {
  const text = await generation.text();
  try {
    return { value: JSON.parse(text) };
  } catch {
    return { error: "the JSON is longer than `max_tokens`", text };
  }
}
