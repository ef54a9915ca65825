// A line chart of the last fifteen minutes. Its size is fixed, and so is its legend, so nothing moves when values change.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { hourAndMinute } from "./format";
import { HISTORY_SECONDS, type Line } from "./history";
import { useStore } from "./store";
import { theme } from "./theme";
import { Panel } from "./ui";

const HEIGHT = 168;

export interface ChartLine {
  name: string;
  line: Line;
  /** The area below the line is filled. */
  filled?: boolean;
}

/** The color of a CSS variable, resolved for the theme in use. */
function cssColor(element: HTMLElement, variable: string): string {
  element.style.color = `var(${variable})`;
  const color = getComputedStyle(element).color;
  element.style.color = "";
  return color;
}

function options(
  element: HTMLElement,
  lines: { name: string; filled?: boolean }[],
  format: (value: number) => string,
): uPlot.Options {
  const grid = cssColor(element, "--line");
  const text = cssColor(element, "--muted");
  const font = "11px system-ui, sans-serif";
  return {
    width: Math.max(element.clientWidth, 100),
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    padding: [8, 6, 0, 0],
    scales: {
      x: { time: true, range: (_plot, _min, max) => [max - HISTORY_SECONDS, max] },
      y: { range: (_plot, _min, max) => [0, max > 0 ? max * 1.1 : 1] },
    },
    axes: [
      {
        stroke: text,
        font,
        size: 26,
        space: 70,
        grid: { show: false },
        ticks: { stroke: grid, size: 4 },
        values: (_plot, seconds) => seconds.map((second) => hourAndMinute(second * 1000)),
      },
      {
        stroke: text,
        font,
        size: 58,
        space: 34,
        grid: { stroke: grid, width: 1 },
        ticks: { show: false },
        values: (_plot, values) => values.map((value) => format(value)),
      },
    ],
    series: [
      {},
      ...lines.map(({ name, filled }, index): uPlot.Series => {
        const stroke = cssColor(element, `--series-${index + 1}`);
        const series: uPlot.Series = { label: name, stroke, width: 1.75, points: { show: false } };
        if (filled) series.fill = stroke.replace("rgb(", "rgba(").replace(")", ", 0.14)");
        return series;
      }),
    ],
  };
}

export function Chart(props: {
  title: string;
  times: number[];
  lines: ChartLine[];
  format: (value: number | null | undefined) => string;
}) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const values = useRef<(HTMLElement | null)[]>([]);
  const currentTheme = useStore(theme);
  const { title, times, lines, format } = props;
  const names = lines.map((line) => line.name).join("\n");

  // The values at the cursor, or the newest, are written without a render: the cursor moves often.
  const write = (index: number | null | undefined) => {
    for (const [series, { line }] of lines.entries()) {
      const value = line[index ?? line.length - 1];
      const element = values.current[series];
      if (element) element.textContent = format(value);
    }
  };
  const latest = useRef(write);
  latest.current = write;

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const made = new uPlot(options(element, lines, format), [times, ...lines.map(({ line }) => line)], element);
    made.over.addEventListener("mousemove", () => latest.current(made.cursor.idx));
    made.over.addEventListener("mouseleave", () => latest.current(null));
    const observer = new ResizeObserver(() => made.setSize({ width: Math.max(element.clientWidth, 100), height: HEIGHT }));
    observer.observe(element);
    plot.current = made;
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [names, currentTheme]);

  useEffect(() => {
    plot.current?.setData([times, ...lines.map(({ line }) => line)]);
    latest.current(plot.current?.cursor.idx);
  }, [times]);

  const summary = lines.map(({ name, line }) => `${name} ${format(line.at(-1))}`).join(", ");
  return (
    <Panel title={title}>
      <ul class="legend">
        {lines.map(({ name }, index) => (
          <li key={name}>
            <span class={`swatch fill-${index + 1}`} />
            {name} <b ref={(element) => void (values.current[index] = element)} />
          </li>
        ))}
      </ul>
      <div class="chart" ref={place} role="img" aria-label={`${title} in the last 15 minutes; now: ${summary}`} />
    </Panel>
  );
}
