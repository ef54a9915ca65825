// One deployment: its revisions, how requests are split among them, limits, logs, and new revisions.

import { useEffect, useState } from "preact/hooks";
import { ApiError, sendJson } from "../api";
import { bytes, dateTime, integer } from "../format";
import { snapshot } from "../live";
import { Logs } from "../logs";
import { useResource } from "../resource";
import { goTo } from "../route";
import { useStore } from "../store";
import type { DeploymentDetails, DeploymentStatus, Manifest, Revision } from "../types";
import { Badge, Button, type Column, Empty, ErrorNote, Loading, PageHead, Panel, Table, confirm, useAction } from "../ui";
import { Upload } from "../upload";
import { DeploymentState, useDeployments } from "./deployments";

/** The limits, in the order of the documentation, with what they bound. */
const LIMITS: [string, string][] = [
  ["memory-mib", "memory of an instance, MiB"],
  ["time-seconds", "time of a request, s"],
  ["cpu-seconds", "CPU time of a request, s"],
  ["request-kib", "body of a request, KiB"],
  ["response-kib", "body of a response, KiB"],
  ["concurrent-requests", "requests at once"],
  ["queued-requests", "requests that wait for an instance"],
  ["queue-time-seconds", "wait in a model's queue, s"],
  ["kv-cells-percent", "share of a model's KV cells, %"],
  ["pool", "instances of the whole server"],
  ["requests-per-minute", "requests a minute"],
  ["tokens-per-request", "tokens of a request"],
  ["tokens-per-minute", "tokens a minute"],
  ["tokens-per-day", "tokens a day"],
];

interface LimitRow {
  key: string;
  meaning: string;
  value: string;
  hits: number | null;
}

function limitRows(manifest: Manifest | undefined, hits: Record<string, number>): LimitRow[] {
  const set = (manifest?.limits ?? {}) as Record<string, unknown>;
  const known = new Set(LIMITS.map(([key]) => key));
  const more = Object.keys(hits).filter((key) => !known.has(key));
  return [...LIMITS, ...more.map((key): [string, string] => [key, ""])].map(([key, meaning]) => ({
    key,
    meaning,
    value: set[key] === undefined || set[key] === null ? "" : String(set[key]),
    // Quotas that never stopped a request may not be counted here.
    hits: hits[key] ?? (/-per-/.test(key) ? null : 0),
  }));
}

const LIMIT_COLUMNS: Column<LimitRow>[] = [
  {
    title: "Limit",
    kind: "whole",
    cell: ({ key, meaning }) => (
      <>
        <span class="mono">{key}</span>
        <div class="muted small">{meaning}</div>
      </>
    ),
  },
  {
    title: "Value",
    kind: "number",
    width: "150px",
    cell: ({ value }) => value || <span class="muted">the server's</span>,
  },
  {
    title: "Requests stopped",
    kind: "number",
    width: "150px",
    cell: ({ hits }) =>
      hits === null ? <span class="muted">–</span> : hits > 0 ? <Badge tone="warn">{integer(hits)}</Badge> : "0",
  },
];

/** Sliders for the weights of the revisions that share the requests. */
function Split(props: { deployment: DeploymentStatus; revisions: Revision[]; changed: () => Promise<void> }) {
  const { deployment, revisions } = props;
  const served = JSON.stringify(deployment.traffic.map(({ revision, weight }) => [revision, weight]));
  const current = () => {
    const total = deployment.traffic.reduce((sum, share) => sum + share.weight, 0);
    return new Map(deployment.traffic.map(({ revision, weight }) => [revision, Math.round((100 * weight) / Math.max(total, 1))]));
  };
  const [weights, setWeights] = useState(current);
  const [busy, run] = useAction();
  useEffect(() => setWeights(current()), [served]);

  const others = revisions.filter((revision) => !weights.has(revision.number)).reverse();
  const total = [...weights.values()].reduce((sum, weight) => sum + weight, 0);
  const share = (weight: number) => `${total === 0 ? 0 : Math.round((100 * weight) / total)} %`;
  const set = (revision: number, weight: number) => {
    const next = new Map(weights).set(revision, weight);
    // Of two revisions, one gets what the other does not.
    const [other, ...more] = [...next.keys()].filter((key) => key !== revision);
    if (other !== undefined && more.length === 0) next.set(other, 100 - weight);
    setWeights(next);
  };
  const apply = () =>
    run(async () => {
      const traffic = [...weights].filter(([, weight]) => weight > 0).map(([revision, weight]) => ({ revision, weight }));
      await sendJson(`/deployments/${encodeURIComponent(deployment.name)}/traffic`, "PUT", { traffic });
      await props.changed();
      return "Requests are split as chosen.";
    });
  const before = current();
  const same = before.size === weights.size && [...weights].every(([revision, weight]) => before.get(revision) === weight);

  return (
    <Panel
      title="Split of requests"
      aside={
        others.length > 0 && (
          <div>
            <select
              aria-label="Add a revision to the split"
              value=""
              onChange={(event) => {
                const revision = Number(event.currentTarget.value);
                if (revision > 0) setWeights(new Map(weights).set(revision, 0));
                event.currentTarget.value = "";
              }}
            >
              <option value="">Add a revision …</option>
              {others.map(({ number }) => (
                <option key={number} value={number}>
                  Revision {number}
                </option>
              ))}
            </select>
          </div>
        )
      }
    >
      {[...weights]
        .sort(([one], [other]) => one - other)
        .map(([revision, weight]) => (
          <div key={revision} class="split">
            <label for={`weight-${revision}`}>Revision {revision}</label>
            <input
              id={`weight-${revision}`}
              type="range"
              min={0}
              max={100}
              value={weight}
              disabled={weights.size < 2}
              aria-valuetext={share(weight)}
              onInput={(event) => set(revision, Number(event.currentTarget.value))}
            />
            <output for={`weight-${revision}`}>{share(weight)}</output>
          </div>
        ))}
      <div class="row">
        <Button kind="main" disabled={busy || same || total === 0} onClick={apply}>
          Apply
        </Button>
        <Button disabled={same} onClick={() => setWeights(current())}>
          Reset
        </Button>
        {weights.size < 2 && <span class="muted small">Add a second revision to split requests.</span>}
      </div>
    </Panel>
  );
}

function Revisions(props: { deployment: DeploymentStatus; revisions: Revision[]; changed: () => Promise<void> }) {
  const { deployment } = props;
  const [busy, run] = useAction();
  const shares = new Map(deployment.traffic.map((share) => [share.revision, share]));
  const only = deployment.traffic.length === 1 ? deployment.traffic[0]?.revision : undefined;
  const route = (revision: number) =>
    run(async () => {
      await sendJson(`/deployments/${encodeURIComponent(deployment.name)}/rollback`, "POST", { revision });
      await props.changed();
      return `Revision ${revision} gets all requests.`;
    });
  const columns: Column<Revision>[] = [
    { title: "Revision", width: "90px", cell: ({ number }) => <strong>{number}</strong> },
    {
      title: "State",
      width: "130px",
      cell: ({ number }) => {
        const share = shares.get(number);
        return share ? <DeploymentState state={share.state} /> : <span class="muted">no requests</span>;
      },
    },
    { title: "Deployed", width: "190px", cell: ({ created_ms }) => dateTime(created_ms) },
    { title: "Size", width: "100px", kind: "number", cell: ({ component_bytes }) => bytes(component_bytes) },
    {
      title: "Component",
      kind: "whole",
      cell: ({ number, component }) => (
        <>
          <span class="mono" title={component}>
            {component.slice(0, 23)}…
          </span>
          {shares.get(number)?.error && <div class="note bad">{shares.get(number)?.error}</div>}
        </>
      ),
    },
    {
      title: "Actions",
      kind: "actions",
      width: "190px",
      cell: ({ number }) => (
        <div class="row">
          <Button slim disabled={busy || number === only} onClick={() => route(number)} label={`Route all here: revision ${number}`}>
            Route all here
          </Button>
        </div>
      ),
    },
  ];
  return (
    <Panel title="Revisions">
      <Table label="Revisions" columns={columns} rows={[...props.revisions].reverse()} rowKey={({ number }) => number} />
    </Panel>
  );
}

function Actions(props: { deployment: DeploymentStatus; changed: () => Promise<void> }) {
  const { deployment } = props;
  const path = `/deployments/${encodeURIComponent(deployment.name)}`;
  const paused = deployment.state === "paused";
  const [busy, run] = useAction();
  const pause = () =>
    run(async () => {
      await sendJson(`${path}/paused`, "PUT", { paused: !paused });
      await props.changed();
      return paused ? "Requests are served again." : "Requests are refused. Running ones continue.";
    });
  const rollBack = () =>
    run(async () => {
      await sendJson(`${path}/rollback`, "POST", {});
      await props.changed();
      return "The previous split is back.";
    });
  const remove = async () => {
    if (!(await confirm(`Remove ${deployment.name} with all its revisions? Running requests continue.`, "Remove"))) return;
    run(async () => {
      await sendJson(path, "DELETE");
      goTo("deployments");
      return `${deployment.name} was removed.`;
    });
  };
  return (
    <div class="row">
      <Button disabled={busy} onClick={pause}>
        {paused ? "Resume" : "Pause"}
      </Button>
      <Button disabled={busy} onClick={rollBack}>
        Roll back
      </Button>
      <Button kind="danger" disabled={busy} onClick={() => void remove()}>
        Remove
      </Button>
    </div>
  );
}

export function Deployment({ name }: { name: string }) {
  // Those of the command line have no revisions and only stand in the list.
  const { list, error, load } = useDeployments();
  const listed = list?.find((one) => one.name === name);
  if (list === null) {
    return (
      <>
        <PageHead title={name} />
        {error === null ? <Loading what="the deployment" /> : <ErrorNote error={error} retry={() => void load()} />}
      </>
    );
  }
  if (!listed) {
    return (
      <>
        <PageHead title={name} />
        <Empty title="There is no such deployment">
          <a href="#/deployments">Show all deployments</a>
        </Empty>
      </>
    );
  }
  return listed.stored ? <Stored name={name} /> : <OfCommandLine deployment={listed} />;
}

function Head({ deployment, children }: { deployment: DeploymentStatus; children?: preact.ComponentChildren }) {
  return (
    <>
      <nav aria-label="Path" class="small">
        <a href="#/deployments">Deployments</a>
      </nav>
      <PageHead title={deployment.name}>
        <DeploymentState state={deployment.state} />
        <span class="mono">{deployment.routes.join(" ")}</span>
        {children}
      </PageHead>
    </>
  );
}

function Limits({ manifest, hits }: { manifest?: Manifest; hits: Record<string, number> }) {
  return (
    <Panel title="Limits">
      <Table label="Limits" columns={LIMIT_COLUMNS} rows={limitRows(manifest, hits)} rowKey={({ key }) => key} />
    </Panel>
  );
}

function OfCommandLine({ deployment }: { deployment: DeploymentStatus }) {
  const live = useStore(snapshot)?.deployments.find((one) => one.name === deployment.name);
  return (
    <>
      <Head deployment={deployment} />
      <div class="note">The command line of the server names this plugin, so it cannot be changed here.</div>
      <Logs name={deployment.name} />
      <Limits hits={live?.limit_hits ?? {}} />
    </>
  );
}

function Stored({ name }: { name: string }) {
  const { data, error, load } = useResource<DeploymentDetails>(`/deployments/${encodeURIComponent(name)}`, 5);
  const live = useStore(snapshot)?.deployments.find((one) => one.name === name);
  const [uploading, setUploading] = useState(false);
  if (data === null) {
    if (error === null) return <Loading what="the deployment" />;
    const gone = error instanceof ApiError && error.status === 404;
    return gone ? <Empty title="The deployment was removed" /> : <ErrorNote error={error} retry={() => void load()} />;
  }
  const { deployment, revisions } = data;
  const latest = revisions.at(-1)?.manifest;
  const main = [...deployment.traffic].sort((one, other) => other.weight - one.weight)[0]?.revision;
  const serving = revisions.find((revision) => revision.number === main)?.manifest ?? latest;
  return (
    <>
      <Head deployment={deployment}>
        <Actions deployment={deployment} changed={load} />
      </Head>
      {error !== null && <ErrorNote error={error} retry={() => void load()} />}
      <Split deployment={deployment} revisions={revisions} changed={load} />
      <Revisions deployment={deployment} revisions={revisions} changed={load} />
      <div class="row">
        <Button onClick={() => setUploading(!uploading)}>{uploading ? "Close" : "New revision"}</Button>
      </div>
      {uploading && <Upload previous={latest} done={() => void load()} />}
      <Logs name={name} />
      <Limits manifest={serving} hits={live?.limit_hits ?? data.limit_hits ?? {}} />
    </>
  );
}
