/** The map of the cache: a square for each block, or for several where there are many. */
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { formatCount } from "../shell/format";
import { redrawOn } from "../shell/redraw";
import { useWidth } from "../shell/size";
import { theme } from "../shell/theme";
import { colourBy, getSeries, readPalette, type Palette } from "./colours";
import { history, historyRevision } from "./history";
import type { Blocks } from "./protocol";
import { prepareCanvas } from "./weave";

const FREE = 0;
const CACHED = -1;
const SHARED = -2;
const MAX_SQUARES = 1600;

export function BlockMap(): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(frame);
  redrawOn(historyRevision);
  const { blocks } = history;
  useEffect(() => {
    if (canvas.current && width > 0 && blocks?.map) paintMap(canvas.current, width, blocks, readPalette());
  }, [blocks?.map, width, theme.value, colourBy.value]);
  return (
    <section class="card blocks" aria-label="Cache blocks">
      <h3>
        Cache <small>{blocks ? `${formatCount(blocks.used)} of ${formatCount(blocks.total)} blocks held` : ""}</small>
      </h3>
      <div ref={frame}>
        <canvas ref={canvas} role="img" aria-label={blocks ? describe(blocks) : "No blocks known"} />
      </div>
      <div class="legend-marks">
        <span class="swatch">
          <i class="square series-0" />
          held by a request
        </span>
        <span class="swatch">
          <i class="square shared" />
          shared by several
        </span>
        <span class="swatch">
          <i class="square cached" />
          kept for later prompts
        </span>
        <span class="swatch">
          <i class="square" />
          free
        </span>
      </div>
      {blocks && getBlocksPerSquare(blocks) > 1 && <p class="hint">A square is {getBlocksPerSquare(blocks)} blocks.</p>}
    </section>
  );
}

function describe(blocks: Blocks): string {
  const { used, shared, cached, free } = blocks;
  return `${used} blocks held, ${shared} of them shared, ${cached} kept for later prompts, ${free} free`;
}

function getBlocksPerSquare(blocks: Blocks): number {
  return Math.ceil(blocks.total / MAX_SQUARES);
}

/** Return who is shown in each square: of several blocks the one that is held, if any is. */
export function toSquares(map: [number, number][], blocksPerSquare: number): number[] {
  const squares: number[] = [];
  let at = 0;
  for (const [who, count] of map) {
    for (let block = at; block < at + count;) {
      const square = Math.floor(block / blocksPerSquare);
      squares[square] = preferHeld(squares[square] ?? FREE, who);
      block = (square + 1) * blocksPerSquare;
    }
    at += count;
  }
  return squares;
}

function preferHeld(a: number, b: number): number {
  const rank = (who: number): number => (who > 0 ? 3 : who === SHARED ? 2 : who === CACHED ? 1 : 0);
  return rank(b) > rank(a) ? b : a;
}

function paintMap(canvas: HTMLCanvasElement, width: number, blocks: Blocks, palette: Palette): void {
  const squares = toSquares(blocks.map!, getBlocksPerSquare(blocks));
  const size = Math.max(5, Math.min(11, Math.floor(Math.sqrt((width * 130) / Math.max(squares.length, 1)))));
  const columns = Math.max(1, Math.floor(width / size));
  const context = prepareCanvas(canvas, width, Math.ceil(squares.length / columns) * size);
  squares.forEach((who, index) => {
    const x = (index % columns) * size;
    const y = Math.floor(index / columns) * size;
    paintSquare(context, x, y, size - 1.5, who, palette);
  });
}

function paintSquare(
  context: CanvasRenderingContext2D,
  x: number,
  y: number,
  size: number,
  who: number,
  palette: Palette,
): void {
  if (who === FREE) {
    context.strokeStyle = palette.line;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    return;
  }
  context.fillStyle =
    who === CACHED
      ? palette.muted
      : who === SHARED
        ? palette.shared
        : palette.series[getSeries(history.sequences.get(who))]!;
  context.globalAlpha = who === CACHED ? 0.35 : 1;
  context.fillRect(x, y, size, size);
  context.globalAlpha = 1;
}
