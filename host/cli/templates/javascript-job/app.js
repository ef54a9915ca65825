// Works through a list of prompts and streams each answer as an event.
import { CorralError, Model, Response, fields } from "corral-sdk";

const MAX_PROMPTS = 10_000;
// Prompts that are generated at once. The engine computes them in one batch.
const MAX_CONCURRENT = 16;

export default async function handle(request) {
  const { prompts, max_tokens } = await request.fields({
    prompts: fields.array(fields.string(), undefined, { least: 1, most: MAX_PROMPTS }),
    max_tokens: fields.integer(64),
  });
  const model = await Model.open();
  return Response.events(async (events) => {
    for (let first = 0; first < prompts.length; first += MAX_CONCURRENT) {
      const some = prompts.slice(first, first + MAX_CONCURRENT);
      const generations = some.map((prompt) => start(model, prompt, max_tokens));
      for (const [index, generation] of generations.entries()) {
        await events.json({ prompt: first + index, ...(await finish(generation)) });
      }
    }
  });
}

// A prompt that fails does not stop the job.

function start(model, prompt, maxTokens) {
  try {
    return model.sequence(prompt).generate(maxTokens);
  } catch (error) {
    return { text: () => Promise.reject(error) };
  }
}

async function finish(generation) {
  try {
    return { text: await generation.text() };
  } catch (error) {
    if (!(error instanceof CorralError)) throw error;
    return { error: error.message };
  }
}
