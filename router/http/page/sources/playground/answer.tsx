/** One model's answer: thoughts, text, calls of tools, and under it what it took. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Notice } from "../shell/controls";
import { formatMs, formatRate } from "../shell/format";
import { linkToRequest } from "../shell/navigation";
import { describeEnd } from "../shell/outcome";
import { redrawOn } from "../shell/redraw";
import type { Answer, ToolCall, ToolResult } from "./conversation";
import { CodeBlock, Markdown } from "./markdown";
import { revision } from "./session";
import { TokenView } from "./tokens";

interface AnswerProps {
  answer: Answer;
  isRaw: boolean;
  onCopyAs: () => void;
  /** Goes on with results of the answer's tools; absent where the conversation has gone on. */
  onToolResults?: (results: ToolResult[]) => void;
}

export function AnswerView({ answer, isRaw, onCopyAs, onToolResults }: AnswerProps): JSX.Element {
  const [showsTokens, setShowsTokens] = useState(isRaw);
  redrawOn(revision);
  const hasTokens = answer.tokens.length > 0;
  return (
    <article
      class={`answer ${answer.state}`}
      aria-label={`Answer of ${answer.model}`}
      aria-busy={answer.state === "running"}
    >
      <header>
        <h3>{answer.model}</h3>
      </header>
      {answer.reasoning && (
        <details class="reasoning">
          <summary>Thoughts</summary>
          <Markdown text={answer.reasoning} />
        </details>
      )}
      {showsTokens && hasTokens ? <TokenView tokens={answer.tokens} /> : <AnswerText answer={answer} isRaw={isRaw} />}
      {answer.toolCalls.length > 0 && <ToolCalls calls={answer.toolCalls} onResults={onToolResults} />}
      {answer.error && <Notice kind="error">{answer.error}</Notice>}
      <AnswerFooter answer={answer} />
      <div class="answer-actions">
        {hasTokens && (
          <button type="button" class="quiet" aria-pressed={showsTokens} onClick={() => setShowsTokens(!showsTokens)}>
            Probabilities
          </button>
        )}
        <button type="button" class="quiet" onClick={onCopyAs}>
          Copy as…
        </button>
      </div>
    </article>
  );
}

function AnswerText({ answer, isRaw }: { answer: Answer; isRaw: boolean }): JSX.Element | null {
  if (!answer.text && answer.state === "running" && answer.toolCalls.length === 0) {
    return (
      <p class="pending">
        <span class="dots" aria-label="waiting for the first token">
          <i />
          <i />
          <i />
        </span>
      </p>
    );
  }
  if (!answer.text) return null;
  return isRaw ? <pre class="raw-text">{answer.text}</pre> : <Markdown text={answer.text} />;
}

function AnswerFooter({ answer }: { answer: Answer }): JSX.Element {
  const { stats } = answer;
  const finish = answer.state === "stopped" ? "stopped here" : describeEnd(answer.finishReason);
  const [firstTokenName, firstTokenMs] =
    stats.firstTokenMs === null
      ? ["first token, seen here", stats.seenFirstTokenMs]
      : ["first token", stats.firstTokenMs];
  const facts: [string, string | null][] = [
    ["queue", stats.queueMs === null ? null : formatMs(stats.queueMs)],
    [firstTokenName, firstTokenMs === null ? null : formatMs(firstTokenMs)],
    ["tokens/s", stats.tokensPerSecond === null ? null : formatRate(stats.tokensPerSecond)],
    ["tokens", stats.generatedTokens === null ? null : String(stats.generatedTokens)],
    ["prompt", stats.promptTokens === null ? null : String(stats.promptTokens)],
    ["of it cached", stats.cachedTokens === null ? null : String(stats.cachedTokens)],
    ["finish", finish || null],
  ];
  return (
    <dl class="facts">
      {facts.map(
        ([name, value]) =>
          value !== null && (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ),
      )}
      {answer.requestId && answer.state !== "running" && (
        <div>
          <dt class="hidden">details</dt>
          <dd>
            <a href={linkToRequest(answer.requestId)}>where the time went</a>
          </dd>
        </div>
      )}
    </dl>
  );
}

interface ToolCallsProps {
  calls: ToolCall[];
  onResults: ((results: ToolResult[]) => void) | undefined;
}

function ToolCalls({ calls, onResults }: ToolCallsProps): JSX.Element {
  const [results, setResults] = useState<Record<string, string>>({});
  redrawOn(revision);
  return (
    <div class="tool-calls">
      {calls.map((call) => (
        <section key={call.id} class="tool-card" aria-label={`Call of ${call.name}`}>
          <h4>
            <span aria-hidden="true">⚒</span> {call.name}
          </h4>
          <CodeBlock code={formatArguments(call.arguments)} language="arguments" />
          {onResults && (
            <label class="field">
              <span>Result of {call.name}</span>
              <textarea
                rows={2}
                value={results[call.id] ?? ""}
                placeholder="what the tool answered"
                onInput={(event) => setResults({ ...results, [call.id]: event.currentTarget.value })}
              />
            </label>
          )}
        </section>
      ))}
      {onResults && (
        <button type="button" onClick={() => onResults(calls.map(({ id }) => ({ id, content: results[id] ?? "" })))}>
          Send results
        </button>
      )}
    </div>
  );
}

function formatArguments(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
