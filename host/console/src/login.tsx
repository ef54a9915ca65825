// Asks for the admin token.

import { useEffect, useId, useRef, useState } from "preact/hooks";
import { errorText, refusal } from "./api";
import { tryToken } from "./session";
import { Button, Field, Panel } from "./ui";

/** `cancel`: leaves without logging in; absent where nothing can be shown without the token. */
export function Login({ cancel }: { cancel?: () => void }) {
  const [text, setText] = useState("");
  const [checking, setChecking] = useState(false);
  const [error, setError] = useState(refusal.value === "wrong" ? "The server refused the token. It may have changed." : "");
  const errorId = useId();
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);

  const submit = async (event: Event) => {
    event.preventDefault();
    const typed = text.trim();
    if (typed === "" || checking) return;
    setChecking(true);
    setError("");
    try {
      if (await tryToken(typed)) return;
      setError("This is not the admin token of the server. Copy the whole line of the file.");
    } catch (problem) {
      setError(errorText(problem));
    } finally {
      setChecking(false);
    }
    input.current?.focus();
  };

  return (
    <div class="login">
      <div class="column">
        <h1>Log in</h1>
        <Panel title="Admin token">
          <form onSubmit={submit}>
            <p class="muted">
              This needs the admin token. <code>corral serve</code> prints the path of the file with it; with a store, it is{" "}
              <code>admin-token</code> in there. This tab keeps it until it is closed.
            </p>
            <Field
              name="Token"
              control={(id) => (
                <input
                  id={id}
                  ref={input}
                  type="password"
                  autocomplete="off"
                  spellcheck={false}
                  value={text}
                  aria-invalid={error !== ""}
                  aria-describedby={errorId}
                  onInput={(event) => setText(event.currentTarget.value)}
                />
              )}
            />
            <div id={errorId} aria-live="assertive">{error && <div class="note bad">{error}</div>}</div>
            <div class="row">
              <Button kind="main" submit disabled={text.trim() === "" || checking}>
                {checking ? "Checking …" : "Log in"}
              </Button>
              {cancel && <Button onClick={cancel}>Back</Button>}
            </div>
          </form>
        </Panel>
      </div>
    </div>
  );
}
