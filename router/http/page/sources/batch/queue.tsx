/** The queue: a dot for each request that waits, how long the first has waited, and why. */
import type { JSX } from "preact";
import { formatMs } from "../shell/format";
import { redrawOn } from "../shell/redraw";
import { getSeries } from "./colours";
import { history, historyRevision } from "./history";
import type { WaitingSequence } from "./protocol";

const MAX_DOTS = 48;
const MAX_CAUSES = 3;
/** What a request waits for, by the words of its timeline. */
const CAUSE_WORDS: Record<string, string> = {
  queue: "behind others",
  tenant: "for the turn of their tenant",
  group: "for their static group",
  batch: "for a place in the batch",
  blocks: "for room in the cache",
  budget: "for prompt tokens of a step",
  prefix: "for a prompt that begins like theirs",
  adapter: "for their adapter",
  grammar: "for their grammar",
  trial: "behind those tried after a fault",
  reader: "for their client to read",
  yielded: "again, after they were preempted",
  shards: "for the shards",
};

export function QueueView(): JSX.Element {
  redrawOn(historyRevision);
  const { queue } = history;
  return (
    <section class="queue" aria-label="Queue">
      <h4>Queue</h4>
      <span class="dots-row" aria-hidden="true">
        {queue.waiting.slice(0, MAX_DOTS).map((entry) => (
          <i key={entry.id} class={`dot series-${getSeries({ ...entry, cached_tokens: 0 })}`} />
        ))}
      </span>
      <p>
        {queue.length === 0 ? (
          "nobody waits"
        ) : (
          <>
            {queue.length} wait, up to {formatMs(getLongestAge(queue.waiting))}:
          </>
        )}
      </p>
      <ul>
        {groupByCause(queue.waiting).map(([cause, entries]) => (
          <li key={cause} title={history.causes[cause]}>
            {entries.length} {CAUSE_WORDS[cause] ?? cause}
          </li>
        ))}
      </ul>
    </section>
  );
}

/** Return the requests that wait by what they wait for, the most frequent causes first. */
function groupByCause(waiting: WaitingSequence[]): [cause: string, entries: WaitingSequence[]][] {
  const groups = new Map<string, WaitingSequence[]>();
  for (const entry of waiting) groups.set(entry.cause, [...(groups.get(entry.cause) ?? []), entry]);
  return [...groups].sort(([, a], [, b]) => b.length - a.length).slice(0, MAX_CAUSES);
}

function getLongestAge(entries: WaitingSequence[]): number {
  const now = Date.now() / 1000 + history.clockOffset;
  return Math.max(0, ...entries.map((entry) => (now - entry.submitted_at) * 1000));
}
