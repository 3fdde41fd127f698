/** What `/v1/engine/state`, `/v1/engine/events` and `/v1/engine/simulate` answer. docs/reference/engine.md has it. */

export interface Sequence {
  id: number;
  own: boolean;
  request_id: string | null;
  kind: string;
  tenant: string | null;
  tenant_ordinal: number;
  adapter: string | null;
  adapter_ordinal: number;
  submitted_at: number;
  prompt_tokens: number;
  cached_tokens: number;
  max_new_tokens: number;
  /** Of a simulated sequence: the id of the one in the live batch that it repeats. */
  source_id?: number | null;
}

export interface RunningSequence extends Sequence {
  lane: number;
  state: "prefill" | "decode" | "preempted";
  prefilled_tokens: number;
  generated_tokens: number;
  blocks: number;
  preemptions: number;
  text?: string;
}

export interface WaitingSequence extends Omit<Sequence, "cached_tokens"> {
  generated_tokens: number;
  preemptions: number;
  cause: string;
}

/** `p` a chunk of a prompt, `f` its final one, `d` a decode, `e` a whole text of a pooling step. */
export type RowKind = "p" | "f" | "d" | "e";
export type Row = [lane: number, id: number, tokens: number, kind: RowKind];

export interface Step {
  step: number;
  t: number;
  kind: "prefill" | "decode" | "mixed" | "pooling" | "lost" | "idle";
  ms: number;
  wall_ms: number;
  rows: Row[];
  admitted: [lane: number, id: number][];
  finished: [lane: number, id: number, reason: string][];
  preempted: [lane: number, id: number][];
  cancelled: [lane: number, id: number][];
  running: number;
  waiting: number;
  blocks_used: number;
}

export interface Queue {
  length: number;
  tokens: number;
  waiting: WaitingSequence[];
}

export interface Blocks {
  total: number;
  used: number;
  cached: number;
  free: number;
  shared: number;
  /** At most twice a second. Runs of blocks, each `[who, count]`: 0 free, -1 cached, -2 shared, above 0 the sequence
   * that holds them. */
  map?: [who: number, count: number][];
}

export interface Percentiles {
  p50: number | null;
  p99: number | null;
}

export interface Rates {
  window_seconds: number;
  tokens_per_second: number | null;
  prompt_tokens_per_second: number | null;
  requests_per_second: number | null;
  first_token_ms: Percentiles;
  gap_ms: Percentiles;
  batch_size: number | null;
  step_ms: number | null;
}

export interface ServerState {
  model: string;
  notice: string | null;
  version: string;
  policy: string;
  batching: string;
  max_batch_size: number;
  max_batch_prefill_tokens: number;
  max_batch_total_tokens: number;
  max_input_tokens: number;
  max_total_tokens: number;
  max_concurrent_requests: number;
  look_ahead: number;
  block_size: number;
  num_blocks: number;
  cache_bytes: number;
  cache_size_note: string;
  device: string;
  dtype: string;
  num_shard: number;
  exact: boolean;
  kinds: string[];
  adapters: boolean;
  max_active_adapters: number;
  ready: boolean;
  not_ready_reason: string | null;
  has_shards: boolean;
  show_text: boolean;
  keys: boolean;
  tenant: string;
  role: string;
}

/** Whether each token recomputes all before it (--recompute). */
export function isRecomputed(server: ServerState | null): boolean {
  return server?.policy === "recompute";
}

/** What frames have anew whenever one of it changes. */
export type Readiness = Pick<ServerState, "ready" | "not_ready_reason" | "has_shards">;

export interface EngineState {
  t: number;
  step: number;
  server: ServerState;
  running: RunningSequence[];
  queue: Queue;
  blocks: Blocks;
  rates: Rates;
  watch: { viewers: number; max_viewers: number; first_step: number | null; last_step: number | null };
  causes: Record<string, string>;
}

export interface Frame {
  t: number;
  steps: Step[];
  sequences: Sequence[];
  server?: Readiness;
  queue?: Queue;
  blocks?: Blocks;
  rates?: Rates;
}

export interface RunSummary {
  steps: number;
  seconds: number;
  tokens: number;
  tokens_per_second: number;
  first_token_ms: Percentiles;
  gap_ms: Percentiles;
  wait_ms: Percentiles;
  batch_size: number;
}

export interface SimulatedRun {
  batching: string;
  max_batch_size: number;
  requests: number;
  sequences: Sequence[];
  steps: Step[];
  summary: RunSummary;
  recorded: RunSummary | null;
}
