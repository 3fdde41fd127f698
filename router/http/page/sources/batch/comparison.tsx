/** The same requests under continuous and under static batching, one above the other, step by step. */
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { apiKey, fetchJson, onKeyChange } from "../shell/api";
import { Notice } from "../shell/controls";
import { formatNumberOf } from "../shell/format";
import { redrawOn } from "../shell/redraw";
import { useWidth } from "../shell/size";
import { theme } from "../shell/theme";
import { colourBy, readPalette } from "./colours";
import { history } from "./history";
import type { Sequence, SimulatedRun } from "./protocol";
import { findHollowLanes, WeavePainter, type Layout, type Weave } from "./weave";

interface Comparison {
  continuous: SimulatedRun;
  static: SimulatedRun;
  /** Stretch of steps whose requests are compared. */
  since: number;
  until: number;
}

export const comparison = signal<Comparison | null>(null);
export const comparisonError = signal("");
/** Places in the batch of both sides. */
export const numPlaces = signal(8);
/** Share of the longer run that is shown, 0 to 1, while both are played. */
const shownShare = signal(1);
const PLAY_SECONDS = 4;
onKeyChange(() => {
  comparison.value = null;
  comparisonError.value = "";
});
/** For which the first request of a static group waits for others, so that it does not run alone. */
const STATIC_WINDOW_MS = 200;

/** Have the server simulate the requests of these steps both ways, and play them. */
export async function compare(since: number, until: number): Promise<void> {
  comparisonError.value = "";
  const key = apiKey.value;
  const common = { since, until, max_batch_size: numPlaces.value, static_window_ms: STATIC_WINDOW_MS };
  try {
    const [continuous, fixed] = await Promise.all(
      ["continuous", "static"].map((batching) =>
        fetchJson<SimulatedRun>("v1/engine/simulate", { body: { ...common, batching } }),
      ),
    );
    if (apiKey.value !== key) return;
    comparison.value = { continuous: continuous!, static: fixed!, since, until };
    play();
  } catch (error) {
    if (apiKey.value === key) comparisonError.value = (error as Error).message;
  }
}

let playing = 0;

/** Show both runs growing side by side in the time of the longer one. */
export function play(): void {
  cancelAnimationFrame(playing);
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
    shownShare.value = 1;
    return;
  }
  const startedAt = performance.now();
  function advance(now: number): void {
    shownShare.value = Math.min(1, (now - startedAt) / (PLAY_SECONDS * 1000));
    if (shownShare.value < 1) playing = requestAnimationFrame(advance);
  }
  shownShare.value = 0;
  playing = requestAnimationFrame(advance);
}

export function ComparisonView(): JSX.Element | null {
  if (comparisonError.value) return <Notice kind="error">No comparison: {comparisonError.value}</Notice>;
  return comparison.value && <BothRuns shown={comparison.value} />;
}

function BothRuns({ shown }: { shown: Comparison }): JSX.Element {
  const element = useRef<HTMLElement>(null);
  useEffect(() => element.current?.scrollIntoView({ block: "nearest", behavior: "smooth" }), [shown]);
  const numColumns = Math.max(shown.continuous.steps.length, shown.static.steps.length);
  return (
    <section ref={element} class="card comparison" aria-label="Continuous and static batching">
      <div class="card-head">
        <h3>The same requests, batched in two ways</h3>
        <PlaceChoice />
        <button type="button" onClick={play}>
          ▶ Play again
        </button>
      </div>
      <p class="verdict" role="status">
        {describeComparison(shown)}
      </p>
      <RunView
        title="Continuous: whoever is finished leaves, the next one enters at once"
        run={shown.continuous}
        numColumns={numColumns}
      />
      <RunView
        title="Static: a group leaves when its longest request is finished"
        run={shown.static}
        numColumns={numColumns}
        isStatic
      />
      <p class="hint">
        Both are simulated by the server's own scheduler, with the step times that it has learned.
        {describeRecorded(shown)}
      </p>
    </section>
  );
}

function PlaceChoice(): JSX.Element {
  return (
    <label class="field inline">
      <span>Places in the batch</span>
      <select
        value={numPlaces.value}
        onChange={(event) => {
          numPlaces.value = Number(event.currentTarget.value);
          if (comparison.value) void compare(comparison.value.since, comparison.value.until);
        }}
      >
        {[4, 6, 8, 12, 16].map((count) => (
          <option key={count} value={count}>
            {count}
          </option>
        ))}
      </select>
    </label>
  );
}

function describeComparison({ continuous, static: fixed }: Comparison): string {
  const numHollow = findHollowLanes(fixed.steps).reduce((sum, lanes) => sum + lanes.length, 0);
  const share = Math.round((100 * numHollow) / (fixed.steps.length * fixed.max_batch_size));
  return (
    `Continuous: ${formatNumberOf(continuous.requests, "request")} in ${describeRun(continuous)}. ` +
    `Static: ${describeRun(fixed)}. ` +
    (numHollow ? `Hollow cells are places that wait for the longest request of their group: ${share} % of all.` : "")
  );
}

/** Say how many steps the server took, which may have more places. Its seconds would count how requests arrived. */
function describeRecorded({ continuous: { recorded } }: Comparison): string {
  const numPlacesHere = history.server?.max_batch_size;
  if (!recorded || !numPlacesHere) return "";
  const took = formatNumberOf(recorded.steps, "step");
  return ` This server, with ${formatNumberOf(numPlacesHere, "place")}, took ${took} for them.`;
}

function describeRun(run: SimulatedRun): string {
  return `${formatNumberOf(run.steps.length, "step")}, ${run.summary.seconds.toFixed(1)} s`;
}

interface RunProps {
  title: string;
  run: SimulatedRun;
  numColumns: number;
  isStatic?: boolean;
}

function RunView({ title, run, numColumns, isStatic }: RunProps): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(frame);
  redrawOn(theme, colourBy);
  const end = Math.min(run.steps.length, Math.ceil(shownShare.value * numColumns));
  const isOver = end === run.steps.length;
  useEffect(() => {
    if (!canvas.current || width === 0) return;
    const painter = new WeavePainter(
      canvas.current,
      toWeave(run, isStatic ?? false),
      makeLayout(width, numColumns),
      { end, isFromLeft: true, selectedId: null },
      readPalette(),
    );
    painter.paint();
    if (isOver) painter.paintRemark(`all ${run.requests} finished`);
  });
  return (
    <figure class="run">
      <figcaption>
        {title} <b>{isOver ? `${describeRun(run)}` : ""}</b>
      </figcaption>
      <div ref={frame}>
        <canvas ref={canvas} role="img" aria-label={`${title}: ${describeRun(run)}`} />
      </div>
    </figure>
  );
}

function toWeave(run: SimulatedRun, isStatic: boolean): Weave {
  const sequences = new Map<number, Sequence>(run.sequences.map((sequence) => [sequence.id, sequence]));
  return {
    steps: run.steps,
    sequences,
    numLanes: run.max_batch_size,
    hollow: isStatic ? findHollowLanes(run.steps) : [],
  };
}

function makeLayout(width: number, numColumns: number): Layout {
  const left = 30;
  return {
    columnWidth: Math.min(16, (width - left) / Math.max(numColumns, 1)),
    laneHeight: 15,
    width,
    left,
    top: 2,
    barHeight: 0,
  };
}
