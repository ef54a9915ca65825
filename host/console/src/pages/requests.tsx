// The requests that run or wait now, and a way to cancel each.

import { useState } from "preact/hooks";
import { sendJson } from "../api";
import { count, duration, integer, short } from "../format";
import { requestSpeed, snapshot } from "../live";
import { mayChange } from "../session";
import { useStore } from "../store";
import type { RequestSnapshot } from "../types";
import { Badge, Button, type Column, Empty, Loading, PageHead, Panel, Table, type Tone, useAction } from "../ui";

const STATES: Record<string, { text: string; tone: Tone }> = {
  plugin: { text: "in plugin", tone: "plain" },
  waiting: { text: "waiting", tone: "warn" },
  prefill: { text: "prefill", tone: "good" },
  decode: { text: "decode", tone: "good" },
};

function State({ request }: { request: RequestSnapshot }) {
  const { text, tone } = STATES[request.state] ?? { text: request.state, tone: "plain" };
  return <Badge tone={tone}>{text}</Badge>;
}

function Cancel({ request }: { request: RequestSnapshot }) {
  const [busy, run] = useAction();
  const cancel = () => {
    if (!mayChange()) return;
    run(async () => {
      await sendJson(`/requests/${encodeURIComponent(request.request_id)}`, "DELETE");
      return `Request ${request.request_id} was canceled.`;
    });
  };
  return (
    <div class="row">
      <Button slim kind="danger" onClick={cancel} disabled={busy} label={`Cancel request ${request.request_id}`}>
        Cancel
      </Button>
    </div>
  );
}

function cachedText(request: RequestSnapshot): string {
  if (request.prompt_tokens === 0) return integer(request.cached_tokens);
  return `${integer(request.cached_tokens)} (${Math.round((100 * request.cached_tokens) / request.prompt_tokens)} %)`;
}

const COLUMNS: Column<RequestSnapshot>[] = [
  {
    title: "Request",
    kind: "whole",
    cell: (request) => (
      <>
        <span class="mono">{request.request_id}</span>
        <div class="muted small">
          {request.path}
          {request.from === "console" && " (console)"}
        </div>
      </>
    ),
  },
  {
    title: "Deployment",
    width: "110px",
    cell: (request) => (
      <>
        {request.deployment}
        {request.revision !== undefined && <div class="muted small">revision {request.revision}</div>}
      </>
    ),
  },
  { title: "Tenant", width: "76px", cell: (request) => request.tenant ?? <span class="muted">none</span> },
  { title: "State", width: "122px", cell: (request) => <State request={request} /> },
  { title: "Prompt", width: "66px", kind: "number", cell: (request) => integer(request.prompt_tokens) },
  { title: "Cached", width: "104px", kind: "number", cell: cachedText },
  { title: "Generated", width: "84px", kind: "number", cell: (request) => integer(request.generated_tokens) },
  { title: "Tokens/s", width: "70px", kind: "number", cell: (request) => short(requestSpeed(request)) },
  { title: "Age", width: "88px", kind: "number", cell: (request) => duration(request.age_seconds) },
  { title: "Actions", width: "76px", kind: "actions", cell: (request) => <Cancel request={request} /> },
];

export function Requests() {
  const current = useStore(snapshot);
  const [deployment, setDeployment] = useState("");
  if (!current) return <Loading what="requests" />;
  const names = [...new Set([...current.deployments.map(({ name }) => name), ...(deployment ? [deployment] : [])])];
  const rows = current.requests.filter((request) => deployment === "" || request.deployment === deployment);
  const waiting = current.requests.filter((request) => request.state === "waiting").length;
  return (
    <>
      <PageHead title="Requests">
        <span class="muted">
          {integer(current.requests.length + current.requests_omitted)} in flight, {integer(waiting)} waiting for a model
        </span>
        <div class="row">
          <label for="requests-deployment">Deployment</label>
          <div>
            <select id="requests-deployment" value={deployment} onChange={(event) => setDeployment(event.currentTarget.value)}>
              <option value="">All</option>
              {names.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </div>
        </div>
      </PageHead>
      <Panel title="Running and waiting">
        {rows.length === 0 ? (
          <Empty title="No request runs">Those that arrive appear here within a second.</Empty>
        ) : (
          <Table label="Running and waiting requests" columns={COLUMNS} rows={rows} rowKey={(request) => request.request_id} />
        )}
        {current.requests_omitted > 0 && (
          <p class="muted small">{count(current.requests_omitted, "younger request")} not shown.</p>
        )}
      </Panel>
    </>
  );
}
