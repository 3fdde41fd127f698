/** What colours and marks mean. */
import type { JSX } from "preact";
import { Choice } from "../shell/controls";
import { redrawOn } from "../shell/redraw";
import { chooseColour, colourBy, describeSeries, getSeries, type ColourBy } from "./colours";
import { history, historyRevision } from "./history";
import { isRecomputed } from "./protocol";

const OPTIONS: Record<ColourBy, string> = { request: "request", adapter: "adapter", tenant: "tenant" };

export function Legend(): JSX.Element {
  redrawOn(historyRevision);
  return (
    <div class="legend">
      <div class="legend-colours">
        <span>Colour:</span>
        <Choice label="Colour by" options={OPTIONS} value={colourBy.value} onChange={chooseColour} />
        {colourBy.value !== "request" &&
          listSeries().map(([words, series]) => (
            <span key={words} class="swatch">
              <i class={`cell series-${series}`} />
              {words}
            </span>
          ))}
      </div>
      <div class="legend-marks">
        {!isRecomputed(history.server) && (
          <span class="swatch">
            <i class="cell" />a token
          </span>
        )}
        <span class="swatch">
          <i class="cell hatched" />
          {isRecomputed(history.server)
            ? "a token, with all before it computed anew (--recompute)"
            : "part of a prompt"}
        </span>
        <span class="swatch">
          <i class="cell ended" />
          finished
        </span>
        <span class="swatch">
          <i class="cell faint" />
          computed ahead, in vain
        </span>
        <span class="swatch">
          <i class="sign">✕</i>cancelled
        </span>
        <span class="swatch">
          <i class="sign">▶</i>preempted
        </span>
      </div>
    </div>
  );
}

/** Return the words and colours of the sequences of the last steps, without repetition. */
function listSeries(): [words: string, series: number][] {
  const found = new Map<string, number>();
  for (const step of history.steps.slice(-300)) {
    for (const [, id] of step.rows) {
      const sequence = history.sequences.get(id);
      if (sequence) found.set(describeSeries(sequence, history.server?.model ?? ""), getSeries(sequence));
    }
  }
  return [...found].sort(([a], [b]) => (a < b ? -1 : 1)).slice(0, 10);
}
