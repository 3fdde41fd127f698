/** The model that is served, and the adapters that requests may name. */
import { signal } from "@preact/signals";
import { fetchJson } from "./api";

export interface ServerInfo {
  model_id: string;
  notice: string | null;
  model_dtype: string;
  model_device_type: string;
  num_shard: number;
  exact: boolean;
  max_total_tokens: number;
  max_input_tokens: number;
  max_batch_total_tokens: number;
  max_batch_size: number;
  max_concurrent_requests: number;
  version: string;
}

interface ModelEntry {
  id: string;
  parent: string | null;
}

export const serverInfo = signal<ServerInfo | null>(null);
/** Names of the model, first, and its adapters. */
export const modelNames = signal<string[]>([]);

/** Names of the model alone. */
const baseNames = signal<string[]>([]);

export async function loadModels(): Promise<void> {
  const [info, models] = await Promise.all([
    fetchJson<ServerInfo>("info"),
    fetchJson<{ data: ModelEntry[] }>("v1/models"),
  ]);
  serverInfo.value = info;
  modelNames.value = models.data.map((entry) => entry.id);
  baseNames.value = models.data.filter((entry) => !entry.parent).map((entry) => entry.id);
}

export function isBaseModel(name: string): boolean {
  return baseNames.value.includes(name);
}
