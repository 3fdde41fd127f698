/** The playground's conversation and what is being generated for it. It outlives a change of the pane. */
import { signal } from "@preact/signals";
import { fetchJson } from "../shell/api";
import { modelNames } from "../shell/models";
import {
  addBranch,
  listShown,
  makeExchange,
  toMessages,
  type Answer,
  type Exchange,
  type Question,
  type ToolResult,
} from "./conversation";
import { generateAnswer } from "./generation";
import {
  chosenModels,
  makeRequestSettings,
  mode,
  numAlternatives,
  systemPrompt,
  type RequestSettings,
} from "./sampling";
import type { SnippetRequest } from "./snippets";

/** Parents of the first exchanges of the chat, and of the texts of raw mode. */
const roots = { chat: makeExchange("", []), raw: makeExchange("", []) };
const running = new Map<Answer, AbortController>();
/** Counts changes: exchanges are changed in place, since tokens come by the hundred. */
export const revision = signal(0);
/** What is wrong with the settings; empty if nothing is. */
export const settingsError = signal("");

function markChanged(): void {
  revision.value += 1;
}

let isRedrawAsked = false;
/** Have the tokens shown that came since the last frame of the screen. */
function markTokens(): void {
  if (isRedrawAsked) return;
  isRedrawAsked = true;
  requestAnimationFrame(() => {
    isRedrawAsked = false;
    markChanged();
  });
}

export function getExchanges(): Exchange[] {
  const shown = listShown(roots[mode.value]);
  return mode.value === "raw" ? shown.slice(-1) : shown;
}

export function isGenerating(): boolean {
  return revision.value >= 0 && running.size > 0;
}

/** Return the exchange that this one follows. */
export function getParent(exchange: Exchange): Exchange {
  const chain = [roots[mode.value], ...listShown(roots[mode.value])];
  return chain[chain.indexOf(exchange) - 1]!;
}

/** Ask the chosen models, as a new branch behind `parent`: the last exchange unless an earlier one is given. */
export function ask(prompt: string, parent?: Exchange, toolResults: ToolResult[] = [], models?: string[]): void {
  let settings: RequestSettings;
  try {
    settings = makeRequestSettings();
  } catch (error) {
    settingsError.value = (error as Error).message;
    return;
  }
  settingsError.value = "";
  const root = roots[mode.value];
  const behind = parent ?? (mode.value === "raw" ? root : (listShown(root).at(-1) ?? root));
  const exchange = makeExchange(prompt, models ?? getModels(), toolResults);
  addBranch(behind, exchange);
  const path = listShown(root);
  for (const answer of exchange.answers)
    start(Object.assign(answer, { settings, question: makeQuestion(path, answer.model) }));
  markChanged();
}

function getModels(): string[] {
  return chosenModels.value.length ? chosenModels.value : modelNames.value.slice(0, 1);
}

function makeQuestion(path: Exchange[], model: string): Question {
  return mode.value === "raw"
    ? { prompt: path.at(-1)!.prompt }
    : { messages: toMessages(path, model, systemPrompt.value) };
}

function start(answer: Answer): void {
  const aborter = new AbortController();
  running.set(answer, aborter);
  void generateAnswer(answer, numAlternatives.value, aborter, () => {
    if (answer.state !== "running") running.delete(answer);
    markTokens();
  });
}

export function stop(): void {
  for (const aborter of running.values()) aborter.abort();
}

/** Ask the same once more; the answers that were there stay as another branch. */
export function retry(exchange: Exchange): void {
  ask(
    exchange.prompt,
    getParent(exchange),
    exchange.toolResults,
    exchange.answers.map((answer) => answer.model),
  );
}

/** Show the branch that stands `offset` places from the one that is shown. */
export function turnBranch(parent: Exchange, offset: number): void {
  parent.shownBranch = Math.min(Math.max(parent.shownBranch + offset, 0), parent.branches.length - 1);
  markChanged();
}

export function clear(): void {
  stop();
  roots[mode.value] = makeExchange("", []);
  markChanged();
}

/** Return the request of an answer, for "copy as". */
export async function makeSnippetRequest(
  { model, question, settings }: Answer,
  url: string,
  hasKey: boolean,
  isAdapter: boolean,
): Promise<SnippetRequest> {
  const common = { url, hasKey, model, isAdapter, settings };
  if ("prompt" in question) return { ...common, prompt: question.prompt };
  const templated = await fetchJson<{ templated_text: string }>("chat_tokenize", { body: question }).catch(() => null);
  return { ...common, messages: question.messages, prompt: templated?.templated_text ?? "" };
}
