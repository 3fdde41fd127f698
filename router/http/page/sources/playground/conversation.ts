/** A conversation as a tree: each exchange is a prompt, the answers of one model or several, and what follows. */

import type { RequestSettings } from "./sampling";

export interface TokenAlternative {
  text: string;
  logprob: number;
}

export interface Token extends TokenAlternative {
  alternatives: TokenAlternative[];
}

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

/** What is shown under an answer; null while it is not known. */
export interface AnswerStats {
  queueMs: number | null;
  /** As the server measured it, which is known once the answer has ended, and as this browser did. */
  firstTokenMs: number | null;
  seenFirstTokenMs: number | null;
  tokensPerSecond: number | null;
  promptTokens: number | null;
  generatedTokens: number | null;
  cachedTokens: number | null;
}

export type AnswerState = "running" | "done" | "stopped" | "failed";

/** What one model is asked: a chat, or a text to go on with. */
export type Question = { messages: Message[] } | { prompt: string };

export interface Answer {
  model: string;
  question: Question;
  settings: RequestSettings;
  state: AnswerState;
  text: string;
  reasoning: string;
  toolCalls: ToolCall[];
  tokens: Token[];
  finishReason: string;
  requestId: string;
  error: string;
  stats: AnswerStats;
}

export interface ToolResult {
  id: string;
  content: string;
}

export interface Exchange {
  prompt: string;
  /** Results of tools, which stand in the place of a prompt. */
  toolResults: ToolResult[];
  answers: Answer[];
  /** Exchanges that follow: the last edit or retry is the last of them. */
  branches: Exchange[];
  shownBranch: number;
}

export type Message =
  | { role: "system" | "user"; content: string }
  | { role: "tool"; content: string; tool_call_id: string }
  | { role: "assistant"; content: string | null; tool_calls?: object[] };

export function makeAnswer(model: string): Answer {
  return {
    model,
    question: { prompt: "" },
    settings: {},
    state: "running",
    text: "",
    reasoning: "",
    toolCalls: [],
    tokens: [],
    finishReason: "",
    requestId: "",
    error: "",
    stats: {
      queueMs: null,
      firstTokenMs: null,
      seenFirstTokenMs: null,
      tokensPerSecond: null,
      promptTokens: null,
      generatedTokens: null,
      cachedTokens: null,
    },
  };
}

export function makeExchange(prompt: string, models: string[], toolResults: ToolResult[] = []): Exchange {
  return { prompt, toolResults, answers: models.map(makeAnswer), branches: [], shownBranch: 0 };
}

/** Return the exchanges that are shown, from the first; `root` itself is none. */
export function listShown(root: Exchange): Exchange[] {
  const shown: Exchange[] = [];
  for (let next = root.branches[root.shownBranch]; next; next = next.branches[next.shownBranch]) shown.push(next);
  return shown;
}

/** Add an exchange behind `parent` as its newest branch, and show it. */
export function addBranch(parent: Exchange, exchange: Exchange): void {
  parent.branches.push(exchange);
  parent.shownBranch = parent.branches.length - 1;
}

/** Return what `model` is asked with the last of these exchanges: what was said before, with its own answers. */
export function toMessages(exchanges: Exchange[], model: string, system: string): Message[] {
  const messages: Message[] = system.trim() ? [{ role: "system", content: system }] : [];
  exchanges.forEach((exchange, index) => {
    if (exchange.toolResults.length === 0) messages.push({ role: "user", content: exchange.prompt });
    for (const { id, content } of exchange.toolResults) messages.push({ role: "tool", content, tool_call_id: id });
    if (index < exchanges.length - 1) messages.push(toAssistantMessage(exchange, model));
  });
  return messages;
}

function toAssistantMessage(exchange: Exchange, model: string): Message {
  const answer = exchange.answers.find((candidate) => candidate.model === model) ?? exchange.answers[0]!;
  if (answer.toolCalls.length === 0) return { role: "assistant", content: answer.text };
  const calls = answer.toolCalls.map(({ id, name, arguments: text }) => ({
    id,
    type: "function",
    function: { name, arguments: text },
  }));
  return { role: "assistant", content: answer.text || null, tool_calls: calls };
}
