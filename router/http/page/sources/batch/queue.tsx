/** The queue: a dot for each request that waits, how long it has waited, and why. */
import type { JSX } from "preact";
import { asSentence, formatMs, formatNumberOf } from "../shell/format";
import { getSeries } from "./colours";
import { history, historyRevision } from "./history";
import type { WaitingSequence } from "./protocol";

const MAX_DOTS = 64;

export function QueueView(): JSX.Element {
  historyRevision.value; // eslint-disable-line
  const { queue } = history;
  return (
    <section class="card queue" aria-label="Queue">
      <h3>Queue <small>{queue.length ? formatNumberOf(queue.length, "request") : "empty"}</small></h3>
      {queue.length === 0 && <p class="hint">Nobody waits.</p>}
      <div class="dots-row" aria-hidden="true">
        {queue.waiting.slice(0, MAX_DOTS).map((entry) => <i key={entry.id} class={`dot series-${getSeries(asSequence(entry))}`} />)}
      </div>
      <ul>
        {groupByCause(queue.waiting).map(([cause, entries]) => (
          <li key={cause}><b>{entries.length}</b> for {formatMs(getLongestAge(entries))}: {asSentence(history.causes[cause] ?? cause)}</li>))}
      </ul>
    </section>);
}

function asSequence(entry: WaitingSequence) {
  return { ...entry, cached_tokens: 0 };
}

function groupByCause(waiting: WaitingSequence[]): [cause: string, entries: WaitingSequence[]][] {
  const groups = new Map<string, WaitingSequence[]>();
  for (const entry of waiting) groups.set(entry.cause, [...(groups.get(entry.cause) ?? []), entry]);
  return [...groups];
}

function getLongestAge(entries: WaitingSequence[]): number {
  const now = Date.now() / 1000 + history.clockOffset;
  return Math.max(0, ...entries.map((entry) => (now - entry.submitted_at) * 1000));
}
