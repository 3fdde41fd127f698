/** Draws steps as a weave: a row for each place in the batch, a column for each step, a cell for each token.
 *
 * A cell is filled where a token was generated and hatched where a part of the prompt was computed. A hollow cell is a
 * place that stays empty because its group is not over (static batching). */
import { getSeries, type Palette } from "./colours";
import type { Row, Sequence, Step } from "./protocol";

export interface Weave {
  steps: Step[];
  sequences: Map<number, Sequence>;
  numLanes: number;
  /** Lanes that wait for the longest of their group, by step; empty unless batching is static. */
  hollow: number[][];
}

export interface Layout {
  /** Size of a cell, in CSS pixels. */
  columnWidth: number;
  laneHeight: number;
  width: number;
  left: number;
  top: number;
  /** Height of the bars of the steps' durations; 0 for none. */
  barHeight: number;
}

/** A stretch of columns: the last one is drawn at the right edge, or the first at the left with `isFromLeft`. */
export interface View {
  end: number;
  isFromLeft: boolean;
  selectedId: number | null;
}

export function countColumns(layout: Layout): number {
  return Math.max(1, Math.floor((layout.width - layout.left) / layout.columnWidth));
}

export function getHeight(layout: Layout, numLanes: number): number {
  return layout.top + numLanes * layout.laneHeight + (layout.barHeight ? layout.barHeight + 8 : 0);
}

/** Return the index of the first column that is drawn. */
export function getFirstColumn(layout: Layout, view: View): number {
  return view.isFromLeft ? 0 : Math.max(0, view.end - countColumns(layout));
}

/** Return where a column begins; columns stand at the right edge until they fill the width. */
export function getColumnX(layout: Layout, view: View, index: number): number {
  const first = getFirstColumn(layout, view);
  const offset = view.isFromLeft
    ? layout.left
    : Math.max(layout.left, layout.width - (view.end - first) * layout.columnWidth);
  return offset + (index - first) * layout.columnWidth;
}

export interface Hit {
  step: Step;
  lane: number;
  row: Row | null;
}

/** Return the step, lane and row at a point of the canvas. */
export function findAt(weave: Weave, layout: Layout, view: View, x: number, y: number): Hit | null {
  const first = getFirstColumn(layout, view);
  const index = first + Math.floor((x - getColumnX(layout, view, first)) / layout.columnWidth);
  const lane = Math.floor((y - layout.top) / layout.laneHeight);
  const step = index < view.end ? weave.steps[index] : undefined;
  if (!step || x < layout.left || lane < 0 || lane >= weave.numLanes) return null;
  return { step, lane, row: step.rows.find((row) => row[0] === lane) ?? null };
}

export class WeavePainter {
  private readonly context: CanvasRenderingContext2D;
  private readonly hatches = new Map<string, CanvasPattern>();
  private readonly gap: number;

  constructor(
    canvas: HTMLCanvasElement,
    private readonly weave: Weave,
    private readonly layout: Layout,
    private readonly view: View,
    private readonly palette: Palette,
  ) {
    this.context = prepareCanvas(canvas, layout.width, getHeight(layout, weave.numLanes));
    this.gap = layout.columnWidth >= 6 ? 1.5 : layout.columnWidth >= 3 ? 1 : 0;
  }

  paint(): void {
    this.paintLanes();
    const first = getFirstColumn(this.layout, this.view);
    for (let index = first; index < this.view.end; index += 1) this.paintStep(index);
    for (let index = first; index < this.view.end; index += 1) this.paintMarks(index);
    if (this.layout.barHeight) this.paintDurations(first);
  }

  /** Write a remark behind the last column that is shown, if there is room. */
  paintRemark(text: string): void {
    const { context, layout, palette } = this;
    context.font = "600 13px system-ui, sans-serif";
    context.textAlign = "left";
    const x = getColumnX(layout, this.view, this.view.end) + 14;
    if (x + context.measureText(text).width > layout.width) return;
    context.fillStyle = palette.ink;
    context.fillText(text, x, this.laneY(this.weave.numLanes / 2));
  }

  private laneY(lane: number): number {
    return this.layout.top + lane * this.layout.laneHeight;
  }

  private paintLanes(): void {
    const { context, layout, palette } = this;
    context.fillStyle = palette.line;
    context.globalAlpha = 0.45;
    for (let lane = 0; lane < this.weave.numLanes; lane += 1) {
      context.fillRect(layout.left, this.laneY(lane) + layout.laneHeight / 2 - 0.5, layout.width - layout.left, 1);
    }
    context.globalAlpha = 1;
    if (layout.left < 20) return;
    context.fillStyle = palette.muted;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    const every = layout.laneHeight >= 11 ? 1 : Math.ceil(22 / layout.laneHeight);
    for (let lane = 0; lane < this.weave.numLanes; lane += every) {
      context.fillText(String(lane + 1), layout.left - 8, this.laneY(lane) + layout.laneHeight / 2 + 0.5);
    }
  }

  private paintStep(index: number): void {
    const step = this.weave.steps[index]!;
    const x = getColumnX(this.layout, this.view, index);
    for (const row of step.rows) this.paintCell(x, row);
    for (const lane of this.weave.hollow[index] ?? []) this.paintHollow(x, lane);
  }

  private paintCell(x: number, [lane, id, tokens, kind]: Row): void {
    const { context, layout, gap } = this;
    const colour = this.palette.series[getSeries(this.weave.sequences.get(id))]!;
    const isDimmed = this.view.selectedId !== null && this.view.selectedId !== id;
    context.globalAlpha = isDimmed ? 0.25 : kind === "d" && tokens === 0 ? 0.3 : 1;
    context.fillStyle = kind === "d" || kind === "e" ? colour : this.getHatch(colour);
    const inset = Math.min(2, layout.laneHeight * 0.12);
    context.beginPath();
    context.roundRect(
      x,
      this.laneY(lane) + inset,
      layout.columnWidth - gap,
      layout.laneHeight - 2 * inset,
      gap ? Math.min(2.5, layout.columnWidth / 4) : 0,
    );
    context.fill();
    context.globalAlpha = 1;
  }

  private paintHollow(x: number, lane: number): void {
    const { context, layout, gap } = this;
    const inset = Math.min(2, layout.laneHeight * 0.12) + 0.5;
    const [y, height] = [this.laneY(lane) + inset, layout.laneHeight - 2 * inset];
    context.strokeStyle = this.palette.alarm;
    context.fillStyle = this.palette.alarm;
    context.globalAlpha = 0.07;
    context.fillRect(x, y, layout.columnWidth - gap, height);
    context.globalAlpha = 0.6;
    context.lineWidth = 1;
    if (gap) context.strokeRect(x + 0.5, y, Math.max(1, layout.columnWidth - gap - 1), height);
    else for (const edge of [y - 0.5, y + height - 0.5]) context.fillRect(x, edge, layout.columnWidth, 1);
    context.globalAlpha = 1;
  }

  /** Marks where a request entered, ended, was cancelled, or was preempted. */
  private paintMarks(index: number): void {
    const step = this.weave.steps[index]!;
    const x = getColumnX(this.layout, this.view, index);
    const end = x + this.layout.columnWidth - this.gap;
    for (const [lane] of step.finished) this.paintEnd(end, lane);
    for (const [lane] of step.cancelled) this.paintCross(x, lane);
    for (const [lane] of step.preempted) this.paintNotch(x, lane);
  }

  /** The end of a finished request: a dark edge. */
  private paintEnd(x: number, lane: number): void {
    const { context, layout } = this;
    context.fillStyle = this.palette.ink;
    const width = Math.min(2.5, Math.max(1, layout.columnWidth / 3));
    context.fillRect(x - width, this.laneY(lane) + 1, width, layout.laneHeight - 2);
  }

  /** A request that its client cancelled: a cross. */
  private paintCross(x: number, lane: number): void {
    const { context, layout } = this;
    const size = Math.min(4, layout.laneHeight / 3);
    const y = this.laneY(lane) + layout.laneHeight / 2;
    this.strokeMark(() => {
      context.moveTo(x - size, y - size);
      context.lineTo(x + size, y + size);
      context.moveTo(x - size, y + size);
      context.lineTo(x + size, y - size);
    });
  }

  /** A preempted request: a wedge that points away from it. */
  private paintNotch(x: number, lane: number): void {
    const { context, layout } = this;
    const size = Math.min(5, layout.laneHeight / 2.5);
    const y = this.laneY(lane) + layout.laneHeight / 2;
    context.fillStyle = this.palette.alarm;
    context.beginPath();
    context.moveTo(x, y - size);
    context.lineTo(x + size, y);
    context.lineTo(x, y + size);
    context.fill();
  }

  private strokeMark(trace: () => void): void {
    this.context.strokeStyle = this.palette.alarm;
    this.context.lineWidth = 2;
    this.context.beginPath();
    trace();
    this.context.stroke();
  }

  private paintDurations(first: number): void {
    const { context, layout, palette } = this;
    const base = this.laneY(this.weave.numLanes) + layout.barHeight + 4;
    const shown = this.weave.steps.slice(first, this.view.end);
    const longest = Math.max(1, ...shown.map((step) => step.wall_ms));
    context.fillStyle = palette.muted;
    context.textAlign = "right";
    context.font = "11px system-ui, sans-serif";
    context.fillText("ms", layout.left - 8, base - layout.barHeight / 2);
    context.globalAlpha = 0.55;
    shown.forEach((step, offset) => {
      const height = Math.max(1, (step.wall_ms / longest) * layout.barHeight);
      context.fillRect(
        getColumnX(layout, this.view, first + offset),
        base - height,
        Math.max(1, layout.columnWidth - this.gap),
        height,
      );
    });
    context.globalAlpha = 1;
  }

  private getHatch(colour: string): CanvasPattern {
    let hatch = this.hatches.get(colour);
    if (!hatch) this.hatches.set(colour, (hatch = makeHatch(this.context, colour)));
    return hatch;
  }
}

function makeHatch(context: CanvasRenderingContext2D, colour: string): CanvasPattern {
  const scale = devicePixelRatio || 1;
  const size = Math.round(6 * scale);
  const tile = new OffscreenCanvas(size, size);
  const pen = tile.getContext("2d")!;
  pen.fillStyle = colour;
  pen.globalAlpha = 0.28;
  pen.fillRect(0, 0, size, size);
  pen.globalAlpha = 1;
  pen.strokeStyle = colour;
  pen.lineWidth = 1.7 * scale;
  pen.beginPath();
  for (const shift of [-size, 0, size]) {
    pen.moveTo(shift, size);
    pen.lineTo(shift + size, 0);
  }
  pen.stroke();
  const pattern = context.createPattern(tile, "repeat")!;
  pattern.setTransform(new DOMMatrix().scale(1 / scale));
  return pattern;
}

/** Size a canvas for the screen's pixels and clear it. */
export function prepareCanvas(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d")!;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}

/** Return the weave of a run under static batching, with the places that wait for the longest of their group. */
export function findHollowLanes(steps: Step[]): number[][] {
  let ended = new Set<number>();
  let active = new Set<number>();
  return steps.map((step) => {
    if (step.admitted.length && active.size === 0) ended = new Set();
    for (const [lane] of step.admitted) {
      active.add(lane);
      ended.delete(lane);
    }
    const hollow = [...ended].filter((lane) => active.size > 0 && !step.rows.some((row) => row[0] === lane));
    for (const [lane] of [...step.finished, ...step.cancelled, ...step.preempted]) {
      if (active.delete(lane)) ended.add(lane);
    }
    return hollow;
  });
}

export function countLanes(steps: Step[], from: number, to: number): number {
  let most = 0;
  for (let index = from; index < to; index += 1) {
    for (const row of steps[index]!.rows) most = Math.max(most, row[0] + 1);
  }
  return most;
}
