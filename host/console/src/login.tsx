// Asks for the admin token.

import { useEffect, useRef, useState } from "preact/hooks";
import { logIn, logOut, refusal, token } from "./api";
import { loadSession } from "./session";
import { useStore } from "./store";
import { Button, Field, Panel } from "./ui";

/** `cancel`: leaves without logging in; absent where nothing can be shown without the token. */
export function Login({ cancel }: { cancel?: () => void }) {
  const [text, setText] = useState("");
  const [checking, setChecking] = useState(false);
  const [error, setError] = useState(refusal.value === "wrong" ? "The server refused the token. It may have changed." : "");
  const input = useRef<HTMLInputElement>(null);
  useStore(token);
  useEffect(() => input.current?.focus(), []);

  const submit = async (event: Event) => {
    event.preventDefault();
    const typed = text.trim();
    if (typed === "" || checking) return;
    setChecking(true);
    setError("");
    const state = refusal.value;
    logIn(typed);
    const session = await loadSession();
    setChecking(false);
    if (session?.authorized) return;
    logOut();
    refusal.value = state === "none" ? "missing" : state;
    setError(
      session
        ? "This is not the admin token of the server. Copy the whole line of the file."
        : "The server does not answer. Check that it runs, and try again.",
    );
    input.current?.focus();
  };

  return (
    <div class="login">
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
                aria-describedby={`${id}-error`}
                onInput={(event) => setText(event.currentTarget.value)}
              />
            )}
          />
          <div aria-live="assertive">{error && <div class="note bad">{error}</div>}</div>
          <div class="row">
            <Button kind="main" submit disabled={text.trim() === "" || checking}>
              {checking ? "Checking …" : "Log in"}
            </Button>
            {cancel && <Button onClick={cancel}>Back</Button>}
          </div>
        </form>
      </Panel>
    </div>
  );
}
