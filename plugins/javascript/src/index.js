// Plugins for Corral in JavaScript. A plugin is a module whose default export is an async function from a request to a
// response. `corral-sdk/testing` replaces the host under `node --test`.
export {
  Cancelled,
  ContextFull,
  CorralError,
  Deadline,
  Failed,
  Invalid,
  NotFound,
  NotGranted,
  Problem,
  Refused,
} from "./errors.js";
export * as fields from "./fields.js";
export { Constraint, Matcher } from "./grammar.js";
export { EventWriter, Request, Response } from "./http.js";
export { Model, availableModels, configuration, remainingBudget } from "./model.js";
export { choose, greedy, logSoftmax, random, softmax, topP } from "./sampling.js";
export { Generation, Sequence, nextMany } from "./sequence.js";
