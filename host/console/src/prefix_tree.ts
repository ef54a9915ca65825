// The tree of cached prefixes, from entries in the order of the server's tree.

import type { PrefixEntry } from "./types";

/** An entry, or a branch: tokens with which several entries begin. */
export interface PrefixNode {
  /** Unique among the nodes of a server; that of a branch stays while its oldest entry does. */
  key: string;
  /** Tokens from the root to the end of this node. */
  tokens: number;
  /** How many of them its parent has. */
  shared: number;
  /** The entry; of a branch, the oldest one. */
  entry: PrefixEntry;
  /** None of an entry. */
  children: PrefixNode[];
  /** Entries at and below it, in all and by location; their hits. */
  entries: number;
  locations: Record<PrefixEntry["location"], number>;
  hits: number;
}

/** A node as a row of a tree that is shown. */
export interface PrefixRow {
  node: PrefixNode;
  /** 1 for nodes without a parent. */
  level: number;
  /** Among its siblings, from 1. */
  position: number;
  siblings: number;
}

function leafOf(entry: PrefixEntry): PrefixNode {
  const locations = { cells: 0, memory: 0, disk: 0 };
  locations[entry.location] = 1;
  return {
    key: `${entry.model}/${entry.entry}`,
    tokens: entry.tokens,
    shared: 0,
    entry,
    children: [],
    entries: 1,
    locations,
    hits: entry.hits,
  };
}

/** The nodes below no other. `entries` are some of the server's list, in its order, without gaps inside a model's tree. */
export function treesOf(entries: PrefixEntry[]): PrefixNode[] {
  // The branches down to the entry before; the first stands for the root.
  let open: { tokens: number; children: PrefixNode[] }[] = [];
  const trees: PrefixNode[][] = [];
  let before: PrefixEntry | undefined;
  for (const entry of entries) {
    if (!before || before.model !== entry.model || before.adapter !== entry.adapter) {
      open = [{ tokens: 0, children: [] }];
      trees.push(open[0]?.children ?? []);
    }
    before = entry;
    while (open.length > 1 && (open.at(-1)?.tokens ?? 0) > entry.shared_tokens) open.pop();
    const parent = open.at(-1);
    if (!parent) continue;
    const sibling = parent.children.pop();
    if (sibling && parent.tokens < entry.shared_tokens) {
      const branch = { ...sibling, key: "", tokens: entry.shared_tokens, children: [sibling, leafOf(entry)] };
      parent.children.push(branch);
      open.push(branch);
    } else {
      if (sibling) parent.children.push(sibling);
      parent.children.push(leafOf(entry));
    }
  }
  const roots = trees.flat();
  complete(roots);
  return roots;
}

/** Sums up branches. Trees may be deep, so it does not call itself. */
function complete(roots: PrefixNode[]): void {
  const nodes = [...roots];
  for (const node of nodes) {
    for (const child of node.children) child.shared = node.tokens;
    nodes.push(...node.children);
  }
  // Children come after their parents.
  for (const node of nodes.reverse()) {
    if (node.children.length === 0) continue;
    node.entries = 0;
    node.hits = 0;
    node.locations = { cells: 0, memory: 0, disk: 0 };
    node.entry = node.children.reduce((oldest, { entry }) => (entry.entry < oldest.entry ? entry : oldest), node.children[0]?.entry ?? node.entry);
    for (const child of node.children) {
      node.entries += child.entries;
      node.hits += child.hits;
      for (const location of ["cells", "memory", "disk"] as const) node.locations[location] += child.locations[location];
    }
    node.key = `${node.entry.model}/${node.entry.entry}/${node.tokens}`;
  }
}

/** The rows of a tree, without those below collapsed nodes. */
export function rowsOf(roots: PrefixNode[], isCollapsed: (node: PrefixNode) => boolean): PrefixRow[] {
  const rows: PrefixRow[] = [];
  const rowsAt = (nodes: PrefixNode[], level: number) =>
    nodes.map((node, index) => ({ node, level, position: index + 1, siblings: nodes.length })).reverse();
  const open = rowsAt(roots, 1);
  for (let row = open.pop(); row; row = open.pop()) {
    rows.push(row);
    if (!isCollapsed(row.node)) open.push(...rowsAt(row.node.children, row.level + 1));
  }
  return rows;
}
