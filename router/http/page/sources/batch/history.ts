/** The last steps of the engine and what is known of their sequences, from the server's events. */
import { signal } from "@preact/signals";
import { apiKey, onKeyChange, readEvents, RequestFailed, send } from "../shell/api";
import type { Blocks, EngineState, Frame, Queue, Rates, Sequence, ServerState, Step } from "./protocol";

export const MAX_STEPS = 2000;
const MAX_RATES = 600;
const RETRY_SECONDS = 2;

export interface RateSample {
  t: number;
  rates: Rates;
  queueLength: number;
}

const EMPTY_QUEUE: Queue = { length: 0, tokens: 0, waiting: [] };

export class History {
  steps: Step[] = [];
  sequences = new Map<number, Sequence>();
  samples: RateSample[] = [];
  server: ServerState | null = null;
  queue = EMPTY_QUEUE;
  blocks: Blocks | null = null;
  rates: Rates | null = null;
  causes: Record<string, string> = {};
  /** Server's clock minus this browser's, in seconds. */
  clockOffset = 0;

  addState(state: EngineState): void {
    this.server = state.server;
    this.causes = state.causes;
    this.queue = state.queue;
    this.blocks = state.blocks;
    this.clockOffset = state.t - Date.now() / 1000;
    for (const sequence of state.running) this.sequences.set(sequence.id, sequence);
    this.addRates(state.t, state.rates);
  }

  addFrame(frame: Frame): void {
    for (const sequence of frame.sequences) this.sequences.set(sequence.id, sequence);
    const last = this.steps.at(-1)?.step ?? -1;
    for (const step of frame.steps)
      if (step.step > last || step.kind === "lost" || step.kind === "idle") this.steps.push(step);
    if (this.steps.length > MAX_STEPS) this.forgetOldSteps();
    if (frame.server && this.server) this.server = { ...this.server, ...frame.server };
    if (frame.queue) this.queue = frame.queue;
    if (frame.blocks) this.blocks = { ...this.blocks, ...frame.blocks };
    if (frame.rates) this.addRates(frame.t, frame.rates);
  }

  /** Forget everything: another key may see less. */
  clear(): void {
    this.forgetSteps();
    this.server = null;
    this.queue = EMPTY_QUEUE;
    this.blocks = null;
    this.rates = null;
  }

  /** Forget all steps, as after a new start of the server, whose steps and sequences are numbered anew. */
  forgetSteps(): void {
    this.steps = [];
    this.sequences.clear();
    this.samples = [];
  }

  /** Forget what is too old, and the sequences that no remaining step, block or waiting entry names. */
  private forgetOldSteps(): void {
    this.steps.splice(0, this.steps.length - MAX_STEPS);
    if (this.sequences.size < 2 * MAX_STEPS) return;
    const used = new Set(this.steps.flatMap((step) => step.rows.map((row) => row[1])));
    for (const id of this.sequences.keys()) if (!used.has(id)) this.sequences.delete(id);
  }

  private addRates(t: number, rates: Rates): void {
    this.rates = rates;
    this.samples.push({ t, rates, queueLength: this.queue.length });
    if (this.samples.length > MAX_RATES) this.samples.shift();
  }
}

export const history = new History();
/** Counts changes of the history, which is changed in place. */
export const historyRevision = signal(0);
export type WatchState = "connecting" | "watching" | "lost";
export const watchState = signal<WatchState>("connecting");
export const watchError = signal("");
onKeyChange(() => {
  history.clear();
  historyRevision.value += 1;
});

/** Watch the engine until `aborter` says so; after a lost connection go on where it ended. */
export async function watchEngine(aborter: AbortController): Promise<void> {
  while (!aborter.signal.aborted) {
    try {
      await readStream(aborter);
      watchError.value = "The stream ended.";
    } catch (error) {
      if (aborter.signal.aborted) return;
      watchError.value = error instanceof RequestFailed ? error.message : "The connection was lost.";
    }
    watchState.value = "lost";
    await new Promise((resolve) => setTimeout(resolve, RETRY_SECONDS * 1000));
  }
}

async function readStream(aborter: AbortController): Promise<void> {
  const since = history.steps.at(-1)?.step ?? 0;
  const key = apiKey.value;
  const response = await send(`v1/engine/events?since=${since}`, { signal: aborter.signal });
  for await (const event of readEvents(response)) {
    if (apiKey.value !== key) return;
    if (event.name === "state") readState(JSON.parse(event.data));
    else if (event.name === "frame") history.addFrame(JSON.parse(event.data));
    watchState.value = "watching";
    watchError.value = "";
    historyRevision.value += 1;
  }
}

/** Take over a state. A lower step number means that the server was started anew. */
function readState(state: EngineState): void {
  if (state.step < (history.steps.at(-1)?.step ?? 0)) {
    history.forgetSteps();
  }
  history.addState(state);
}
