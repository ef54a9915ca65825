// The lines that a deployment's plugins write, as they come. A page that is hidden for a while closes the connection, and gets the
// lines since then when it is shown again.

import { useEffect, useRef, useState } from "preact/hooks";
import { errorText, isAbort, send } from "./api";
import { clock } from "./format";
import { linesOf } from "./lines";
import { asleep, nextChange } from "./live";
import type { LogLine } from "./types";
import { Button, Empty, Panel } from "./ui";

/** Lines kept, as many as the server keeps. */
const MAX_LINES = 1000;
const FIRST_LINES = 200;
const WAIT = 3000;

export function Logs({ name }: { name: string }) {
  const [lines, setLines] = useState<LogLine[]>([]);
  const [state, setState] = useState("Connecting …");
  const [following, setFollowing] = useState(true);
  const [filter, setFilter] = useState("");
  const box = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const last = useRef<number | null>(null);

  useEffect(() => {
    if (!following) {
      setState("Stopped");
      return;
    }
    const stop = new AbortController();
    // Lines come one by one; they are shown together, a few times a second.
    let arrived: LogLine[] = [];
    const timer = setInterval(() => {
      if (arrived.length === 0) return;
      const more = arrived;
      arrived = [];
      setLines((lines) => [...lines, ...more].slice(-MAX_LINES));
    }, 200);
    const follow = async () => {
      while (!stop.signal.aborted) {
        if (asleep.value) {
          setState("Paused");
          await nextChange(asleep, stop.signal);
          continue;
        }
        const attempt = new AbortController();
        const end = () => attempt.abort();
        stop.signal.addEventListener("abort", end);
        const unwatch = asleep.watch(end);
        try {
          const from = last.current === null ? `tail=${FIRST_LINES}` : `after=${last.current}`;
          const response = await send(`/deployments/${encodeURIComponent(name)}/logs?follow=true&${from}`, { signal: attempt.signal });
          setState("Following");
          for await (const line of linesOf(response)) {
            if (line.trim() === "") continue;
            const parsed = JSON.parse(line) as LogLine;
            last.current = parsed.number;
            arrived.push(parsed);
            if (arrived.length > MAX_LINES) arrived.shift();
          }
          setState("The stream ended");
        } catch (error) {
          // The loop ends or waits.
          if (isAbort(error)) continue;
          setState(errorText(error));
        } finally {
          stop.signal.removeEventListener("abort", end);
          unwatch();
        }
        await new Promise((resolve) => setTimeout(resolve, WAIT));
      }
    };
    void follow();
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [name, following]);

  useEffect(() => {
    const element = box.current;
    if (element && atEnd.current) element.scrollTop = element.scrollHeight;
  }, [lines, filter]);

  const wanted = filter.toLowerCase();
  const shown = wanted === "" ? lines : lines.filter((line) => `${line.text} ${line.request_id}`.toLowerCase().includes(wanted));
  return (
    <Panel
      title="Logs"
      aside={
        <div class="row">
          <span class="muted small" role="status">
            {state}
          </span>
          <div>
            <input
              type="search"
              aria-label="Show lines with this text"
              placeholder="Filter"
              value={filter}
              onInput={(event) => setFilter(event.currentTarget.value)}
            />
          </div>
          <Button slim onClick={() => setFollowing(!following)}>
            {following ? "Stop" : "Follow"}
          </Button>
        </div>
      }
    >
      <div
        ref={box}
        class="log"
        role="log"
        aria-label={`Log of ${name}`}
        aria-live="off"
        tabIndex={0}
        onScroll={(event) => {
          const { scrollTop, clientHeight, scrollHeight } = event.currentTarget;
          atEnd.current = scrollTop + clientHeight >= scrollHeight - 8;
        }}
      >
        {shown.length === 0 && (
          <Empty title={wanted === "" ? "No lines yet" : "No line has this text"}>
            {wanted === "" ? "What the plugins write to stdout and stderr appears here." : ""}
          </Empty>
        )}
        {shown.map((line) => (
          <div key={line.number} class={line.stream}>
            <span class="muted">
              {clock(line.time_ms)} {line.revision ? `rev. ${line.revision} ` : ""}
              {line.request_id}{" "}
            </span>
            {line.text}
          </div>
        ))}
      </div>
    </Panel>
  );
}
