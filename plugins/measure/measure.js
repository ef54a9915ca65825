// The workloads `none` and `top` of `src/lib.rs`, for `corral-bench languages`.
import { Model, Response } from "corral-sdk";

/** Candidates per token of `top`. */
const TOP = 64;

export default async function handle(request) {
  const count = Number(request.query.count);
  const prompt = await request.text();
  const done = request.path.endsWith("/none") ? count : await top(prompt, count);
  return Response.text(String(done));
}

async function top(prompt, count) {
  const sequence = (await Model.open()).sequence(prompt);
  const start = sequence.length;
  for (let index = 0; index < count; index++) {
    const { candidates } = await sequence.next({ top: TOP });
    sequence.append([candidates[0].token]);
  }
  return sequence.length - start;
}
