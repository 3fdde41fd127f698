/** Generates answers: sends the requests, reads their streams into answers, and asks afterwards where the time went. */
import { fetchJson, findMessage, readEvents, RequestFailed, send } from "../shell/api";
import type { Answer, Token, ToolCall } from "./conversation";

export interface Explanation {
  total_ms: number;
  first_token_ms: number | null;
  finish_reason: string | null;
  cached_tokens: number;
  by_cause: Record<string, number>;
}

const BUSY_CAUSES = new Set(["validation", "prefill", "decode"]);

/** Fill the answer from a stream; `onChange` is called after each part. Never throws: errors stand in the answer. */
export async function generateAnswer(
  answer: Answer,
  numAlternatives: number,
  aborter: AbortController,
  onChange: () => void,
): Promise<void> {
  const startedAt = performance.now();
  const body = makeBody(answer, numAlternatives);
  try {
    const path = "messages" in answer.question ? "v1/chat/completions" : "v1/completions";
    const response = await send(path, { body, signal: aborter.signal });
    answer.requestId = response.headers.get("x-request-id") ?? "";
    for await (const { data } of readEvents(response)) {
      if (data !== "[DONE]") readChunk(answer, JSON.parse(data), startedAt);
      onChange();
    }
    answer.state = "done";
  } catch (error) {
    answer.state = aborter.signal.aborted ? "stopped" : "failed";
    if (answer.state === "failed") answer.error = describeFailure(error);
  }
  onChange();
  await addExplanation(answer);
  onChange();
}

function makeBody({ model, question, settings }: Answer, numAlternatives: number): object {
  const logprobs =
    "messages" in question ? { logprobs: true, top_logprobs: numAlternatives } : { logprobs: numAlternatives };
  return {
    model,
    ...question,
    ...settings,
    stream: true,
    stream_options: { include_usage: true },
    ...(numAlternatives > 0 ? logprobs : {}),
  };
}

function describeFailure(error: unknown): string {
  return error instanceof RequestFailed ? error.message : `The answer broke off: ${(error as Error).message}`;
}

/** Add what a chunk of either route says. */
function readChunk(answer: Answer, chunk: any, startedAt: number): void {
  if (chunk.error) throw new RequestFailed(findMessage(chunk) ?? JSON.stringify(chunk.error), 0);
  const { stats } = answer;
  if (chunk.usage) readUsage(answer, chunk.usage, startedAt);
  const choice = chunk.choices?.[0];
  if (!choice) return;
  stats.seenFirstTokenMs ??= performance.now() - startedAt;
  if (choice.finish_reason) answer.finishReason = choice.finish_reason;
  if (choice.delta) readDelta(answer, choice.delta);
  else answer.text += choice.text ?? "";
  answer.tokens.push(...readTokens(choice.logprobs));
}

function readUsage(answer: Answer, usage: any, startedAt: number): void {
  const { stats } = answer;
  stats.promptTokens = usage.prompt_tokens;
  stats.generatedTokens = usage.completion_tokens;
  stats.cachedTokens = usage.prompt_tokens_details?.cached_tokens ?? stats.cachedTokens;
  const seconds = (performance.now() - startedAt - (stats.seenFirstTokenMs ?? 0)) / 1000;
  if (usage.completion_tokens > 1 && seconds > 0) stats.tokensPerSecond = (usage.completion_tokens - 1) / seconds;
}

function readDelta(answer: Answer, delta: any): void {
  answer.text += delta.content ?? "";
  answer.reasoning += delta.reasoning ?? delta.reasoning_content ?? "";
  for (const call of delta.tool_calls ?? []) {
    const known: ToolCall = (answer.toolCalls[call.index] ??= { id: "", name: "", arguments: "" });
    known.id ||= call.id ?? "";
    known.name += call.function?.name ?? "";
    known.arguments += call.function?.arguments ?? "";
  }
}

/** Return the tokens of a chunk, in the form of chats or of completions. */
function readTokens(logprobs: any): Token[] {
  if (logprobs?.content) {
    return logprobs.content.map((token: any) => ({
      text: token.token,
      logprob: token.logprob,
      alternatives: token.top_logprobs.map((other: any) => ({ text: other.token, logprob: other.logprob })),
    }));
  }
  if (!logprobs?.tokens) return [];
  return logprobs.tokens.map((text: string, index: number) => ({
    text,
    logprob: logprobs.token_logprobs[index],
    alternatives: Object.entries(logprobs.top_logprobs?.[index] ?? {}).map(([other, logprob]) => ({
      text: other,
      logprob: logprob as number,
    })),
  }));
}

async function addExplanation(answer: Answer): Promise<void> {
  if (!answer.requestId) return;
  const path = `v1/requests/${encodeURIComponent(answer.requestId)}/explain`;
  const explanation = await fetchJson<Explanation>(path).catch(() => null);
  if (!explanation) return;
  if (answer.finishReason === "stop") answer.finishReason = explanation.finish_reason ?? "stop";
  answer.stats.firstTokenMs = explanation.first_token_ms;
  answer.stats.cachedTokens = explanation.cached_tokens;
  answer.stats.queueMs = Object.entries(explanation.by_cause).reduce(
    (sum, [cause, ms]) => sum + (BUSY_CAUSES.has(cause) ? 0 : ms),
    0,
  );
}
