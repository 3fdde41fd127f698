/** The server: its model, its cache, adapters, limits, health, versions and settings. */
import type { ComponentChildren, JSX } from "preact";
import type { EngineState } from "../batch/protocol";
import { Notice } from "../shell/controls";
import { asSentence, formatCount } from "../shell/format";
import { usePolled } from "../shell/poll";
import { AdapterList } from "./adapters";
import { SettingList } from "./settings";

const SHOWN_ABOVE = new Set([
  "model_id",
  "notice",
  "model_dtype",
  "model_device_type",
  "num_shard",
  "exact",
  "max_concurrent_requests",
  "max_input_tokens",
  "max_total_tokens",
  "max_batch_total_tokens",
  "max_batch_size",
  "router",
  "version",
]);

export function ServerPane(): JSX.Element {
  const { value, error } = usePolled<EngineState>("v1/engine/state", 5);
  const info = usePolled<Record<string, unknown>>("info", 0).value;
  return (
    <div class="server">
      <h2>Server</h2>
      {error && <Notice kind="error">{asSentence(error)}</Notice>}
      {value && (
        <div class="server-columns">
          <ModelCard state={value} />
          <CacheCard state={value} />
          <HealthCard state={value} />
        </div>
      )}
      {value?.server.adapters && <AdapterList isAdmin={value.server.role === "admin"} />}
      {value && <LimitsCard state={value} info={info ?? {}} />}
      {value?.server.role === "admin" && <SettingList />}
      <p class="hint">
        Parts of this page have <a href="ui/licenses.txt">licences of their own</a>.
      </p>
    </div>
  );
}

function Facts({
  title,
  facts,
  children,
}: {
  title: string;
  facts: [string, ComponentChildren][];
  children?: ComponentChildren;
}): JSX.Element {
  return (
    <section class="card" aria-label={title}>
      <h3>{title}</h3>
      <dl class="fact-list">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {children}
    </section>
  );
}

const KIND_WORDS: Record<string, string> = {
  text: "generated text",
  vector: "embeddings",
  labels: "labels of tokens",
};

function ModelCard({ state: { server } }: { state: EngineState }): JSX.Element {
  return (
    <Facts
      title="Model"
      facts={[
        ["name", server.model],
        ["number type", server.dtype],
        ["device", server.device],
        ["shards", String(server.num_shard)],
        ["answers with", server.kinds.map((kind) => KIND_WORDS[kind] ?? kind).join(", ")],
        ["same answer in any batch", server.exact ? "yes, bit for bit" : "no"],
      ]}
    >
      {server.notice && <p class="hint">{asSentence(server.notice)}</p>}
    </Facts>
  );
}

function CacheCard({ state: { server, blocks } }: { state: EngineState }): JSX.Element {
  return (
    <Facts
      title="Cache"
      facts={[
        ["size", `${formatCount(server.max_batch_total_tokens)} tokens, ${formatCount(server.num_blocks)} blocks`],
        ["memory", formatBytes(server.cache_bytes)],
        ["why this size", server.cache_size_note],
        ["held now", `${formatCount(blocks.used)} blocks, ${formatCount(blocks.shared)} of them shared`],
        ["kept for later prompts", `${formatCount(blocks.cached)} blocks`],
      ]}
    />
  );
}

function formatBytes(bytes: number | null): string {
  if (!bytes) return "unknown";
  return bytes >= 1 << 30 ? `${(bytes / (1 << 30)).toFixed(1)} GiB` : `${(bytes / (1 << 20)).toFixed(0)} MiB`;
}

function HealthCard({ state }: { state: EngineState }): JSX.Element {
  const { server, watch } = state;
  return (
    <Facts
      title="Health"
      facts={[
        ["requests are served", server.ready ? "yes" : `no: ${server.not_ready_reason}`],
        ["shards", server.has_shards ? "ready" : "starting"],
        ["running, waiting", `${state.running.length}, ${state.queue.length}`],
        ["steps since the start", formatCount(state.step)],
        ["viewers of the live batch", `${watch.viewers} of at most ${watch.max_viewers}`],
        ["your key", server.keys ? `tenant ${server.tenant || "(none)"}, role ${server.role}` : "none needed"],
        ["version", `weft ${server.version}`],
      ]}
    />
  );
}

/** What a request may be at most, in words, and folded the rest of `/info`, unless all settings are shown beside it. */
function LimitsCard({ state: { server }, info }: { state: EngineState; info: Record<string, unknown> }): JSX.Element {
  const others =
    server.role === "admin"
      ? []
      : Object.entries(info).filter(([name, value]) => value !== null && !SHOWN_ABOVE.has(name));
  return (
    <Facts
      title="Limits"
      facts={[
        ["longest prompt", `${formatCount(server.max_input_tokens)} tokens`],
        ["prompt and answer together", `${formatCount(server.max_total_tokens)} tokens`],
        ["requests in the batch", formatCount(server.max_batch_size)],
        [
          "requests, running and waiting",
          `${formatCount(server.max_concurrent_requests)}; further ones are refused (HTTP 429)`,
        ],
      ]}
    >
      {others.length > 0 && (
        <details class="other-settings">
          <summary>Other settings</summary>
          <dl class="fact-list columns">
            {others.map(([name, value]) => (
              <div key={name}>
                <dt>
                  <code>{name}</code>
                </dt>
                <dd>{String(value)}</dd>
              </div>
            ))}
          </dl>
          <p class="hint">
            By their names in <a href="info">/info</a>. <code>weft serve --help</code> explains the flag of each and has
            its default.
          </p>
        </details>
      )}
    </Facts>
  );
}
