/** Redrawing of what is changed in place. */
import type { ReadonlySignal } from "@preact/signals";

/** Components with state are drawn anew only when something that they got is another thing: answers and steps are not.
 * This has the calling component drawn anew whenever one of the signals changes. */
export function redrawOn(...signals: ReadonlySignal<unknown>[]): void {
  for (const signal of signals) void signal.value;
}
