// All deployments, and the deployment of a new one.

import { useState } from "preact/hooks";
import { integer } from "../format";
import { snapshot } from "../live";
import { useResource } from "../resource";
import { session } from "../session";
import { useStore } from "../store";
import type { DeploymentList, DeploymentStatus } from "../types";
import { Badge, Button, type Column, Empty, ErrorNote, Loading, PageHead, Panel, Table, type Tone } from "../ui";
import { Upload } from "../upload";

const STATE_TONES: Record<string, Tone> = { serving: "good", paused: "warn", compiling: "warn", failed: "bad" };

export function DeploymentState({ state }: { state: string }) {
  return <Badge tone={STATE_TONES[state] ?? "plain"}>{state}</Badge>;
}

/** The share of each revision, such as `3: 90 %, 4: 10 %`. */
export function trafficText(deployment: DeploymentStatus): string {
  const total = deployment.traffic.reduce((sum, share) => sum + share.weight, 0);
  return deployment.traffic
    .filter((share) => share.revision > 0)
    .map((share) => `${share.revision}: ${Math.round((100 * share.weight) / Math.max(total, 1))} %`)
    .join(", ");
}

/** All deployments. A server without a store has only those of its command line, which the events name. */
export function useDeployments(): { list: DeploymentStatus[] | null; error: unknown; load: () => Promise<void> } {
  const hasStore = useStore(session)?.has_store ?? true;
  const live = useStore(snapshot);
  const { data, error, load } = useResource<DeploymentList>(hasStore ? "/deployments" : null, 5);
  if (hasStore) return { list: data?.deployments ?? null, error, load };
  const list = live?.deployments.map((one) => ({ ...one, latest_revision: 0, traffic: [] })) ?? null;
  return { list, error: null, load };
}

export function Deployments() {
  const { list, error, load } = useDeployments();
  const live = useStore(snapshot);
  const hasStore = useStore(session)?.has_store ?? true;
  const [uploading, setUploading] = useState(false);
  const liveOf = (name: string) => live?.deployments.find((one) => one.name === name);

  const columns: Column<DeploymentStatus>[] = [
    {
      title: "Deployment",
      kind: "whole",
      cell: (one) => (
        <>
          <a href={`#/deployments/${encodeURIComponent(one.name)}`}>
            <strong>{one.name}</strong>
          </a>
          {!one.stored && <div class="muted small">of the command line</div>}
        </>
      ),
    },
    { title: "State", width: "120px", cell: (one) => <DeploymentState state={liveOf(one.name)?.state ?? one.state} /> },
    { title: "Routes", cell: (one) => <span class="mono">{one.routes.join(" ")}</span> },
    { title: "Traffic by revision", width: "180px", cell: (one) => trafficText(one) || <span class="muted">one revision</span> },
    { title: "Requests", width: "110px", kind: "number", cell: (one) => integer(liveOf(one.name)?.requests ?? 0) },
    {
      title: "Stopped at a limit",
      width: "140px",
      kind: "number",
      cell: (one) => integer(Object.values(liveOf(one.name)?.limit_hits ?? {}).reduce((sum, hits) => sum + hits, 0)),
    },
  ];

  return (
    <>
      <PageHead title="Deployments">
        {hasStore && (
          <Button kind={uploading ? undefined : "main"} onClick={() => setUploading(!uploading)}>
            {uploading ? "Close" : "New deployment"}
          </Button>
        )}
      </PageHead>
      {uploading && <Upload done={() => void load()} />}
      {error !== null && <ErrorNote error={error} retry={() => void load()} />}
      <Panel title="All deployments">
        {list === null ? (
          error === null && <Loading what="deployments" />
        ) : list.length === 0 ? (
          <Empty title="Nothing is deployed">Choose “New deployment”, or use corral deploy.</Empty>
        ) : (
          <Table label="Deployments" columns={columns} rows={list} rowKey={(one) => one.name} />
        )}
        {!hasStore && <p class="muted small">The server runs without --store, so it takes no deployments.</p>}
      </Panel>
    </>
  );
}
