/** Where the time of a request went: a bar of its intervals, and a line for each cause. */
import type { JSX } from "preact";
import { formatMs } from "../shell/format";

export interface Interval {
  cause: string;
  start_ms: number;
  ms: number;
}

export interface HttpExchange {
  route: string;
  status: number | null;
  user_agent: string | null;
  response_headers: Record<string, string>;
}

export interface Explanation {
  id: string;
  tenant: string;
  state: string;
  error_type: string | null;
  prompt_tokens: number;
  cached_tokens: number;
  generated_tokens: number;
  adapter: string | null;
  finish_reason: string | null;
  first_token_ms: number | null;
  total_ms: number;
  intervals: Interval[];
  by_cause: Record<string, number>;
  causes: Record<string, string>;
  meanwhile: Record<string, Record<string, number>>;
  meanwhile_causes: Record<string, string>;
  meanwhile_prompts: { id: string; prompt_tokens: number; ms: number }[];
  /** The mean number of other sequences that were generated at the same time. */
  meanwhile_generating: number;
  /** Known at the end, of the first of several prompts or choices. */
  http: HttpExchange | null;
}

/** Which of the kinds of time a cause is; the others are waits. */
const KINDS: Record<string, string> = { validation: "check", prefill: "prefill", decode: "decode" };

export function getKind(cause: string): string {
  return KINDS[cause] ?? "wait";
}

export function Timeline({ explanation }: { explanation: Explanation }): JSX.Element {
  const causes = Object.entries(explanation.by_cause).sort(([, a], [, b]) => b - a);
  return (
    <div class="timeline">
      <IntervalBar intervals={explanation.intervals} totalMs={explanation.total_ms} />
      <ul class="causes">
        {causes.map(([cause, ms]) => (
          <li key={cause}>
            <i class={`cell ${getKind(cause)}`} />
            <b>{cause}</b> <span class="figure-small">{formatMs(ms)}</span> {explanation.causes[cause]}
            <Meanwhile explanation={explanation} cause={cause} />
          </li>
        ))}
      </ul>
      {explanation.meanwhile_prompts.length > 0 && (
        <p class="hint">
          Longest prompts of other requests in this time:{" "}
          {explanation.meanwhile_prompts
            .map(({ id, prompt_tokens, ms }) => `${id.slice(0, 8)} (${prompt_tokens} tokens, ${formatMs(ms)})`)
            .join(", ")}
          .
        </p>
      )}
      {explanation.meanwhile_generating > 0 && (
        <p class="hint">
          On average {explanation.meanwhile_generating} other sequences were generated at the same time.
        </p>
      )}
    </div>
  );
}

function Meanwhile({ explanation, cause }: { explanation: Explanation; cause: string }): JSX.Element | null {
  const others = Object.entries(explanation.meanwhile[cause] ?? {});
  if (others.length === 0) return null;
  return (
    <ul>
      {others.map(([other, ms]) => (
        <li key={other}>
          of it {formatMs(ms)}: {explanation.meanwhile_causes[other]}
        </li>
      ))}
    </ul>
  );
}

/** Each interval as a stretch of a bar, as wide as it was long. SVG, since the policy allows no inline styles. */
export function IntervalBar({ intervals, totalMs }: { intervals: Interval[]; totalMs: number }): JSX.Element {
  const scale = 1000 / Math.max(totalMs, 0.001);
  const words = intervals.map(({ cause, ms }) => `${cause} ${formatMs(ms)}`).join(", ");
  return (
    <svg class="interval-bar" viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" aria-label={words}>
      {intervals.map(({ cause, start_ms, ms }, index) => (
        <rect
          key={index}
          class={getKind(cause)}
          x={start_ms * scale}
          y={0}
          width={Math.max(ms * scale, 0.5)}
          height={24}
        >
          <title>
            {cause}: {formatMs(ms)}
          </title>
        </rect>
      ))}
    </svg>
  );
}
