/** The live batch: what runs, what waits, the cache, and the same load under static batching. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { SERVER_URL, apiKey, send } from "../shell/api";
import { Notice } from "../shell/controls";
import { redrawOn } from "../shell/redraw";
import { isVisible } from "../shell/visibility";
import { BlockMap } from "./block_map";
import { compare, comparison, ComparisonView, numPlaces } from "./comparison";
import { history, historyRevision, watchEngine, watchError, watchState } from "./history";
import { Legend } from "./legend";
import { LiveWeave, WeaveControls } from "./live_weave";
import { BURST_SIZE, isBurstRunning, loadError, requestRate, runBurst, sendDue, stopLoad } from "./load";
import { QueueView } from "./queue";
import { RateLines } from "./rate_lines";
import { SequenceDetail } from "./sequence_detail";
import { pausedAt } from "./view_state";

const LOAD_TICK_SECONDS = 0.25;
const SETTLE_MS = 400;

export function BatchPane(): JSX.Element {
  const key = apiKey.value;
  const isWatched = isVisible.value;
  useEffect(() => {
    if (!isWatched) return; // the server makes no frames for a page that nobody sees
    const aborter = new AbortController();
    void watchEngine(aborter);
    return () => aborter.abort();
  }, [key, isWatched]);
  useEffect(() => {
    const timer = setInterval(() => sendDue(LOAD_TICK_SECONDS), LOAD_TICK_SECONDS * 1000);
    return () => clearInterval(timer);
  }, []);
  return (
    <div class="batch">
      <h2 class="hidden">Live batch</h2>
      <Explanation />
      <LoadControls />
      {loadError.value && <Notice kind="error">{loadError.value}</Notice>}
      <WatchNotice />
      <section class="card" aria-label="Batch">
        <div class="card-head">
          <h3>Batch</h3>
          <WeaveControls />
        </div>
        <QueueView />
        <LiveWeave />
        <Legend />
      </section>
      <ComparisonView />
      <RateLines />
      <SequenceDetail />
      <BlockMap />
    </div>
  );
}

function Explanation(): JSX.Element {
  redrawOn(historyRevision);
  const numPlacesHere = history.server?.max_batch_size ?? 0;
  return (
    <p class="explanation">
      Each row is a place in the batch, each column is a step of the model. A step gives every request in the batch its
      next token. <b>When a request is finished, the next one takes its place at once.</b>
      {numPlacesHere >= BURST_SIZE &&
        ` This server has ${numPlacesHere} places, so that none of ${BURST_SIZE} requests waits for one; ` +
          `they are then shown again with ${numPlaces.value} places, which they take in turn.`}
    </p>
  );
}

function WatchNotice(): JSX.Element | null {
  redrawOn(historyRevision);
  if (watchState.value === "lost") return <Notice kind="error">{watchError.value} Trying again…</Notice>;
  if (history.server && !history.server.ready)
    return <Notice kind="note">Not ready: {history.server.not_ready_reason}.</Notice>;
  return null;
}

function LoadControls(): JSX.Element {
  const isLoaded = isBurstRunning.value || requestRate.value > 0;
  return (
    <div class="load-controls">
      <button type="button" class="primary" disabled={isBurstRunning.value} onClick={burstAndCompare}>
        {isBurstRunning.value ? "Running…" : `Send ${BURST_SIZE} requests of mixed length`}
      </button>
      <label class="slider">
        <span>Steady load: {requestRate.value} a second</span>
        <input
          type="range"
          min={0}
          max={20}
          value={requestRate.value}
          onInput={(event) => {
            requestRate.value = Number(event.currentTarget.value);
          }}
        />
      </label>
      <button type="button" class="quiet" disabled={!isLoaded} onClick={stopLoad}>
        Stop the load
      </button>
      <button
        type="button"
        class="quiet"
        disabled={history.steps.length === 0}
        onClick={exportTrace}
        title="The steps as a file for ui.perfetto.dev"
      >
        Export trace
      </button>
    </div>
  );
}

/** Send the burst, then have its steps compared with static batching. */
async function burstAndCompare(): Promise<void> {
  comparison.value = null;
  pausedAt.value = null;
  const since = (history.steps.at(-1)?.step ?? 0) + 1;
  if (!(await runBurst())) return;
  await new Promise((resolve) => setTimeout(resolve, SETTLE_MS)); // the last frames are under way
  const until = history.steps.at(-1)?.step ?? 0;
  if (until >= since) await compare(since, until);
}

async function exportTrace(): Promise<void> {
  const response = await send(`v1/engine/trace?since=${history.steps[0]?.step ?? 0}`).catch(() => null);
  if (!response) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = `weft-trace-${SERVER_URL.host.replace(":", "-")}.json`;
  link.click();
  URL.revokeObjectURL(link.href);
}
