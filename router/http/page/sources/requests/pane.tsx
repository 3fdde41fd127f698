/** The last requests of the key's tenant, with filters; one of them whole. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { send } from "../shell/api";
import { Notice } from "../shell/controls";
import { formatMs } from "../shell/format";
import { serverInfo } from "../shell/models";
import { linkToRequest, shownRequestId } from "../shell/navigation";
import { describeEnd, describeOutcome, STATE_WORDS } from "../shell/outcome";
import { usePolled } from "../shell/poll";
import { RequestDetail } from "./detail";
import { getKind } from "./timeline";

interface RequestEntry {
  id: string;
  state: string;
  error_type: string | null;
  adapter: string | null;
  finish_reason: string | null;
  arrived_at: number;
  first_token_ms: number | null;
  prompt_tokens: number;
  cached_tokens: number;
  generated_tokens: number;
  total_ms: number;
  by_cause: Record<string, number>;
}

interface Filters {
  state: string;
  adapter: string;
  outcome: string;
  slower: string;
}

const MAX_REQUESTS = 500;
const POLL_SECONDS = 2;
const NO_FILTERS: Filters = { state: "", adapter: "", outcome: "", slower: "" };
const FINISH_REASONS = ["eos_token", "stop_sequence", "length"];

export function RequestsPane(): JSX.Element {
  const [filters, setFilters] = useState(NO_FILTERS);
  const { value, error, refresh } = usePolled<{ requests: RequestEntry[] }>(makePath(filters), POLL_SECONDS);
  const requests = value?.requests ?? [];
  const id = shownRequestId.value;
  return (
    <div class="requests">
      <section class="request-list" aria-label="Requests">
        <h2>
          Requests <small>the last {MAX_REQUESTS} of your key</small>
        </h2>
        <FilterBar filters={filters} onChange={setFilters} />
        {error && <Notice kind="error">{error}</Notice>}
        {value && requests.length === 0 && <p class="hint">None, or none that these filters let through.</p>}
        {requests.length > 0 && <RequestTable requests={requests} shownId={id} onCancelled={refresh} />}
      </section>
      {id && (
        <aside class="request-detail card" aria-label="Request">
          <div class="card-head">
            <h3>
              <code>{id}</code>
            </h3>
            <a class="button quiet" href="#requests" aria-label="Close">
              ✕
            </a>
          </div>
          <RequestDetail key={id} id={id} />
        </aside>
      )}
    </div>
  );
}

function makePath(filters: Filters): string {
  const query = new URLSearchParams({ limit: String(MAX_REQUESTS) });
  if (filters.state) query.set("state", filters.state);
  if (filters.adapter.trim()) query.set("adapter", filters.adapter.trim());
  if (filters.outcome === "error") query.set("error_type", "any");
  else if (filters.outcome) query.set("finish_reason", filters.outcome);
  if (Number(filters.slower) > 0) query.set("min_total_ms", filters.slower);
  return `v1/requests?${query}`;
}

function FilterBar({ filters, onChange }: { filters: Filters; onChange: (filters: Filters) => void }): JSX.Element {
  function change(name: keyof Filters) {
    return (event: Event) => onChange({ ...filters, [name]: (event.currentTarget as HTMLInputElement).value });
  }
  return (
    <form class="filters" role="search" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
      <label class="field">
        <span>State</span>
        <select value={filters.state} onChange={change("state")}>
          <option value="">any</option>
          {Object.entries(STATE_WORDS).map(([name, words]) => (
            <option key={name} value={name}>
              {words}
            </option>
          ))}
        </select>
      </label>
      <label class="field">
        <span>End</span>
        <select value={filters.outcome} onChange={change("outcome")}>
          <option value="">any</option>
          {FINISH_REASONS.map((name) => (
            <option key={name} value={name}>
              {describeEnd(name)}
            </option>
          ))}
          <option value="error">an error</option>
        </select>
      </label>
      <label class="field">
        <span>Adapter</span>
        <input type="text" value={filters.adapter} placeholder="any" onChange={change("adapter")} />
      </label>
      <label class="field">
        <span>Slower than, ms</span>
        <input type="text" inputMode="numeric" value={filters.slower} placeholder="0" onChange={change("slower")} />
      </label>
    </form>
  );
}

interface TableProps {
  requests: RequestEntry[];
  shownId: string;
  onCancelled: () => void;
}

function RequestTable({ requests, shownId, onCancelled }: TableProps): JSX.Element {
  return (
    <div class="table-scroll" tabIndex={0} role="region" aria-label="Table of requests">
      <table>
        <thead>
          <tr>
            <th scope="col">request</th>
            <th scope="col">at</th>
            <th scope="col">state</th>
            <th scope="col">model</th>
            <th scope="col" class="number">
              time
            </th>
            <th scope="col" class="number">
              first token
            </th>
            <th scope="col" class="number">
              prompt
            </th>
            <th scope="col" class="number">
              generated
            </th>
            <th scope="col">where the time went</th>
            <th scope="col">
              <span class="hidden">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {requests.map((entry) => (
            <RequestRow key={entry.id} entry={entry} isShown={entry.id === shownId} onCancelled={onCancelled} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface RowProps {
  entry: RequestEntry;
  isShown: boolean;
  onCancelled: () => void;
}

function RequestRow({ entry, isShown, onCancelled }: RowProps): JSX.Element {
  async function cancel(): Promise<void> {
    await send(`v1/requests/${encodeURIComponent(entry.id)}`, { method: "DELETE" }).catch(() => undefined);
    onCancelled();
  }
  return (
    <tr class={isShown ? "shown" : ""}>
      <td>
        <a href={linkToRequest(entry.id)}>
          <code>{shortenId(entry.id)}</code>
        </a>
      </td>
      <td>{new Date(entry.arrived_at * 1000).toLocaleTimeString()}</td>
      <td class={entry.error_type ? "failed" : ""}>{describeOutcome(entry)}</td>
      <td>{entry.adapter ?? serverInfo.value?.model_id ?? "–"}</td>
      <td class="number">{formatMs(entry.total_ms)}</td>
      <td class="number">{entry.first_token_ms === null ? "–" : formatMs(entry.first_token_ms)}</td>
      <td class="number">
        {entry.prompt_tokens}
        {entry.cached_tokens > 0 && <small> ({entry.cached_tokens} cached)</small>}
      </td>
      <td class="number">{entry.generated_tokens}</td>
      <td>
        <ShareBar entry={entry} />
      </td>
      <td>
        {entry.state !== "over" && (
          <button type="button" class="quiet" onClick={cancel} aria-label={`Cancel ${shortenId(entry.id)}`}>
            Cancel
          </button>
        )}
      </td>
    </tr>
  );
}

/** Return the beginning of an id, and behind a dot the number of its prompt or choice. */
function shortenId(id: string): string {
  const [start, ...numbers] = id.split(".");
  return [start!.slice(0, 8), ...numbers].join(".");
}

/** The shares of waiting, prompt and tokens in the time of a request. */
function ShareBar({ entry }: { entry: RequestEntry }): JSX.Element {
  const sums: Record<string, number> = { check: 0, wait: 0, prefill: 0, decode: 0 };
  for (const [cause, ms] of Object.entries(entry.by_cause)) sums[getKind(cause)]! += ms;
  const total = Math.max(entry.total_ms, 0.001);
  let x = 0;
  const rects = Object.entries(sums).map(([kind, ms]) => {
    const rect = <rect key={kind} class={kind} x={x} y={0} width={(ms / total) * 100} height={8} />;
    x += (ms / total) * 100;
    return rect;
  });
  const words = Object.entries(sums)
    .map(([kind, ms]) => `${kind} ${formatMs(ms)}`)
    .join(", ");
  return (
    <svg class="share-bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label={words}>
      {rects}
    </svg>
  );
}
