/** Which part of the history is shown, how large, and which sequence is chosen. */
import { signal } from "@preact/signals";
import { onKeyChange } from "../shell/api";
import { history } from "./history";

/** Step after the last one shown while paused; null while live. */
export const pausedAt = signal<number | null>(null);
export const columnWidth = signal(6);
export const selectedId = signal<number | null>(null);
export const COLUMN_WIDTHS = [2, 3, 4, 6, 8, 10, 14, 18];
onKeyChange(() => {
  pausedAt.value = null;
  selectedId.value = null;
});

/** Return the index after the last column that is shown. */
export function getShownEnd(): number {
  const at = pausedAt.value;
  if (at === null) return history.steps.length;
  const index = history.steps.findIndex((step) => step.step >= at);
  return index < 0 ? history.steps.length : Math.max(1, index);
}

export function togglePause(): void {
  const last = history.steps.at(-1);
  pausedAt.value = pausedAt.value === null && last ? last.step + 1 : null;
}

/** Show the history up to the column at `index`; at the end it is live again if it was. */
export function scrubTo(index: number): void {
  const bounded = Math.max(1, Math.min(index, history.steps.length));
  const next = history.steps[bounded];
  pausedAt.value = next ? next.step : (history.steps.at(-1)?.step ?? 0) + 1;
}

export function scrubBy(columns: number): void {
  scrubTo(getShownEnd() + columns);
}
