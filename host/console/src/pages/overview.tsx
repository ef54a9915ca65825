// Health, models, latency, queue and cells, with charts of the last fifteen minutes.

import { useMemo, useState } from "preact/hooks";
import { sendJson } from "../api";
import { Chart } from "../chart";
import { NONE, bytes, count, duration, integer, percent, short } from "../format";
import { WINDOW_SECONDS, changeAt, linesOf, quantile } from "../history";
import { history, link, snapshot } from "../live";
import { mayChange } from "../session";
import { useStore } from "../store";
import type { ModelSnapshot, Snapshot } from "../types";
import { Badge, Button, type Column, Empty, Figure, Loading, PageHead, Panel, PartsBar, Table, type Tone, useAction } from "../ui";

const PERCENTILES = ["p50", "p95", "p99"];

function Health({ current }: { current: Snapshot }) {
  const { state, detail } = useStore(link);
  if (state === "broken") {
    return (
      <div class="note warn" role="alert">
        The figures are old: the connection broke. {detail} The console tries again.
      </div>
    );
  }
  if (current.ready) return null;
  return (
    <div class="note warn" role="alert">
      The server takes no requests: {current.not_ready.join("; ")}.
    </div>
  );
}

const MODEL_TONES: Record<string, Tone> = { loaded: "good", loading: "warn", unloading: "warn", failed: "bad" };

function ModelState({ model }: { model: ModelSnapshot }) {
  const progress = model.state === "loading" && model.progress !== undefined ? ` ${Math.round(model.progress * 100)} %` : "";
  return (
    <>
      <Badge tone={MODEL_TONES[model.state] ?? "plain"}>{model.state + progress}</Badge>
      {model.error && <div class="small">{model.error}</div>}
    </>
  );
}

function ModelActions({ model }: { model: ModelSnapshot }) {
  const [busy, run] = useAction();
  const loaded = model.state === "loaded";
  const change = () => {
    if (!mayChange()) return;
    run(async () => {
      await sendJson(`/models/${encodeURIComponent(model.model)}`, loaded ? "DELETE" : "PUT");
      return loaded ? `${model.model} is being unloaded.` : `${model.model} is loaded.`;
    });
  };
  return (
    <div class="row">
      <Button slim onClick={change} disabled={busy || model.state === "loading"} label={`${loaded ? "Unload" : "Load"} ${model.model}`}>
        {loaded ? "Unload" : "Load"}
      </Button>
    </div>
  );
}

const MODEL_COLUMNS: Column<ModelSnapshot>[] = [
  { title: "Model", cell: (model) => <strong>{model.model}</strong>, kind: "whole" },
  { title: "State", cell: (model) => <ModelState model={model} />, width: "170px" },
  { title: "Memory", cell: (model) => bytes(model.memory_bytes), kind: "number", width: "110px" },
  { title: "Running", cell: (model) => integer(model.requests_running ?? 0), kind: "number", width: "90px" },
  { title: "Waiting", cell: (model) => integer(model.requests_waiting ?? 0), kind: "number", width: "90px" },
  {
    title: "Cells in use",
    cell: (model) => (model.cells ? percent(model.cells.running / Math.max(model.cells.total, 1)) : NONE),
    kind: "number",
    width: "110px",
  },
  {
    title: "Swapped",
    cell: (model) => (model.swapped_bytes ? bytes(model.swapped_bytes.memory + model.swapped_bytes.disk) : NONE),
    kind: "number",
    width: "110px",
  },
  { title: "Actions", cell: (model) => <ModelActions model={model} />, kind: "actions", width: "110px" },
];

export function Overview() {
  const current = useStore(snapshot);
  const [chosen, setChosen] = useState("");
  const model = chosen !== "" && current?.models.some((one) => one.model === chosen) ? chosen : null;
  const { samples, lines, times } = useMemo(() => {
    const samples = history.samples(model);
    return { samples, lines: linesOf(samples), times: history.times };
  }, [current, model]);

  if (!current) return <Loading what="figures" />;
  const newest = samples.at(-1) ?? null;
  const minute = changeAt(samples, samples.length - 1, WINDOW_SECONDS);
  const cells = newest?.cells ?? { total: 0, running: 0, cached: 0, free: 0 };
  const firstToken = (share: number) => duration(minute && quantile(minute.firstToken, share));
  const nextToken = (share: number) => duration(minute && quantile(minute.nextToken, share));
  const chartLines = (of: "firstToken" | "nextToken") =>
    PERCENTILES.map((name, index) => ({ name, line: lines[of][index] ?? [] }));
  const shown = current.models.filter((one) => model === null || one.model === model);
  const total = (of: "generated_tokens" | "steps") => integer(shown.reduce((sum, one) => sum + (one.counters?.[of] ?? 0), 0));
  const lost = current.models.reduce((sum, one) => sum + (one.counters?.requests_failed ?? 0), 0);

  return (
    <>
      <PageHead title="Overview">
        <Badge tone={current.ready ? "good" : "warn"}>{current.ready ? "Ready" : "Not ready"}</Badge>
        <span class="muted small">
          Version {current.version}, running for {duration(Math.max(0, current.time_ms - current.started_ms) / 1000)}
        </span>
        <div class="row">
          <label for="overview-model">Model</label>
          <div>
            <select id="overview-model" value={model ?? ""} onChange={(event) => setChosen(event.currentTarget.value)}>
              <option value="">All models</option>
              {current.models.map((one) => (
                <option key={one.model} value={one.model}>
                  {one.model}
                </option>
              ))}
            </select>
          </div>
        </div>
      </PageHead>
      <Health current={current} />

      <div class="figures">
        <Figure name="Tokens a second" value={short(lines.tokens.at(-1))} detail={`${total("generated_tokens")} in all`} />
        <Figure
          name="Time to first token, p50"
          value={firstToken(0.5)}
          detail={`p95 ${firstToken(0.95)} · p99 ${firstToken(0.99)}`}
        />
        <Figure
          name="Inter-token latency, p50"
          value={nextToken(0.5)}
          detail={`p95 ${nextToken(0.95)} · p99 ${nextToken(0.99)}`}
        />
        <Figure
          name="Running requests"
          value={integer(newest?.running ?? 0)}
          detail={`${integer(newest?.waiting ?? 0)} waiting in the queue`}
        />
        <Figure
          name="Rows in each step"
          value={short(lines.rows.at(-1))}
          detail={`${total("steps")} steps in all`}
        />
        <Figure
          name="Prefix cache hits"
          value={percent(minute && minute.prompt > 0 ? minute.hits / minute.prompt : null)}
          detail={`${short(minute?.hits)} of ${short(minute?.prompt)} tokens`}
        />
        <Figure
          name="HTTP requests in flight"
          value={integer(current.http.in_flight)}
          detail={count(current.http.connections, "connection")}
        />
        <Figure name="Memory of the process" value={bytes(current.memory?.resident_bytes)} detail={`${count(lost, "failed request")}`} />
      </div>

      <Panel title="KV cells" aside={<span class="muted small">{integer(cells.total)} in all</span>}>
        <PartsBar
          label="KV cells"
          total={cells.total}
          parts={[
            { name: "used by running requests", value: cells.running, text: integer(cells.running) },
            { name: "cached prefixes", value: cells.cached, text: integer(cells.cached) },
          ]}
        />
        <p class="muted small">
          {integer(cells.free)} free. Cells of cached prefixes are available to new requests.
        </p>
      </Panel>

      <div class="grid-2">
        <Chart title="Tokens a second" times={times} format={short} lines={[{ name: "generated", line: lines.tokens, filled: true }]} />
        <Chart
          title="Requests"
          times={times}
          format={short}
          lines={[
            { name: "running", line: lines.running, filled: true },
            { name: "waiting", line: lines.waiting },
          ]}
        />
        <Chart title="Time to first token" times={times} format={duration} lines={chartLines("firstToken")} />
        <Chart title="Inter-token latency" times={times} format={duration} lines={chartLines("nextToken")} />
        <Chart
          title="KV cells over time"
          times={times}
          format={short}
          lines={[
            { name: "running", line: lines.cellsRunning, filled: true },
            { name: "with cached", line: lines.cellsUsed },
          ]}
        />
        <Chart title="Rows in each step" times={times} format={short} lines={[{ name: "rows", line: lines.rows, filled: true }]} />
        <Chart
          title="Prefix cache hits"
          times={times}
          format={(value) => percent(typeof value === "number" ? value / 100 : null)}
          lines={[{ name: "of prompt tokens", line: lines.hits, filled: true }]}
        />
        <Chart
          title="Computed tokens a second"
          times={times}
          format={short}
          lines={[{ name: "of prompts and answers", line: lines.computed, filled: true }]}
        />
      </div>
      <p class="muted small">
        Percentiles and hits are those of the last minute. The charts begin when this page was opened.
      </p>

      <Panel title="Models">
        {current.models.length === 0 ? (
          <Empty title="No model">Start the server with --model FILE.</Empty>
        ) : (
          <Table label="Models" columns={MODEL_COLUMNS} rows={current.models} rowKey={(one) => one.model} />
        )}
      </Panel>
    </>
  );
}
