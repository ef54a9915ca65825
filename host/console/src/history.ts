// The last fifteen minutes of figures, computed from the snapshots that arrived. All of it is lost with the page.

import type { Histogram, ModelSnapshot, Snapshot } from "./types";

export const HISTORY_SECONDS = 15 * 60;
/** Samples kept: one a second, and some more for the start of the window. */
const MAX_SAMPLES = HISTORY_SECONDS + 60;
/** Rates in the charts are means over this many seconds. */
const RATE_SECONDS = 5;
/** Percentiles and ratios are of this many seconds. */
export const WINDOW_SECONDS = 60;

/** What only grows. */
interface Totals {
  steps: number;
  rows: number;
  computed: number;
  generated: number;
  prompt: number;
  hits: number;
  firstToken: Histogram;
  nextToken: Histogram;
}

/** The figures of one model, or of all, at one time. */
export interface Sample extends Totals {
  seconds: number;
  running: number;
  waiting: number;
  cells: { total: number; running: number; cached: number; free: number };
}

export const NO_OBSERVATIONS: Histogram = { bounds: [], counts: [], sum: 0, count: 0 };

const COUNTERS = ["steps", "rows", "computed", "generated", "prompt", "hits"] as const;

const NOTHING: Sample = {
  seconds: 0,
  running: 0,
  waiting: 0,
  cells: { total: 0, running: 0, cached: 0, free: 0 },
  steps: 0,
  rows: 0,
  computed: 0,
  generated: 0,
  prompt: 0,
  hits: 0,
  firstToken: NO_OBSERVATIONS,
  nextToken: NO_OBSERVATIONS,
};

export class History {
  #started = 0;
  #samples: { seconds: number; models: Map<string, Sample>; all: Sample }[] = [];

  /** Adds a snapshot. If the server was started again, or its clock was set back, what came before is dropped. */
  add(snapshot: Snapshot): void {
    const seconds = snapshot.time_ms / 1000;
    const last = this.#samples.at(-1);
    if (snapshot.started_ms !== this.#started || (last && last.seconds > seconds)) this.#samples = [];
    else if (last?.seconds === seconds) return;
    this.#started = snapshot.started_ms;
    const models = new Map<string, Sample>();
    for (const model of snapshot.models) {
      if (model.counters) models.set(model.model, sampleOf(seconds, model));
    }
    this.#samples.push({ seconds, models, all: sumOf(seconds, models, this.#samples.at(-1)) });
    if (this.#samples.length > MAX_SAMPLES) this.#samples.shift();
  }

  /**
   * The samples of a model, or of all models together, oldest first; null where the model, or any, was not loaded. The
   * counters of all models begin at zero with the first snapshot.
   */
  samples(model: string | null): (Sample | null)[] {
    return this.#samples.map(({ models, all }) => (model !== null ? (models.get(model) ?? null) : models.size > 0 ? all : null));
  }

  get times(): number[] {
    return this.#samples.map((sample) => sample.seconds);
  }
}

function sampleOf(seconds: number, model: ModelSnapshot): Sample {
  const counters = model.counters;
  return {
    seconds,
    running: model.requests_running ?? 0,
    waiting: model.requests_waiting ?? 0,
    cells: model.cells ?? { total: 0, running: 0, cached: 0, free: 0 },
    steps: counters?.steps ?? 0,
    rows: counters?.rows ?? 0,
    computed: counters?.computed_tokens ?? 0,
    generated: counters?.generated_tokens ?? 0,
    prompt: counters?.prompt_tokens ?? 0,
    hits: counters?.prefix_cache_hit_tokens ?? 0,
    firstToken: model.histograms?.time_to_first_token_seconds ?? NO_OBSERVATIONS,
    nextToken: model.histograms?.inter_token_latency_seconds ?? NO_OBSERVATIONS,
  };
}

/**
 * All models together: their queues and cells, and what they did since the first snapshot. Sums of the counters themselves
 * would fall when a model is unloaded, and jump when it is loaded. So each model adds its change since the previous
 * snapshot; one that was not in there adds nothing.
 */
function sumOf(seconds: number, models: Map<string, Sample>, previous?: { models: Map<string, Sample>; all: Sample }): Sample {
  const sum: Sample = previous
    ? { ...previous.all, seconds, running: 0, waiting: 0 }
    : { ...NOTHING, seconds };
  sum.cells = { ...NOTHING.cells };
  for (const [name, sample] of models) {
    sum.running += sample.running;
    sum.waiting += sample.waiting;
    for (const kind of ["total", "running", "cached", "free"] as const) sum.cells[kind] += sample.cells[kind];
    const before = previous?.models.get(name);
    const change = before && changeBetween(before, sample);
    if (!change) continue;
    for (const counter of COUNTERS) sum[counter] += change[counter];
    sum.firstToken = combine(sum.firstToken, change.firstToken, 1);
    sum.nextToken = combine(sum.nextToken, change.nextToken, 1);
  }
  return sum;
}

/** `left + sign * right`, for histograms with the same bounds; those without observations have none. */
function combine(left: Histogram, right: Histogram, sign: 1 | -1): Histogram {
  const bounds = left.bounds.length > 0 ? left.bounds : right.bounds;
  return {
    bounds,
    counts: bounds.map((_, index) => (left.counts[index] ?? 0) + sign * (right.counts[index] ?? 0)),
    sum: left.sum + sign * right.sum,
    count: left.count + sign * right.count,
  };
}

/**
 * The value that a share of the observations does not exceed, interpolated within its bucket. Observations above the last
 * bound count as that bound. Null without observations.
 */
export function quantile(histogram: Histogram, share: number): number | null {
  const rank = share * histogram.count;
  if (histogram.count <= 0) return null;
  let below = 0;
  let lower = 0;
  for (const [index, upper] of histogram.bounds.entries()) {
    const count = histogram.counts[index] ?? 0;
    if (count >= rank && count > below) return lower + ((upper - lower) * (rank - below)) / (count - below);
    below = count;
    lower = upper;
  }
  return histogram.bounds.at(-1) ?? null;
}

/** What happened between two samples. Null if counters fell, as when a model was loaded again. */
export interface Change extends Totals {
  seconds: number;
}

/** The change over the last `seconds` before the sample at `index`, or over a shorter time if there is no older sample. */
export function changeAt(samples: (Sample | null)[], index: number, seconds: number): Change | null {
  const to = samples[index];
  if (!to) return null;
  let from: Sample | null = null;
  for (let older = index - 1; older >= 0; older -= 1) {
    const sample = samples[older];
    if (!sample || to.seconds - sample.seconds > seconds + 0.5) break;
    from = sample;
  }
  return from && changeBetween(from, to);
}

function changeBetween(from: Sample, to: Sample): Change | null {
  const change: Change = {
    seconds: to.seconds - from.seconds,
    steps: to.steps - from.steps,
    rows: to.rows - from.rows,
    computed: to.computed - from.computed,
    generated: to.generated - from.generated,
    prompt: to.prompt - from.prompt,
    hits: to.hits - from.hits,
    firstToken: combine(to.firstToken, from.firstToken, -1),
    nextToken: combine(to.nextToken, from.nextToken, -1),
  };
  const fell = COUNTERS.some((counter) => change[counter] < 0) || change.firstToken.count < 0 || change.nextToken.count < 0;
  return fell ? null : change;
}

export type Line = (number | null)[];

/** The lines of all charts. */
export interface Lines {
  tokens: Line;
  computed: Line;
  rows: Line;
  running: Line;
  waiting: Line;
  cellsRunning: Line;
  cellsUsed: Line;
  hits: Line;
  firstToken: [Line, Line, Line];
  nextToken: [Line, Line, Line];
}

export function linesOf(samples: (Sample | null)[]): Lines {
  const rates = samples.map((_, index) => changeAt(samples, index, RATE_SECONDS));
  const windows = samples.map((_, index) => changeAt(samples, index, WINDOW_SECONDS));
  const percentiles = (of: "firstToken" | "nextToken"): [Line, Line, Line] => {
    const line = (share: number) => windows.map((window) => window && quantile(window[of], share));
    return [line(0.5), line(0.95), line(0.99)];
  };
  return {
    tokens: rates.map((rate) => rate && rate.generated / rate.seconds),
    computed: rates.map((rate) => rate && rate.computed / rate.seconds),
    rows: rates.map((rate) => (rate && rate.steps > 0 ? rate.rows / rate.steps : null)),
    running: samples.map((sample) => sample && sample.running),
    waiting: samples.map((sample) => sample && sample.waiting),
    cellsRunning: samples.map((sample) => sample && sample.cells.running),
    cellsUsed: samples.map((sample) => sample && sample.cells.running + sample.cells.cached),
    hits: windows.map((window) => (window && window.prompt > 0 ? (100 * window.hits) / window.prompt : null)),
    firstToken: percentiles("firstToken"),
    nextToken: percentiles("nextToken"),
  };
}
