// An answer's tokens, colored by probability, and the alternatives of the chosen one.

import { useId, useState } from "preact/hooks";
import { percent } from "../format";
import type { Token } from "./chunk";

/** The lowest probability of each color, from likely to unlikely. */
const CLASSES: [number, string, string][] = [
  [0.9, "p4", "90 % and more"],
  [0.5, "p3", "50 % and more"],
  [0.1, "p2", "10 % and more"],
  [0, "p1", "below 10 %"],
];

function classOf(logprob: number): string {
  const probability = Math.exp(logprob);
  return CLASSES.find(([least]) => probability >= least)?.[1] ?? "p1";
}

/** White space that would not be seen is written as in JSON. */
function visible(token: string): string {
  return token.trim() === "" ? JSON.stringify(token).slice(1, -1).replaceAll(" ", "␣") : token;
}

export function Legend() {
  return (
    <ul class="legend" aria-label="Colors of tokens by probability">
      {CLASSES.map(([, name, text]) => (
        <li key={name}>
          <span class={`token ${name}`}>token</span> {text}
        </li>
      ))}
    </ul>
  );
}

export function Tokens({ tokens }: { tokens: Token[] }) {
  const [chosen, setChosen] = useState<number | null>(null);
  const id = useId();
  const token = chosen === null ? undefined : tokens[chosen];
  const onKeyDown = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (step === 0) return;
    event.preventDefault();
    setChosen(Math.min(Math.max((chosen ?? (step > 0 ? -1 : tokens.length)) + step, 0), tokens.length - 1));
  };
  return (
    <>
      <div
        class="text"
        role="listbox"
        tabIndex={0}
        aria-label="Tokens of the answer"
        aria-activedescendant={chosen === null ? undefined : `${id}-${chosen}`}
        onKeyDown={onKeyDown}
      >
        {tokens.map((one, index) => (
          <span
            key={index}
            id={`${id}-${index}`}
            role="option"
            aria-selected={index === chosen}
            aria-label={`${visible(one.token)}, ${percent(Math.exp(one.logprob))}`}
            class={`token ${classOf(one.logprob)}`}
            onClick={() => setChosen(index === chosen ? null : index)}
          >
            {one.token}
          </span>
        ))}
      </div>
      {token && (
        <div class="alternatives" aria-live="polite">
          {token.alternatives.map((alternative, index) => {
            const probability = Math.exp(alternative.logprob);
            return (
              <div key={index} class="alternative">
                <span class={`mono ${alternative.token === token.token ? "taken" : ""}`}>{visible(alternative.token)}</span>
                <span class="length" aria-hidden="true">
                  <span style={{ width: `${probability * 100}%` }} />
                </span>
                <span>{percent(probability)}</span>
              </div>
            );
          })}
          {token.alternatives.length === 0 && <p class="muted small">{percent(Math.exp(token.logprob))}, no alternatives known.</p>}
        </div>
      )}
    </>
  );
}
