/** Load that the page makes: a burst of requests of mixed length, or a steady stream of them.
 *
 * A browser opens few connections to a server, so that several prompts go in one call of /v1/completions. */
import { signal } from "@preact/signals";
import { fetchJson, send } from "../shell/api";
import { loadModels, modelNames } from "../shell/models";

export const BURST_SIZE = 24;
/** Calls at a time: of the browser's six connections one is for the events, and one for everything else. */
const MAX_CALLS = 4;
const SHORT = ["Count to three.", "Say hello.", "What is two plus two?", "Name a colour."];
const LONG = [
  "Tell me a story about a frog.",
  "Tell me a long story about a ship in a storm.",
  "Explain how to bake bread, step by step.",
  "Tell me a story about two brothers and a fox.",
];
const PADDING = "This is some background that a longer prompt carries with it. ";
const LENGTHS = [24, 56, 96, 160];

export const isBurstRunning = signal(false);
export const loadError = signal("");
/** Requests a second that are sent all the time; 0 for none. */
export const requestRate = signal(0);

let isStopped = false;
const aborters = new Set<AbortController>();

interface Prompt {
  text: string;
  maxTokens: number;
  model: string;
}

/** Return prompts of mixed length, for the model and its adapters in turn. `seed` chooses among them. */
export function makePrompts(count: number, models: string[], seed: number): Prompt[] {
  return Array.from({ length: count }, (_, index) => {
    const at = index + seed;
    const group = index % MAX_CALLS;
    const questions = at % 3 === 0 ? SHORT : LONG;
    const padding = PADDING.repeat([0, 2, 0, 9, 0, 4][at % 6]!);
    return {
      text: padding + questions[(at * 7 + group) % questions.length]!,
      maxTokens: LENGTHS[group]!,
      model: models[group % models.length]!,
    };
  });
}

/** Send the prompts in as many calls as there are lengths; resolves when all have ended. */
async function sendPrompts(prompts: Prompt[]): Promise<void> {
  const calls = new Map<string, Prompt[]>();
  for (const prompt of prompts) {
    const name = `${prompt.model} ${prompt.maxTokens}`;
    calls.set(name, [...(calls.get(name) ?? []), prompt]);
  }
  await Promise.all([...calls.values()].map(sendCall));
}

async function sendCall(prompts: Prompt[]): Promise<void> {
  const aborter = new AbortController();
  aborters.add(aborter);
  try {
    const texts = await Promise.all(prompts.map((prompt) => applyTemplate(prompt.text)));
    const body = { model: prompts[0]!.model, prompt: texts, max_tokens: prompts[0]!.maxTokens };
    await (await send("v1/completions", { body, signal: aborter.signal })).arrayBuffer();
  } catch (error) {
    if (!aborter.signal.aborted) loadError.value = (error as Error).message;
  } finally {
    aborters.delete(aborter);
  }
}

const templates = new Map<string, string>();

/** Return the prompt of a chat as the model's template makes it; the text itself where it has none. */
async function applyTemplate(text: string): Promise<string> {
  const known = templates.get(text);
  if (known !== undefined) return known;
  const body = { messages: [{ role: "user", content: text }] };
  const made = await fetchJson<{ templated_text: string }>("chat_tokenize", { body }).catch(() => null);
  templates.set(text, made?.templated_text ?? text);
  return templates.get(text)!;
}

function getLoadModels(): string[] {
  return modelNames.value.slice(0, MAX_CALLS);
}

/** Send the burst; return whether all of it ran, which it does not when it is stopped. */
export async function runBurst(): Promise<boolean> {
  isBurstRunning.value = true;
  isStopped = false;
  loadError.value = "";
  try {
    if (modelNames.value.length === 0) await loadModels();
    const prompts = makePrompts(BURST_SIZE, getLoadModels(), 0);
    await Promise.all(prompts.map((prompt) => applyTemplate(prompt.text)));
    await sendPrompts(prompts);
    return !isStopped && !loadError.value;
  } catch (error) {
    loadError.value = (error as Error).message;
    return false;
  } finally {
    isBurstRunning.value = false;
  }
}

export function stopLoad(): void {
  requestRate.value = 0;
  isStopped = true;
  for (const aborter of aborters) aborter.abort();
}

let numDue = 0;
let numSent = 0;

/** Send what is due; called every `seconds`. Calls beyond the browser's connections wait for the next time. */
export function sendDue(seconds: number): void {
  numDue = Math.min(numDue + requestRate.value * seconds, BURST_SIZE);
  if (numDue < 1 || getLoadModels().length === 0 || aborters.size >= MAX_CALLS) return;
  const count = Math.floor(numDue);
  numDue -= count;
  const [first] = makePrompts(1, getLoadModels(), numSent);
  const model = getLoadModels()[numSent % getLoadModels().length]!;
  const maxTokens = LENGTHS[(numSent * 5) % LENGTHS.length]!;
  const prompts = makePrompts(count, [first!.model], numSent).map((prompt) => ({ ...prompt, model, maxTokens }));
  numSent += count;
  void sendPrompts(prompts);
}
