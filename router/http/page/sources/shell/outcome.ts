/** States and ends of requests in words. */

export const STATE_WORDS: Record<string, string> = { waiting: "waiting", running: "running", over: "finished" };
/** Finish reasons of weft's routes and of OpenAI's, whose `stop` is an end of text or a stop string. */
const END_WORDS: Record<string, string> = {
  eos_token: "end of text",
  stop_sequence: "stop string",
  length: "max tokens",
  tool_calls: "tool call",
};

export function describeEnd(finishReason: string): string {
  return END_WORDS[finishReason] ?? finishReason;
}

export interface Outcome {
  state: string;
  error_type: string | null;
  finish_reason: string | null;
}

/** Return the state of a request and, once it has ended, why. Embeddings have no reason. */
export function describeOutcome({ state, error_type, finish_reason }: Outcome): string {
  if (error_type) return `ended: ${error_type.replaceAll("_", " ")}`;
  const words = STATE_WORDS[state] ?? state;
  return finish_reason ? `${words}: ${describeEnd(finish_reason)}` : words;
}
