// Parts that all pages use.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { errorText } from "./api";
import { Store, useStore } from "./store";

export type Tone = "plain" | "good" | "warn" | "bad";

export function Badge({ tone = "plain", children }: { tone?: Tone; children: ComponentChildren }) {
  return <span class={`badge ${tone}`}>{children}</span>;
}

export function Panel(props: { title: string; aside?: ComponentChildren; children: ComponentChildren }) {
  const id = useId();
  return (
    <section class="panel" aria-labelledby={id}>
      <div class="panel-head">
        <h2 id={id}>{props.title}</h2>
        {props.aside}
      </div>
      {props.children}
    </section>
  );
}

export function PageHead({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="page-head">
      <h1>{title}</h1>
      {children}
    </div>
  );
}

/** A figure with its name. The space for `detail` is kept where there is none. */
export function Figure(props: { name: string; value: string; detail?: string }) {
  return (
    <dl class="figure">
      <dt>{props.name}</dt>
      <dd>{props.value}</dd>
      <dd>{props.detail ?? "\u00a0"}</dd>
    </dl>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children && <p class="small">{children}</p>}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <div class="empty" role="status">
      Loading {what} …
    </div>
  );
}

export function ErrorNote({ error, retry }: { error: unknown; retry?: () => void }) {
  return (
    <div class="note bad" role="alert">
      <div>{errorText(error)}</div>
      {retry && (
        <button type="button" class="button slim" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Button(props: {
  children: ComponentChildren;
  onClick?: () => void;
  kind?: "main" | "danger" | "quiet";
  slim?: boolean;
  disabled?: boolean;
  submit?: boolean;
  label?: string;
}) {
  return (
    <button
      type={props.submit ? "submit" : "button"}
      class={`button ${props.kind ?? ""} ${props.slim ? "slim" : ""}`}
      disabled={props.disabled}
      aria-label={props.label}
      onClick={props.onClick}
    >
      {props.children}
    </button>
  );
}

/** A control with its label; `control` gets the id that connects them. */
export function Field(props: {
  name: string;
  hint?: string;
  class?: string;
  control: (id: string) => JSX.Element;
}) {
  const id = useId();
  return (
    <div class={`field ${props.class ?? ""}`}>
      <label for={id}>{props.name}</label>
      {props.control(id)}
      {props.hint && <span class="hint">{props.hint}</span>}
    </div>
  );
}

export function Check(props: { name: string; checked: boolean; onChange: (checked: boolean) => void }) {
  return (
    <label class="check">
      <input type="checkbox" checked={props.checked} onChange={(event) => props.onChange(event.currentTarget.checked)} />
      {props.name}
    </label>
  );
}

export function Tabs<T extends string>(props: {
  label: string;
  tabs: readonly T[];
  current: T;
  onChange: (tab: T) => void;
}) {
  const onKeyDown = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (step === 0) return;
    event.preventDefault();
    const index = (props.tabs.indexOf(props.current) + step + props.tabs.length) % props.tabs.length;
    const tab = props.tabs[index];
    if (tab !== undefined) props.onChange(tab);
    const list = event.currentTarget as HTMLElement;
    (list.children[index] as HTMLElement | undefined)?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={props.label} onKeyDown={onKeyDown}>
      {props.tabs.map((tab) => (
        <button
          key={tab}
          type="button"
          role="tab"
          aria-selected={tab === props.current}
          tabIndex={tab === props.current ? 0 : -1}
          onClick={() => props.onChange(tab)}
        >
          {tab}
        </button>
      ))}
    </div>
  );
}

export interface Column<T> {
  title: string;
  cell: (row: T) => ComponentChildren;
  kind?: "number" | "actions" | "whole";
  /** Width where the table is a table, so that changing values do not move the columns. */
  width?: string;
}

/** A table. On narrow screens each row becomes a list of named values. */
export function Table<T>(props: {
  label: string;
  columns: Column<T>[];
  rows: T[];
  rowKey: (row: T) => string | number;
}) {
  return (
    <div class="scroll">
      <table class="stacks" role="table" aria-label={props.label}>
        <colgroup>
          {props.columns.map((column) => (
            <col key={column.title} style={column.width ? { width: column.width } : undefined} />
          ))}
        </colgroup>
        <thead role="rowgroup">
          <tr role="row">
            {props.columns.map((column) => (
              <th key={column.title} role="columnheader" scope="col" class={column.kind ?? ""}>
                {column.kind === "actions" ? <span class="hidden-label">{column.title}</span> : column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {props.rows.map((row) => (
            <tr key={props.rowKey(row)} role="row">
              {props.columns.map((column) => (
                <td key={column.title} role="cell" class={column.kind ?? ""} data-title={column.title}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A bar of parts of a whole, with a legend. */
export function PartsBar(props: { label: string; parts: { name: string; value: number; text: string }[]; total: number }) {
  const total = Math.max(props.total, 1);
  return (
    <div class="column">
      <div class="bar" role="img" aria-label={`${props.label}: ${props.parts.map((p) => `${p.name} ${p.text}`).join(", ")}`}>
        {props.parts.map((part, index) => (
          <span
            key={part.name}
            class={`fill-${index + 1}`}
            style={{ width: `${(Math.max(part.value, 0) / total) * 100}%` }}
          />
        ))}
      </div>
      <ul class="legend">
        {props.parts.map((part, index) => (
          <li key={part.name}>
            <span class={`swatch fill-${index + 1}`} />
            {part.name} <b>{part.text}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}

// Messages about what was done, read out by screen readers.

interface Message {
  id: number;
  tone: Tone;
  text: string;
}

const messages = new Store<Message[]>([]);
let lastMessage = 0;
const MESSAGE_TIME = 8000;
const MAX_MESSAGES = 4;

export function notify(text: string, tone: Tone = "good"): void {
  lastMessage += 1;
  const id = lastMessage;
  messages.value = [...messages.value, { id, tone, text }].slice(-MAX_MESSAGES);
  setTimeout(() => dismiss(id), MESSAGE_TIME);
}

function dismiss(id: number): void {
  messages.value = messages.value.filter((message) => message.id !== id);
}

export function Messages() {
  const current = useStore(messages);
  return (
    <div class="messages" role="status" aria-live="polite">
      {current.map((message) => (
        <div key={message.id} class={`note ${message.tone}`}>
          <span>{message.text}</span>
          <Button slim kind="quiet" label="Dismiss" onClick={() => dismiss(message.id)}>
            ×
          </Button>
        </div>
      ))}
    </div>
  );
}

// A question before a change that cannot be undone.

interface Question {
  text: string;
  action: string;
  answer: (yes: boolean) => void;
}

const question = new Store<Question | null>(null);

/** Asks in a dialog, and resolves to whether the person agreed. */
export function confirm(text: string, action: string): Promise<boolean> {
  question.value?.answer(false);
  return new Promise((resolve) => {
    question.value = {
      text,
      action,
      answer: (yes) => {
        question.value = null;
        resolve(yes);
      },
    };
  });
}

export function ConfirmDialog() {
  const current = useStore(question);
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    if (!current) return;
    const before = document.activeElement;
    dialog.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, [current]);
  if (!current) return null;
  return (
    <dialog ref={dialog} aria-labelledby={id} onClose={() => question.value === current && current.answer(false)}>
      <form method="dialog" class="column">
        <p id={id}>{current.text}</p>
        <div class="row">
          <Button kind="danger" onClick={() => current.answer(true)}>
            {current.action}
          </Button>
          <Button onClick={() => current.answer(false)}>Keep</Button>
        </div>
      </form>
    </dialog>
  );
}

/** Runs changes one at a time, tells how each ended, and whether one runs. */
export function useAction(): [boolean, (work: () => Promise<string | void>) => void] {
  const [busy, setBusy] = useState(false);
  const run = (work: () => Promise<string | void>) => {
    if (busy) return;
    setBusy(true);
    work()
      .then((done) => done && notify(done))
      .catch((error: unknown) => notify(errorText(error), "bad"))
      .finally(() => setBusy(false));
  };
  return [busy, run];
}
