// The prefixes that are kept for reuse, by deployment: how long, how often hit, where they lie.

import { useState } from "preact/hooks";
import { sendJson } from "../api";
import { bytes, count, duration, integer } from "../format";
import { snapshot } from "../live";
import { type PrefixNode, treesOf } from "../prefix_tree";
import { useResource } from "../resource";
import { mayChange } from "../session";
import { useStore } from "../store";
import type { PrefixEntry, PrefixList } from "../types";
import { Button, Empty, ErrorNote, Figure, Loading, PageHead, Panel, confirm, useAction } from "../ui";
import { PrefixTreeGrid } from "./prefix_tree_grid";

/** Seconds between two looks at the cache. */
const REFRESH = 3;

const SHARED = "Shared by several deployments";

interface Group {
  /** The deployment, or empty for shared prefixes. */
  name: string;
  entries: PrefixEntry[];
  trees: PrefixNode[];
}

function groupsOf(entries: PrefixEntry[]): Group[] {
  const groups = new Map<string, PrefixEntry[]>();
  for (const entry of entries) {
    const name = entry.deployment ?? "";
    const group = groups.get(name);
    if (group) group.push(entry);
    else groups.set(name, [entry]);
  }
  const all = [...groups].map(([name, entries]) => ({ name, entries, trees: treesOf(entries) }));
  return all.sort((one, other) => one.name.localeCompare(other.name));
}

/** The keys of the branches of trees. */
function branchesOf(trees: PrefixNode[]): string[] {
  const nodes = [...trees];
  for (const node of nodes) nodes.push(...node.children);
  return nodes.filter((node) => node.children.length > 0).map(({ key }) => key);
}

function entriesText(number: number): string {
  return count(number, "entry", "entries");
}

function sum(entries: PrefixEntry[], of: (entry: PrefixEntry) => number): number {
  return entries.reduce((total, entry) => total + of(entry), 0);
}

export function PrefixCache() {
  const { data: cache, error, load } = useResource<PrefixList>("/prefix-cache", REFRESH);
  const [collapsed, setCollapsed] = useState<ReadonlySet<string>>(new Set());
  const current = useStore(snapshot);
  const [busy, run] = useAction();

  const dropAt = (path: string) => {
    run(async () => {
      const { dropped, kept } = await sendJson<{ dropped?: number; kept?: number }>(path, "DELETE");
      await load();
      const rest = kept ? ` ${entriesText(kept)} kept, since they are retained or in use.` : "";
      return dropped === undefined ? "Cached prefixes were dropped." : `${entriesText(dropped)} dropped.${rest}`;
    });
  };
  const dropNode = async ({ entry, tokens, entries, children }: PrefixNode) => {
    if (!mayChange()) return;
    const path = `/prefix-cache/${encodeURIComponent(entry.model)}/${entry.entry}`;
    if (children.length === 0) return dropAt(path);
    const text = `Drop the ${entriesText(entries)} that begin with these ${count(tokens, "token")}? Retained ones stay.`;
    if (await confirm(text, "Drop")) dropAt(`${path}?first_tokens=${tokens}`);
  };
  const dropGroup = async (name: string) => {
    if (!mayChange()) return;
    const path = `/prefix-cache?deployment=${encodeURIComponent(name)}`;
    if (await confirm(`Drop the cached prefixes of ${name}? Its next requests compute their whole prompts.`, "Drop")) dropAt(path);
  };
  const dropAll = async () => {
    if (!mayChange()) return;
    if (await confirm("Drop all cached prefixes? The next requests compute their whole prompts.", "Drop all")) dropAt("/prefix-cache");
  };

  const entries = cache?.entries ?? [];
  const longest = Math.max(0, ...entries.map((entry) => entry.tokens));
  const groups = groupsOf(entries);
  const branches = new Map(groups.map(({ name, trees }) => [name, branchesOf(trees)]));
  /** Collapses some branches, and expands others. Those that are gone are forgotten. */
  const change = (keys: string[], collapse: boolean) => {
    const known = [...branches.values()].flat().filter((key) => collapsed.has(key));
    const next = new Set(collapse ? [...known, ...keys] : known.filter((key) => !keys.includes(key)));
    setCollapsed(next);
  };
  const isCollapsed = ({ key }: PrefixNode) => collapsed.has(key);
  const offloaded = current?.models.reduce((total, model) => total + (model.offloaded_prefix_bytes ?? 0), 0);
  const onDisk = current?.models.reduce((total, model) => total + (model.prefix_disk_bytes ?? 0), 0);
  const tokensIn = (location: string) => integer(sum(entries.filter((entry) => entry.location === location), (entry) => entry.tokens));
  return (
    <>
      <PageHead title="Prefix cache">
        <Button kind="danger" disabled={busy || entries.length === 0} onClick={() => void dropAll()}>
          Drop all
        </Button>
      </PageHead>
      {error !== null && <ErrorNote error={error} retry={() => void load()} />}
      <div class="figures">
        <Figure name="Entries" value={integer(entries.length + (cache?.omitted ?? 0))} detail={`${integer(sum(entries, (entry) => entry.hits))} hits`} />
        <Figure name="Tokens in cells" value={tokensIn("cells")} />
        <Figure name="Tokens in RAM" value={tokensIn("memory")} detail={bytes(offloaded)} />
        <Figure name="Tokens on disk" value={tokensIn("disk")} detail={bytes(onDisk)} />
      </div>
      {cache === null && error === null && <Loading what="the cache" />}
      {cache !== null && entries.length === 0 && cache.missing.length === 0 && (
        <Panel title="Entries">
          <Empty title="Nothing is cached">Prompts of finished requests stay here for the next ones that begin with the same text.</Empty>
        </Panel>
      )}
      {groups.map(({ name, entries: group, trees }) => {
        const keys = branches.get(name) ?? [];
        const all = keys.length > 0 && keys.every((key) => collapsed.has(key));
        return (
          <Panel
            key={name}
            title={name || SHARED}
            aside={
              <div class="row">
                <span class="muted small">
                  {entriesText(group.length)}, {count(sum(group, (entry) => entry.hits), "hit")}
                </span>
                <Button
                  slim
                  disabled={keys.length === 0}
                  onClick={() => change(keys, !all)}
                  label={`${all ? "Expand" : "Collapse"} all of ${name || SHARED}`}
                >
                  {all ? "Expand all" : "Collapse all"}
                </Button>
                {name !== "" && (
                  <Button slim disabled={busy} onClick={() => void dropGroup(name)} label={`Drop these of ${name}`}>
                    Drop these
                  </Button>
                )}
              </div>
            }
          >
            <PrefixTreeGrid
              label={`Entries: ${name || SHARED}`}
              trees={trees}
              longest={longest}
              isCollapsed={isCollapsed}
              toggle={(node) => change([node.key], !isCollapsed(node))}
              drop={(node) => void dropNode(node)}
            />
          </Panel>
        );
      })}
      {cache?.missing.map(({ model, reason }) => (
        <p key={model} class="muted small" role="status">
          The entries of {model} are missing: {reason}
        </p>
      ))}
      {cache?.stale.map(({ model, age_seconds }) => (
        <p key={model} class="muted small">
          A step of {model} takes long: its entries are those of {duration(age_seconds)} ago.
        </p>
      ))}
      {entries.length > 0 && (
        <p class="muted small">
          To drop a branch drops every entry that begins with it. To drop an entry keeps the tokens that others share with it.
        </p>
      )}
      {(cache?.omitted ?? 0) > 0 && <p class="muted small">{integer(cache?.omitted ?? 0)} more are not shown.</p>}
    </>
  );
}
