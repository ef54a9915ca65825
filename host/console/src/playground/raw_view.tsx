// Any request to any route, and its response as it arrives.

import { useEffect, useRef, useState } from "preact/hooks";
import { callAddress, errorText, isAbort, sendRaw } from "../api";
import { bytes, duration } from "../format";
import { session } from "../session";
import { useStore } from "../store";
import { Badge, Button, Empty, Field, Panel } from "../ui";
import { Copy } from "./copy";

/** Most of a response that is shown. */
const MAX_SHOWN = 1024 * 1024;
const METHODS = ["POST", "GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

interface Answer {
  status: number;
  headers: [string, string][];
  headSeconds: number;
  firstByteSeconds: number | null;
  totalSeconds: number | null;
  size: number;
  text: string;
}

/** A body to begin with, for the routes of this repository's plugins. */
function exampleBody(path: string): string {
  const body = /chat\/?(completions)?$/.test(path)
    ? { messages: [{ role: "user", content: "12+7=" }], temperature: 0 }
    : /(generate|completions?)$/.test(path)
      ? { prompt: "12+7=", max_tokens: 16 }
      : null;
  return body === null ? "" : JSON.stringify(body, null, 2);
}

export function RawView({ path }: { path: string }) {
  const [method, setMethod] = useState("POST");
  const [target, setTarget] = useState(path);
  const [contentType, setContentType] = useState("application/json");
  const [body, setBody] = useState(() => exampleBody(path));
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [error, setError] = useState("");
  const [running, setRunning] = useState<AbortController | null>(null);
  const server = useStore(session);
  const current = useRef<AbortController | null>(null);
  useEffect(() => () => current.current?.abort(), []);

  const hasBody = method !== "GET" && method !== "HEAD" && body !== "";
  const send = async (event: Event) => {
    event.preventDefault();
    if (running) return;
    const abort = new AbortController();
    current.current = abort;
    setRunning(abort);
    setAnswer(null);
    setError("");
    const begun = performance.now();
    const elapsed = () => (performance.now() - begun) / 1000;
    let timer: ReturnType<typeof setInterval> | undefined;
    try {
      const response = await sendRaw(callAddress(target), {
        method,
        ...(hasBody ? { body, headers: { "content-type": contentType } } : {}),
        signal: abort.signal,
      });
      const received: Answer = {
        status: response.status,
        headers: [...response.headers],
        headSeconds: elapsed(),
        firstByteSeconds: null,
        totalSeconds: null,
        size: 0,
        text: "",
      };
      const show = () => setAnswer({ ...received });
      show();
      timer = setInterval(show, 50);
      const reader = response.body?.getReader();
      const decoder = new TextDecoder();
      while (reader) {
        const { done, value } = await reader.read();
        if (done) break;
        received.firstByteSeconds ??= elapsed();
        received.size += value.length;
        if (received.text.length < MAX_SHOWN) received.text += decoder.decode(value, { stream: true });
      }
      received.totalSeconds = elapsed();
      show();
    } catch (problem) {
      setError(isAbort(problem) ? "Stopped. The server canceled the request." : errorText(problem));
    } finally {
      clearInterval(timer);
      setRunning(null);
    }
  };

  return (
    <div class="grid-2 raw">
      <div class="column">
        <Panel title="Request">
          <form class="column" onSubmit={send}>
            <div class="request-line">
              <Field
                name="Method"
                control={(id) => (
                  <select id={id} value={method} onChange={(event) => setMethod(event.currentTarget.value)}>
                    {METHODS.map((name) => (
                      <option key={name}>{name}</option>
                    ))}
                  </select>
                )}
              />
              <Field
                name="Path and query"
                control={(id) => (
                  <input id={id} class="mono" value={target} spellcheck={false} onInput={(event) => setTarget(event.currentTarget.value)} />
                )}
              />
            </div>
            <Field
              name="Content type"
              control={(id) => (
                <input id={id} class="mono" value={contentType} onInput={(event) => setContentType(event.currentTarget.value)} />
              )}
            />
            <Field
              name="Body"
              control={(id) => (
                <textarea
                  id={id}
                  class="mono"
                  rows={14}
                  value={body}
                  spellcheck={false}
                  onInput={(event) => setBody(event.currentTarget.value)}
                />
              )}
            />
            <div class="row">
              {running ? (
                <Button kind="danger" onClick={() => running.abort()}>
                  Stop
                </Button>
              ) : (
                <Button kind="main" submit>
                  Send
                </Button>
              )}
            </div>
          </form>
        </Panel>
      </div>
      <Panel
        title="Response"
        aside={answer && <Badge tone={answer.status < 400 ? "good" : "bad"}>{answer.status}</Badge>}
      >
        {error && (
          <div class="note bad" role="alert">
            {error}
          </div>
        )}
        {answer ? (
          <>
            <div class="facts" role="status">
              <span>head after {duration(answer.headSeconds)}</span>
              {answer.firstByteSeconds !== null && <span>first byte after {duration(answer.firstByteSeconds)}</span>}
              {answer.totalSeconds !== null && <span>{duration(answer.totalSeconds)} in all</span>}
              <span>{bytes(answer.size)}</span>
            </div>
            <pre class="code response" tabIndex={0} role="region" aria-label="Body of the response">
              {answer.text}
              {answer.size > MAX_SHOWN && "\n… (more than 1 MiB)"}
            </pre>
            <details>
              <summary class="small">{answer.headers.length} headers</summary>
              <dl class="pairs small mono">
                {answer.headers.map(([name, value]) => (
                  <>
                    <dt>{name}</dt>
                    <dd>{value}</dd>
                  </>
                ))}
              </dl>
            </details>
          </>
        ) : (
          error === "" && (
            <div class="response-space">
              <Empty title={running ? "Waiting for the response …" : "No response yet"} />
            </div>
          )
        )}
      </Panel>
      <div class="wide">
        <Copy
          call={() => ({
            server: server?.public_url ?? "",
            method,
            path: target,
            body: hasBody ? body : "",
            contentType,
            keys: server?.keys ?? false,
          })}
        />
      </div>
    </div>
  );
}
