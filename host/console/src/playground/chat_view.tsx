// The conversation, and the form for the next message.

import { useEffect, useRef, useState } from "preact/hooks";
import { errorText } from "../api";
import { duration, integer, short } from "../format";
import { session } from "../session";
import { useStore } from "../store";
import { Button, Empty, Field, Panel } from "../ui";
import { type Facts, type Turn, ask, chatRequest, clear, conversation, stop } from "./chat";
import type { ToolCall } from "./chunk";
import { Copy } from "./copy";
import { ParameterForm } from "./parameter_form";
import { parameters } from "./parameters";
import { Legend, Tokens } from "./tokens";

function FactsLine({ facts }: { facts: Facts }) {
  const cached = facts.cachedTokens === undefined ? "" : `, ${integer(facts.cachedTokens)} cached`;
  return (
    <div class="facts">
      {facts.firstTokenSeconds !== undefined && <span>first token after {duration(facts.firstTokenSeconds)}</span>}
      {facts.promptTokens !== undefined && (
        <span>
          {integer(facts.promptTokens)} prompt tokens{cached}
        </span>
      )}
      {facts.generatedTokens !== undefined && <span>{integer(facts.generatedTokens)} generated</span>}
      {facts.tokensPerSecond !== undefined && <span>{short(facts.tokensPerSecond)} tokens a second</span>}
      {facts.totalSeconds !== undefined && <span>{duration(facts.totalSeconds)} in all</span>}
      {facts.finishReason && <span>ended by {facts.finishReason}</span>}
      {facts.requestId && <span class="mono">{facts.requestId}</span>}
    </div>
  );
}

const WHO = { user: "You", assistant: "Model", tool: "Result of the tool" };

function TurnView({ turn }: { turn: Turn }) {
  const withTokens = (turn.tokens?.length ?? 0) > 0;
  return (
    <li class={`turn ${turn.role}`}>
      <span class="who">{WHO[turn.role]}</span>
      {turn.reasoning && (
        <details>
          <summary class="small">Reasoning</summary>
          <div class="text">{turn.reasoning}</div>
        </details>
      )}
      {withTokens ? (
        <Tokens tokens={turn.tokens ?? []} />
      ) : (
        (turn.text !== "" || turn.running) && <div class="text">{turn.text || "…"}</div>
      )}
      {turn.toolCalls?.map((call) => (
        <div key={call.index} class="note mono">
          {call.name}({call.arguments})
        </div>
      ))}
      {turn.error && <div class="note bad">{turn.error}</div>}
      {turn.facts && <FactsLine facts={turn.facts} />}
    </li>
  );
}

/** Asks for the results of the tools that the model called. */
function Results({ calls, send }: { calls: ToolCall[]; send: (results: Turn[]) => void }) {
  const [results, setResults] = useState<Record<number, string>>({});
  const submit = (event: Event) => {
    event.preventDefault();
    send(calls.map((call) => ({ role: "tool", text: results[call.index] ?? "", toolCallId: call.id })));
  };
  return (
    <form class="column" onSubmit={submit}>
      {calls.map((call) => (
        <Field
          key={call.index}
          name={`Result of ${call.name}`}
          control={(id) => (
            <textarea
              id={id}
              class="mono"
              rows={2}
              value={results[call.index] ?? ""}
              onInput={(event) => setResults({ ...results, [call.index]: event.currentTarget.value })}
            />
          )}
        />
      ))}
      <div class="row">
        <Button kind="main" submit>
          Send results
        </Button>
      </div>
    </form>
  );
}

export function ChatView({ path }: { path: string }) {
  const turns = useStore(conversation);
  const current = useStore(parameters);
  const server = useStore(session);
  const [draft, setDraft] = useState("");
  const [error, setError] = useState("");
  const list = useRef<HTMLUListElement>(null);
  const last = turns.at(-1);
  const running = last?.running ?? false;
  const calls = !running && last?.role === "assistant" && !last.error ? (last.toolCalls ?? []) : [];

  useEffect(() => {
    const element = list.current;
    if (element) element.scrollTop = element.scrollHeight;
  }, [turns]);

  const send = (added: Turn[]) => {
    setError("");
    ask(path, added, current).catch((problem: unknown) => setError(errorText(problem)));
  };
  const submit = (event: Event) => {
    event.preventDefault();
    if (draft.trim() === "" || running) return;
    try {
      chatRequest([], current);
    } catch (problem) {
      setError(errorText(problem));
      return;
    }
    send([{ role: "user", text: draft }]);
    setDraft("");
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };

  return (
    <div class="playground">
      <div class="column">
        <Panel
          title="Chat"
          aside={
            <Button slim disabled={turns.length === 0} onClick={clear}>
              Clear
            </Button>
          }
        >
          <ul class="chat" ref={list} aria-label="Conversation" tabIndex={0}>
            {turns.length === 0 && (
              <li>
                <Empty title="Nothing said yet">Write a message below. The demo model knows sums such as 12+7=.</Empty>
              </li>
            )}
            {turns.map((turn, index) => (
              <TurnView key={index} turn={turn} />
            ))}
          </ul>
          <div class="hidden-label" role="status" aria-live="polite">
            {running ? "The model answers." : last?.role === "assistant" ? `Answer: ${last.text || last.error || ""}` : ""}
          </div>
          {current.logprobs && <Legend />}
          {calls.length > 0 ? (
            <Results key={turns.length} calls={calls} send={send} />
          ) : (
            <form class="column" onSubmit={submit}>
              <Field
                name="Message"
                control={(id) => (
                  <textarea
                    id={id}
                    rows={3}
                    value={draft}
                    placeholder="12+7="
                    onInput={(event) => setDraft(event.currentTarget.value)}
                    onKeyDown={onKeyDown}
                  />
                )}
              />
              <div class="row">
                {running ? (
                  <Button kind="danger" onClick={stop}>
                    Stop
                  </Button>
                ) : (
                  <Button kind="main" submit disabled={draft.trim() === ""}>
                    Send
                  </Button>
                )}
                <span class="muted small">Enter sends, Shift+Enter begins a line.</span>
              </div>
            </form>
          )}
          <div aria-live="assertive">{error && <div class="note bad">{error}</div>}</div>
        </Panel>
        <Copy
          call={() => {
            const next: Turn[] = draft.trim() === "" ? [] : [{ role: "user", text: draft }];
            const asked = [...turns, ...next];
            // Without a draft, the last question is asked again.
            while (next.length === 0 && asked.at(-1)?.role === "assistant") asked.pop();
            return {
              server: server?.public_url ?? "",
              method: "POST",
              path,
              body: JSON.stringify(chatRequest(asked, current), null, 2),
              contentType: "application/json",
              keys: server?.keys ?? false,
            };
          }}
        />
      </div>
      <ParameterForm path={path} />
    </div>
  );
}
