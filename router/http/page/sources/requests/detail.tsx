/** One request whole: its facts, its timeline, the decision that made it wait, and its headers. */
import type { JSX } from "preact";
import { Notice } from "../shell/controls";
import { asSentence, formatMs } from "../shell/format";
import { serverInfo } from "../shell/models";
import { describeOutcome } from "../shell/outcome";
import { usePolled } from "../shell/poll";
import { getKind, Timeline, type Explanation, type HttpExchange } from "./timeline";

const POLL_SECONDS = 1;

export function RequestDetail({ id }: { id: string }): JSX.Element {
  const path = `v1/requests/${encodeURIComponent(id)}/explain`;
  const { value, error } = usePolled<Explanation>(path, POLL_SECONDS);
  if (!value) return error ? <Notice kind="error">{asSentence(error)}</Notice> : <p class="hint">Asking…</p>;
  return (
    <>
      <dl class="facts">
        {listFacts(value).map(([name, text]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <p class="decision">{describeDecision(value)}</p>
      <Timeline explanation={value} />
      {value.http && <HttpFacts exchange={value.http} />}
    </>
  );
}

function HttpFacts({ exchange }: { exchange: HttpExchange }): JSX.Element {
  const facts: [string, string][] = [
    ["route", exchange.route],
    ["status", exchange.status === null ? "none: the client had left" : String(exchange.status)],
    ["client", exchange.user_agent ?? "–"],
    ...Object.entries(exchange.response_headers),
  ];
  return (
    <details class="other-settings">
      <summary>Route and headers of the response</summary>
      <dl class="fact-list">
        {facts.map(([name, text]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}

function listFacts(value: Explanation): [string, string][] {
  return [
    ["state", describeOutcome(value)],
    ["model", value.adapter ?? serverInfo.value?.model_id ?? "–"],
    ["time", formatMs(value.total_ms)],
    ["first token", value.first_token_ms == null ? "–" : formatMs(value.first_token_ms)],
    ["prompt", `${value.prompt_tokens} tokens`],
    ["of it cached", String(value.cached_tokens)],
    ["generated", `${value.generated_tokens} tokens`],
  ];
}

/** Say in a sentence what the longest wait was for. */
function describeDecision({ by_cause, causes }: Explanation): string {
  const waits = Object.entries(by_cause).filter(([cause, ms]) => getKind(cause) === "wait" && ms > 0);
  const longest = waits.sort(([, a], [, b]) => b - a)[0];
  if (!longest) return "It never waited.";
  return `Its longest wait, ${formatMs(longest[1])}: ${causes[longest[0]]}`;
}
