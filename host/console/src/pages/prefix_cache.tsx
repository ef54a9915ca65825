// The prefixes that are kept for reuse, by deployment: how long, how often hit, where they lie.

import { useCallback, useEffect, useState } from "preact/hooks";
import { sendJson } from "../api";
import { bytes, count, integer } from "../format";
import { snapshot } from "../live";
import { mayChange } from "../session";
import { useStore } from "../store";
import type { PrefixEntry, PrefixList } from "../types";
import { Badge, Button, Empty, ErrorNote, Figure, Loading, PageHead, Panel, type Tone, confirm, useAction } from "../ui";

/** Time between two looks at the cache. */
const REFRESH = 3000;

const LOCATIONS: Record<PrefixEntry["location"], { text: string; tone: Tone }> = {
  cells: { text: "cells", tone: "good" },
  memory: { text: "RAM", tone: "warn" },
  disk: { text: "disk", tone: "plain" },
};

/** Deepest indentation. */
const MAX_LEVEL = 4;

const SHARED = "Shared by several deployments";

/** The entries of each deployment, and how deep each lies. */
function groupsOf(entries: PrefixEntry[]): [string, PrefixEntry[], number[]][] {
  const groups = new Map<string, PrefixEntry[]>();
  for (const entry of entries) {
    const name = entry.deployment ?? "";
    const group = groups.get(name);
    if (group) group.push(entry);
    else groups.set(name, [entry]);
  }
  const all = [...groups].map(([name, group]): [string, PrefixEntry[], number[]] => [name, group, levelsOf(group)]);
  return all.sort(([one], [other]) => one.localeCompare(other));
}

function entriesText(number: number): string {
  return number === 1 ? "1 entry" : `${integer(number)} entries`;
}

function sum(entries: PrefixEntry[], of: (entry: PrefixEntry) => number): number {
  return entries.reduce((total, entry) => total + of(entry), 0);
}

/** How deep each entry lies below entries that begin alike, at most `MAX_LEVEL`. */
function levelsOf(group: PrefixEntry[]): number[] {
  const branches: number[] = [];
  return group.map(({ shared_tokens: shared }) => {
    while (branches.length > 0 && (branches[branches.length - 1] ?? 0) > shared) branches.pop();
    if (shared > 0 && branches[branches.length - 1] !== shared) branches.push(shared);
    return Math.min(branches.length, MAX_LEVEL);
  });
}

type EntryProps = { entry: PrefixEntry; level: number; longest: number; drop: (entry: PrefixEntry) => void };

function Entry({ entry, level, longest, drop }: EntryProps) {
  const { text, tone } = LOCATIONS[entry.location] ?? { text: entry.location, tone: "plain" };
  return (
    <li class={`entry level-${level}`}>
      <span class="length" role="img" aria-label={count(entry.tokens, "token")}>
        <span style={{ width: `${Math.max(2, (entry.tokens / Math.max(longest, 1)) * 100)}%` }}>
          {entry.shared_tokens > 0 && <i style={{ width: `${(entry.shared_tokens / Math.max(entry.tokens, 1)) * 100}%` }} />}
        </span>
      </span>
      <b class="tokens">{count(entry.tokens, "token")}</b>
      <span class="hits">{count(entry.hits, "hit")}</span>
      {entry.shared_tokens > 0 && <span class="muted small">{integer(entry.shared_tokens)} shared</span>}
      <Badge tone={tone}>{text}</Badge>
      {entry.retained && <Badge>retained</Badge>}
      {entry.adapter > 0 && <span class="muted small">adapter {entry.adapter}</span>}
      <span class="muted small">
        {entry.model} #{entry.entry}
      </span>
      <Button
        slim
        disabled={entry.retained}
        onClick={() => drop(entry)}
        label={`Drop entry ${entry.entry} of ${entry.model}${entry.retained ? ": retained, its owner will return" : ""}`}
      >
        Drop
      </Button>
    </li>
  );
}

export function PrefixCache() {
  const [cache, setCache] = useState<PrefixList | null>(null);
  const [error, setError] = useState<unknown>(null);
  const current = useStore(snapshot);
  const [busy, run] = useAction();

  const load = useCallback(async () => {
    try {
      setCache(await sendJson("/prefix-cache"));
      setError(null);
    } catch (error) {
      setError(error);
    }
  }, []);
  useEffect(() => {
    void load();
    const timer = setInterval(() => document.visibilityState === "visible" && void load(), REFRESH);
    return () => clearInterval(timer);
  }, [load]);

  const dropAt = (path: string) => {
    run(async () => {
      const { dropped, kept } = await sendJson<{ dropped?: number; kept?: number }>(path, "DELETE");
      await load();
      const rest = kept ? ` ${entriesText(kept)} kept, since they are retained or in use.` : "";
      return dropped === undefined ? "Cached prefixes were dropped." : `${entriesText(dropped)} dropped.${rest}`;
    });
  };
  const dropEntry = (entry: PrefixEntry) => {
    if (mayChange()) dropAt(`/prefix-cache/${encodeURIComponent(entry.model)}/${entry.entry}`);
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
      {cache !== null && entries.length === 0 && (
        <Panel title="Entries">
          <Empty title="Nothing is cached">Prompts of finished requests stay here for the next ones that begin with the same text.</Empty>
        </Panel>
      )}
      {cache?.missing.map(({ model, reason }) => (
        <p key={model} class="muted small" role="status">
          The entries of {model} are missing: {reason}
        </p>
      ))}
      {groupsOf(entries).map(([name, group, levels]) => (
        <Panel
          key={name}
          title={name || SHARED}
          aside={
            <div class="row">
              <span class="muted small">
                {entriesText(group.length)}, {count(sum(group, (entry) => entry.tokens), "token")},{" "}
                {count(sum(group, (entry) => entry.hits), "hit")}
              </span>
              {name !== "" && (
                <Button slim disabled={busy} onClick={() => void dropGroup(name)} label={`Drop these of ${name}`}>
                  Drop these
                </Button>
              )}
            </div>
          }
        >
          <div class="tree">
            <ul aria-label={`Entries: ${name || SHARED}`}>
              {group.map((entry, index) => (
                <Entry
                  key={`${entry.model}/${entry.entry}`}
                  entry={entry}
                  level={levels[index] ?? 0}
                  longest={longest}
                  drop={dropEntry}
                />
              ))}
            </ul>
          </div>
        </Panel>
      ))}
      {(cache?.omitted ?? 0) > 0 && <p class="muted small">{integer(cache?.omitted ?? 0)} more are not shown.</p>}
    </>
  );
}
