// Constraints on generated text.
import { integer } from "./check.js";
import { call } from "./errors.js";
import { host } from "./host.js";

/** A compiled grammar; see `Model.jsonSchema` and its neighbors. */
export class Constraint {
  constructor(handle) {
    this.handle = handle;
  }

  /** A matcher at the start of the text, for `Sequence.next`. */
  matcher() {
    return new Matcher(call(() => host().constraints.Matcher.start(this.handle)));
  }
}

/** Tracks which tokens a constraint allows next, for plugins that choose tokens themselves. */
export class Matcher {
  constructor(handle) {
    this.handle = handle;
  }

  /** A copy in the same state. */
  fork() {
    return new Matcher(call(() => this.handle.fork()));
  }

  /** Whether the token may follow. */
  allows(token) {
    return call(() => this.handle.allows(integer(token, "token")));
  }

  /** Advances by one token. */
  accept(token) {
    call(() => this.handle.accept(integer(token, "token")));
  }

  /** Advances over the tokens that the grammar forces next, and returns them. */
  forced(maxTokens) {
    return call(() => this.handle.forced(integer(maxTokens, "maxTokens")));
  }

  /** Whether only an end-of-generation token can follow. */
  isComplete() {
    return this.handle.isComplete();
  }
}
