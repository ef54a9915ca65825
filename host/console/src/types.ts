// What the server answers: docs/api.md and host/server/openapi.json.

export interface Session {
  authorized: boolean;
  token_required: boolean;
  can_read: boolean;
  /** These are absent unless `can_read`. */
  has_store?: boolean;
  public_url?: string;
  keys?: boolean;
}

/** Cumulative: `counts[i]` observations were at most `bounds[i]`. */
export interface Histogram {
  bounds: number[];
  counts: number[];
  sum: number;
  count: number;
}

export interface ModelCounters {
  steps: number;
  rows: number;
  computed_tokens: number;
  generated_tokens: number;
  prompt_tokens: number;
  prefix_cache_hit_tokens: number;
  requests_finished: number;
  requests_failed: number;
  requests_canceled: number;
  requests_expired: number;
  requests_refused: number;
  preemptions: number;
}

export interface ModelSnapshot {
  model: string;
  state: string;
  progress?: number;
  error?: string;
  memory_bytes: number;
  leases: number;
  calls_waiting: number;
  cells?: { total: number; running: number; cached: number; free: number };
  requests_running?: number;
  requests_waiting?: number;
  swapped_bytes?: { memory: number; disk: number };
  offloaded_prefix_bytes?: number;
  prefix_disk_bytes?: number;
  counters?: ModelCounters;
  histograms?: { time_to_first_token_seconds: Histogram; inter_token_latency_seconds: Histogram };
}

export interface RequestSnapshot {
  request_id: string;
  deployment: string;
  revision?: number;
  tenant?: string;
  key?: string;
  method: string;
  path: string;
  from: string;
  state: string;
  model?: string;
  prompt_tokens: number;
  cached_tokens: number;
  generated_tokens: number;
  age_seconds: number;
}

export interface DeploymentSnapshot {
  name: string;
  stored: boolean;
  state: string;
  routes: string[];
  requests: number;
  limit_hits: Record<string, number>;
}

export interface Snapshot {
  time_ms: number;
  started_ms: number;
  version: string;
  ready: boolean;
  not_ready: string[];
  http: { in_flight: number; connections: number; responses: Record<string, number> };
  memory?: { resident_bytes?: number };
  models: ModelSnapshot[];
  requests: RequestSnapshot[];
  requests_omitted: number;
  deployments: DeploymentSnapshot[];
}

export interface PrefixEntry {
  model: string;
  entry: number;
  deployment: string | null;
  adapter: number;
  tokens: number;
  /** Tokens in common with the entry before it. */
  shared_tokens: number;
  hits: number;
  location: "cells" | "memory" | "disk";
  retained: boolean;
}

export interface PrefixList {
  entries: PrefixEntry[];
  omitted: number;
  /** Models in a long step, whose entries are of an earlier moment. */
  stale: { model: string; age_seconds: number }[];
  /** Models that did not answer. */
  missing: { model: string; reason: string }[];
}

export interface DeploymentStatus {
  name: string;
  stored: boolean;
  state: string;
  routes: string[];
  latest_revision: number;
  traffic: { revision: number; weight: number; state: string; error?: string | null }[];
}

export interface DeploymentList {
  public_address: string;
  public_tls: boolean;
  deployments: DeploymentStatus[];
}

export interface Manifest {
  name: string;
  component: string;
  routes: string[];
  [field: string]: unknown;
}

export interface Revision {
  number: number;
  component: string;
  component_bytes: number;
  created_ms: number;
  manifest: Manifest;
}

export interface DeploymentDetails {
  deployment: DeploymentStatus;
  revisions: Revision[];
  limit_hits?: Record<string, number>;
}

export interface LogLine {
  number: number;
  time_ms: number;
  revision?: number | null;
  request_id: string;
  stream: string;
  text: string;
}
