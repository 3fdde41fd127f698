/** Steps and their rows in words. */
import { formatMs, formatNumberOf } from "../shell/format";
import type { Row, Step } from "./protocol";

const PROMPT_WORDS = { p: "a part of its prompt", f: "the end of its prompt", e: "a whole text" };

/** Say what a row computed for `request`. With `isRecomputed` (--recompute) each token takes a prompt's computation. */
export function describeRow([, , tokens, kind]: Row, request: string, isRecomputed: boolean): string {
  if (kind === "d" && tokens === 0) return `computed ahead in vain: ${request} had ended`;
  if (kind === "d") return `${formatNumberOf(tokens, "token")} of ${request}`;
  if (isRecomputed && kind === "f") return `a token of ${request}, recomputed with all ${tokens} before it`;
  return `${PROMPT_WORDS[kind]}, ${formatNumberOf(tokens, "token")}, of ${request}`;
}

/** Whether all that stood in this step has ended with it or before, and nothing waits. */
export function isLastAtRest(step: Step): boolean {
  const ended = new Set([...step.finished, ...step.cancelled].map(([, id]) => id));
  return step.waiting === 0 && step.rows.every(([, id, tokens, kind]) => ended.has(id) || (kind === "d" && !tokens));
}

/** Say how full the batch is; once it is empty, that the model rests. */
export function describeStep(step: Step, isLast: boolean): string {
  if (isLast && isLastAtRest(step)) return `Nothing runs. Step ${step.step} was the last.`;
  const numRows = step.rows.length;
  return `Step ${step.step}: ${numRows} in the batch, ${step.waiting} waiting, ${formatMs(step.wall_ms)}.`;
}
