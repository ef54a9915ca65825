// Answers a chat in ChatML, the format of Qwen's models. For another model, change `prompt`.
import { Model, Response, fields } from "corral-sdk";

const MESSAGE = { role: fields.string(), content: fields.string() };

export default async function handle(request) {
  const body = await request.fields({
    messages: fields.array(fields.value(), undefined, { least: 1 }),
    max_tokens: fields.integer(256),
    stream: fields.boolean(false),
  });
  const generation = prompt(await Model.open(), body.messages).generate(body.max_tokens);
  if (!body.stream) return Response.json({ text: await generation.text() });
  return Response.textEvents(generation, (text) => ({ text }), async (events) => {
    const { generatedTokens } = await generation.outcome();
    await events.json({ generated_tokens: generatedTokens });
  });
}

/** The messages, and the beginning of the answer. Control tokens stand only around a message, never inside. */
function prompt(model, messages) {
  const special = { special: true };
  const sequence = model.sequence();
  for (const message of messages) {
    const { role, content } = fields.read(message, MESSAGE);
    sequence.append("<|im_start|>", special).append(`${role}\n${content}`).append("<|im_end|>", special).append("\n");
  }
  return sequence.append("<|im_start|>", special).append("assistant\n");
}
