/** The chosen row: what it is, and the timeline of its request if it is one's own. */
import type { JSX } from "preact";
import { RequestDetail } from "../requests/detail";
import { linkToRequest } from "../shell/navigation";
import { usePolled } from "../shell/poll";
import { redrawOn } from "../shell/redraw";
import { describeSeries } from "./colours";
import { history, historyRevision } from "./history";
import type { EngineState } from "./protocol";
import { selectedId } from "./view_state";

const TEXT_POLL_SECONDS = 1;

export function SequenceDetail(): JSX.Element | null {
  redrawOn(historyRevision);
  const id = selectedId.value;
  if (id === null)
    return <p class="hint">Click a row, or choose it with the arrow keys, to see where its time went.</p>;
  const sequence = history.sequences.get(id);
  return (
    <section class="card" aria-label={`Request ${id}`}>
      <div class="card-head">
        <h3>
          Request {id} <small>{sequence && describeSeries(sequence, history.server?.model ?? "")}</small>
        </h3>
        {sequence?.request_id && <a href={linkToRequest(sequence.request_id)}>Open</a>}
        <button
          type="button"
          class="quiet"
          aria-label="Close"
          onClick={() => {
            selectedId.value = null;
          }}
        >
          ✕
        </button>
      </div>
      {sequence?.request_id ? (
        <RequestDetail key={id} id={sequence.request_id} />
      ) : (
        <p class="hint">It belongs to another tenant: nothing more of it is shown.</p>
      )}
      {history.server?.show_text && <SequenceText id={id} />}
    </section>
  );
}

/** The end of what the sequence has generated so far, on a server with --ui-show-text. */
function SequenceText({ id }: { id: number }): JSX.Element | null {
  const { value } = usePolled<EngineState>("v1/engine/state", TEXT_POLL_SECONDS);
  const text = value?.running.find((sequence) => sequence.id === id)?.text;
  return text ? <pre class="raw-text">…{text}</pre> : null;
}
