/** The live batch on a canvas, with what stands under the pointer, and the controls of what is shown. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { formatMs } from "../shell/format";
import { redrawOn } from "../shell/redraw";
import { useWidth } from "../shell/size";
import { theme } from "../shell/theme";
import { colourBy, describeSeries, readPalette } from "./colours";
import { describeRow, describeStep } from "./describe";
import { history, historyRevision, MAX_STEPS } from "./history";
import { isRecomputed } from "./protocol";
import {
  COLUMN_WIDTHS,
  columnWidth,
  getShownEnd,
  pausedAt,
  scrubBy,
  scrubTo,
  selectedId,
  togglePause,
} from "./view_state";
import {
  countColumns,
  countLanes,
  findAt,
  getFirstColumn,
  WeavePainter,
  type Hit,
  type Layout,
  type View,
} from "./weave";

const MIN_LANES = 8;
const MAX_HEIGHT = 420;

export function LiveWeave(): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [hit, setHit] = useState<Hit | null>(null);
  const width = useWidth(frame);
  redrawOn(historyRevision);
  const view: View = { end: getShownEnd(), isFromLeft: false, selectedId: selectedId.value };
  const layout = makeLayout(width, view);
  const numLanes = layout.numLanes;
  const weave = { steps: history.steps, sequences: history.sequences, numLanes, hollow: [] };
  useEffect(() => {
    if (canvas.current && width > 0) new WeavePainter(canvas.current, weave, layout, view, readPalette()).paint();
  });
  redrawOn(theme, colourBy);

  function findHit(event: MouseEvent): Hit | null {
    const box = canvas.current!.getBoundingClientRect();
    return findAt(weave, layout, view, event.clientX - box.left, event.clientY - box.top);
  }
  function onKeyDown(event: KeyboardEvent): void {
    const columns = { ArrowLeft: -1, ArrowRight: 1, PageUp: -countColumns(layout), PageDown: countColumns(layout) }[
      event.key
    ];
    if (columns !== undefined) scrubBy(columns);
    else if (event.key === "Home") scrubTo(1);
    else if (event.key === "End") pausedAt.value = null;
    else if (event.key === " ") togglePause();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp")
      selectNeighbour(event.key === "ArrowDown" ? 1 : -1, view.end);
    else if (event.key === "Escape") selectedId.value = null;
    else return;
    event.preventDefault();
  }
  return (
    <div class="weave" ref={frame}>
      <div
        class="weave-canvas"
        tabIndex={0}
        role="application"
        aria-label="Live batch: arrows left and right go through the steps, up and down choose a request, space pauses"
        onKeyDown={onKeyDown}
      >
        <canvas
          ref={canvas}
          role="img"
          aria-label={summarize(view.end)}
          onMouseMove={(event) => setHit(findHit(event))}
          onMouseLeave={() => setHit(null)}
          onClick={(event) => {
            selectedId.value = findHit(event)?.row?.[1] ?? null;
          }}
        />
        {history.steps.length === 0 && (
          <p class="weave-empty">
            <span>No steps yet: the model rests.</span>
          </p>
        )}
      </div>
      <p class="weave-hit">{hit ? <HitWords hit={hit} /> : <StepWords end={view.end} />}</p>
    </div>
  );
}

function makeLayout(width: number, view: View): Layout & { numLanes: number } {
  const base = { columnWidth: columnWidth.value, width, left: 30, top: 4, barHeight: 26, laneHeight: 18 };
  const first = getFirstColumn(base, view);
  const numLanes = Math.max(MIN_LANES, countLanes(history.steps, first, view.end));
  const laneHeight = Math.max(3, Math.min(18, Math.floor(MAX_HEIGHT / numLanes)));
  return { ...base, laneHeight, numLanes };
}

/** Choose the next sequence among those of the last step that is shown. */
function selectNeighbour(offset: number, end: number): void {
  const ids = (history.steps[end - 1]?.rows ?? []).map((row) => row[1]);
  if (ids.length === 0) return;
  const at = ids.indexOf(selectedId.value ?? -1);
  selectedId.value = ids[(at + offset + ids.length) % ids.length]!;
}

function summarize(end: number): string {
  const step = history.steps[end - 1];
  if (!step) return "No steps yet";
  return describeStep(step, end === history.steps.length);
}

function StepWords({ end }: { end: number }): JSX.Element {
  const step = history.steps[end - 1];
  return <>{step ? describeStep(step, end === history.steps.length) : "\u00a0"}</>;
}

function HitWords({ hit }: { hit: Hit }): JSX.Element {
  const { step, lane, row } = hit;
  const place = `Step ${step.step} (${formatMs(step.wall_ms)}), place ${lane + 1}: `;
  if (!row) return <>{place}free.</>;
  const sequence = history.sequences.get(row[1]);
  const series = sequence ? ` (${describeSeries(sequence, history.server?.model ?? "")})` : "";
  return (
    <>
      {place}
      {describeRow(row, `request ${row[1]}${series}`, isRecomputed(history.server))}.
    </>
  );
}

/** Pause, scrub, size and colours. */
export function WeaveControls(): JSX.Element {
  redrawOn(historyRevision);
  const isPaused = pausedAt.value !== null;
  return (
    <div class="weave-controls">
      <button type="button" aria-pressed={isPaused} onClick={togglePause}>
        {isPaused ? "▶ Live" : "❚❚ Pause"}
      </button>
      <label class="slider scrub">
        <span>Steps back</span>
        <input
          type="range"
          min={1}
          max={Math.max(1, history.steps.length)}
          value={getShownEnd()}
          aria-valuetext={`step ${history.steps[getShownEnd() - 1]?.step ?? 0} of the last ${MAX_STEPS}`}
          onInput={(event) => scrubTo(Number(event.currentTarget.value))}
        />
      </label>
      <label class="slider">
        <span>Width</span>
        <input
          type="range"
          min={0}
          max={COLUMN_WIDTHS.length - 1}
          value={COLUMN_WIDTHS.indexOf(columnWidth.value)}
          onInput={(event) => {
            columnWidth.value = COLUMN_WIDTHS[Number(event.currentTarget.value)]!;
          }}
        />
      </label>
    </div>
  );
}
