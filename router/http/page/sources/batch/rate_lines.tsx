/** Rates of the last minutes as lines. */
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { formatMs, formatRate } from "../shell/format";
import { redrawOn } from "../shell/redraw";
import { useWidth } from "../shell/size";
import { readColour, theme } from "../shell/theme";
import { history, historyRevision, type RateSample } from "./history";

interface Line {
  title: string;
  hint: string;
  read: (sample: RateSample) => number | null;
  format: (value: number) => string;
}

const LINES: Line[] = [
  {
    title: "Tokens/s",
    hint: "tokens generated for all requests together",
    format: formatRate,
    read: ({ rates }) => rates.tokens_per_second,
  },
  {
    title: "First token",
    hint: "median time from a request to its first token",
    format: formatMs,
    read: ({ rates }) => rates.first_token_ms.p50,
  },
  {
    title: "Gap",
    hint: "median time between two tokens of a request",
    format: formatMs,
    read: ({ rates }) => rates.gap_ms.p50,
  },
  {
    title: "Queue",
    hint: "requests that wait",
    format: (value) => String(value),
    read: (sample) => sample.queueLength,
  },
];
const SHOWN_SECONDS = 120;
const HEIGHT = 44;

export function RateLines(): JSX.Element {
  return (
    <div class="rate-lines">
      {LINES.map((line) => (
        <RateLine key={line.title} line={line} />
      ))}
    </div>
  );
}

function RateLine({ line }: { line: Line }): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const width = useWidth(frame);
  const colours = theme.value;
  redrawOn(historyRevision);
  const last = history.samples.at(-1);
  const value = last ? line.read(last) : null;
  useEffect(() => {
    if (!frame.current || width === 0) return;
    plot.current = new uPlot(makeOptions(width), [[], []], frame.current);
    return () => plot.current?.destroy();
  }, [width, colours]);
  useEffect(() => plot.current?.setData(readData(line)), [last, width, colours]);
  return (
    <section class="card rate" aria-label={`${line.title} over time`} title={line.hint}>
      <h3>{line.title}</h3>
      <p class="figure">{value === null ? "–" : line.format(value)}</p>
      <div ref={frame} class="rate-plot" aria-hidden="true" />
    </section>
  );
}

function readData(line: Line): uPlot.AlignedData {
  const now = history.samples.at(-1)?.t ?? 0;
  const shown = history.samples.filter((sample) => sample.t >= now - SHOWN_SECONDS);
  return [shown.map((sample) => sample.t), shown.map(line.read)];
}

function makeOptions(width: number): uPlot.Options {
  const stroke = readColour("accent");
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    axes: [{ show: false }, { show: false }],
    padding: [3, 0, 2, 0],
    scales: { x: { time: false }, y: { range: (_plot, _low, high) => [0, Math.max(high, 1) * 1.1] } },
    series: [{}, { stroke, width: 1.5, fill: `${stroke}22`, points: { show: false }, spanGaps: true }],
  };
}
