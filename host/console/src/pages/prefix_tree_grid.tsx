// The tree of cached prefixes of one deployment, as rows that collapse.

import { useState } from "preact/hooks";
import { count, integer } from "../format";
import { type PrefixNode, type PrefixRow, rowsOf } from "../prefix_tree";
import type { PrefixEntry } from "../types";
import { Badge, Button, type Tone } from "../ui";

const LOCATIONS: { name: PrefixEntry["location"]; text: string; tone: Tone }[] = [
  { name: "cells", text: "cells", tone: "good" },
  { name: "memory", text: "RAM", tone: "warn" },
  { name: "disk", text: "disk", tone: "plain" },
];

/** Deepest indentation. */
const MAX_INDENT = 8;

/** Where the entries at and below a node lie. */
function Locations({ node }: { node: PrefixNode }) {
  const used = LOCATIONS.filter(({ name }) => node.locations[name] > 0);
  return (
    <span class="row">
      {used.map(({ name, text, tone }) => (
        <Badge key={name} tone={tone}>
          {node.children.length > 0 ? `${text} ${integer(node.locations[name])}` : text}
        </Badge>
      ))}
      {node.children.length === 0 && node.entry.retained && <Badge>retained</Badge>}
    </span>
  );
}

/** How long a prefix is, and how much of it its parent has. */
function Length({ node, longest }: { node: PrefixNode; longest: number }) {
  return (
    <span class="length" role="presentation">
      <span style={{ width: `${Math.max(2, (node.tokens / Math.max(longest, 1)) * 100)}%` }}>
        {node.shared > 0 && <i style={{ width: `${(node.shared / Math.max(node.tokens, 1)) * 100}%` }} />}
      </span>
    </span>
  );
}

type RowProps = { row: PrefixRow; longest: number; open: boolean; current: boolean; toggle: () => void; drop: () => void };

function Row({ row: { node, level, position, siblings }, longest, open, current, toggle, drop }: RowProps) {
  const branch = node.children.length > 0;
  const { entry } = node;
  return (
    <tr
      role="row"
      aria-level={level}
      aria-posinset={position}
      aria-setsize={siblings}
      aria-expanded={branch ? open : undefined}
      tabIndex={current ? 0 : -1}
      class={branch ? "branch" : ""}
      style={`--indent: ${Math.min(level - 1, MAX_INDENT)}`}
    >
      <td role="gridcell" class="whole">
        <div class="prefix">
          {branch ? (
            <button type="button" class="toggle" tabIndex={-1} aria-label={open ? "Collapse" : "Expand"} onClick={toggle}>
              <svg width="12" height="12" viewBox="0 0 12 12" fill="currentColor" aria-hidden="true">
                <path d={open ? "M1 3.5h10L6 9.5z" : "M3.5 1v10l6-5z"} />
              </svg>
            </button>
          ) : (
            <span class="toggle" />
          )}
          <Length node={node} longest={longest} />
          <b>{count(node.tokens, "token")}</b>
          <span class="muted small">
            {branch ? `shared by ${integer(node.entries)} entries` : `entry ${entry.entry}`}
            {!branch && node.shared > 0 && `, ${integer(node.tokens - node.shared)} own`}
          </span>
        </div>
      </td>
      <td role="gridcell" class="number" data-title="Hits">
        {integer(node.hits)}
      </td>
      <td role="gridcell" data-title="Where">
        <Locations node={node} />
      </td>
      <td role="gridcell" data-title="Model">
        {entry.model}
        {entry.adapter > 0 && <div class="muted small">adapter {entry.adapter}</div>}
      </td>
      <td role="gridcell" class="actions">
        <div class="row">
          <Button
            slim
            disabled={!branch && entry.retained}
            onClick={drop}
            label={
              branch
                ? `Drop ${integer(node.entries)} entries that share ${node.tokens} tokens with entry ${entry.entry} of ${entry.model}`
                : `Drop entry ${entry.entry} of ${entry.model}${entry.retained ? ": retained, its owner will return" : ""}`
            }
          >
            {branch ? `Drop ${integer(node.entries)}` : "Drop"}
          </Button>
        </div>
      </td>
    </tr>
  );
}

type GridProps = {
  label: string;
  trees: PrefixNode[];
  longest: number;
  isCollapsed: (node: PrefixNode) => boolean;
  toggle: (node: PrefixNode) => void;
  drop: (node: PrefixNode) => void;
};

/** A tree grid: the arrow keys, Home and End move between rows, expand and collapse. */
export function PrefixTreeGrid({ label, trees, longest, isCollapsed, toggle, drop }: GridProps) {
  const rows = rowsOf(trees, isCollapsed);
  const [chosen, setChosen] = useState("");
  const current = Math.max(0, rows.findIndex(({ node }) => node.key === chosen));

  const onKeyDown = (event: KeyboardEvent) => {
    const all = [...(event.currentTarget as HTMLElement).children];
    const at = all.indexOf(event.target as Element);
    const row = rows[at];
    // A button in the row has its own keys.
    if (!row) return;
    const open = row.node.children.length > 0 && !isCollapsed(row.node);
    let next: number | undefined;
    switch (event.key) {
      case "ArrowDown":
        next = at + 1;
        break;
      case "ArrowUp":
        next = at - 1;
        break;
      case "Home":
        next = 0;
        break;
      case "End":
        next = rows.length - 1;
        break;
      case "ArrowRight":
        if (open) next = at + 1;
        else if (row.node.children.length > 0) toggle(row.node);
        break;
      case "ArrowLeft":
        if (open) toggle(row.node);
        else next = rows.findLastIndex((one, index) => index < at && one.level < row.level);
        break;
      case "Enter":
        if (row.node.children.length > 0) toggle(row.node);
        break;
      default:
        return;
    }
    event.preventDefault();
    if (next !== undefined) (all[next] as HTMLElement | undefined)?.focus();
  };
  const onFocus = (event: FocusEvent) => {
    const at = [...(event.currentTarget as HTMLElement).children].findIndex((row) => row.contains(event.target as Node));
    setChosen(rows[at]?.node.key ?? "");
  };

  return (
    <div class="scroll">
      <table class="stacks tree" role="treegrid" aria-label={label}>
        <colgroup>
          <col />
          <col style={{ width: "64px" }} />
          <col style={{ width: "220px" }} />
          <col style={{ width: "104px" }} />
          <col style={{ width: "90px" }} />
        </colgroup>
        <thead role="rowgroup">
          <tr role="row">
            <th role="columnheader" scope="col">
              Prefix
            </th>
            <th role="columnheader" scope="col" class="number">
              Hits
            </th>
            <th role="columnheader" scope="col">
              Where
            </th>
            <th role="columnheader" scope="col">
              Model
            </th>
            <th role="columnheader" scope="col" class="actions">
              <span class="hidden-label">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody role="rowgroup" onKeyDown={onKeyDown} onFocusIn={onFocus}>
          {rows.map((row, index) => (
            <Row
              key={row.node.key}
              row={row}
              longest={longest}
              open={!isCollapsed(row.node)}
              current={index === current}
              toggle={() => toggle(row.node)}
              drop={() => drop(row.node)}
            />
          ))}
        </tbody>
      </table>
    </div>
  );
}
