// Numbers for people. All results have few digits, so that columns keep their widths.

/** Shown where there is no value. */
export const NONE = "–";

export function integer(value: number): string {
  return Math.round(value).toLocaleString("en-US");
}

/** A number with about three digits: 0.123, 1.23, 12.3, 123, 12.3k, 1.23M. */
export function short(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 999_500) return `${digits(value / 1e6)}M`;
  if (size >= 9_995) return `${digits(value / 1e3)}k`;
  if (size >= 1000) return integer(value);
  return digits(value);
}

function digits(value: number): string {
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  return value.toFixed(size >= 10 ? 1 : 2);
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1023.5 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : digits(value)} ${units[unit]}`;
}

/** A duration in seconds: 480 µs, 12.3 ms, 1.20 s, 4 min 10 s, 3 h 5 min. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  if (seconds === 0) return "0 ms";
  if (seconds < 0.000_999_5) return `${digits(seconds * 1e6)} µs`;
  if (seconds < 0.999_5) return `${digits(seconds * 1e3)} ms`;
  if (seconds < 60) return `${digits(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

export function percent(ratio: number | null | undefined): string {
  return ratio === null || ratio === undefined || !Number.isFinite(ratio) ? NONE : `${(ratio * 100).toFixed(1)} %`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const SHORT_CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "short" });
const DATE = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });

export function clock(milliseconds: number): string {
  return CLOCK.format(milliseconds);
}

export function hourAndMinute(milliseconds: number): string {
  return SHORT_CLOCK.format(milliseconds);
}

export function dateTime(milliseconds: number): string {
  return DATE.format(milliseconds);
}

/** `1 request`, `2 requests`. */
export function count(number: number, noun: string, plural = `${noun}s`): string {
  return `${integer(number)} ${number === 1 ? noun : plural}`;
}
