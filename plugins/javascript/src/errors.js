// Errors of the host and of plugins, and their problem details (RFC 9457).
import { integer } from "./check.js";

/** An error that a handler may throw: the client gets its status, code and detail. */
export class CorralError extends Error {
  status = 500;
  code = "failed";
  headers = {};

  constructor(detail) {
    super(detail);
    this.name = new.target.name;
  }

  /** The problem details. */
  problem() {
    return { type: "about:blank", status: this.status, code: this.code, detail: this.message };
  }
}

/** An error that the plugin defines. `code` is stable: clients may match on it. */
export class Problem extends CorralError {
  constructor(status, code, detail) {
    super(detail);
    Object.assign(this, { status: integer(status, "status", 600, 400), code });
  }
}

/** An argument is invalid. */
export class Invalid extends CorralError {
  status = 400;
  code = "invalid";
}

/** No model, snapshot or sampling plugin of this name is available. */
export class NotFound extends CorralError {
  status = 404;
  code = "not-found";
}

/** The deployment does not grant this operation or this amount. */
export class NotGranted extends CorralError {
  status = 403;
  code = "not-granted";
}

/** The call needs more positions than a sequence may have. */
export class ContextFull extends CorralError {
  status = 400;
  code = "context-full";

  constructor(needed, limit) {
    super(`the call needs ${needed} positions; a sequence may have ${limit}`);
    Object.assign(this, { needed, limit });
  }
}

/** A queue, quota or rate limit is full. Retrying after `retryAfter` seconds can succeed. */
export class Refused extends CorralError {
  status = 429;
  code = "refused";

  constructor(reason, retryAfter) {
    super(reason);
    this.retryAfter = retryAfter;
    this.headers = { "retry-after": String(Math.max(1, Math.ceil(retryAfter))) };
  }
}

/** The request's deadline passed. */
export class Deadline extends CorralError {
  status = 504;
  code = "deadline";

  constructor() {
    super("the request's deadline passed");
  }
}

/** The client disconnected, or the operator canceled the request. */
export class Cancelled extends CorralError {
  status = 499;
  code = "cancelled";

  constructor() {
    super("the request was canceled");
  }
}

/** The model, the device or the disk failed. */
export class Failed extends CorralError {}

const CASES = {
  invalid: (text) => new Invalid(text),
  "not-found": (text) => new NotFound(text),
  "not-granted": (text) => new NotGranted(text),
  "context-full": ({ needed, limit }) => new ContextFull(needed, limit),
  refused: ({ reason, retryAfterMs }) => new Refused(reason, retryAfterMs / 1000),
  deadline: () => new Deadline(),
  cancelled: () => new Cancelled(),
  failed: (text) => new Failed(text),
};

/** Converts an error of the interface, which the bindings throw as the `payload` of an error; others stay as they are. */
export function fromHost(thrown) {
  const error = thrown?.payload ?? thrown;
  return Object.hasOwn(CASES, error?.tag ?? "") ? CASES[error.tag](error.val) : thrown;
}

/** Calls a function of the host. */
export function call(work) {
  try {
    return work();
  } catch (error) {
    throw fromHost(error);
  }
}

/** The value of a result inside another value. */
export function unwrap(result) {
  if (result.tag === "err") throw fromHost(result.val);
  return result.val;
}
