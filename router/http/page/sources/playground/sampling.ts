/** Settings of the playground, as typed, and the fields of a request that they make. */
import { signal } from "@preact/signals";

export type Mode = "chat" | "raw";

/** Settings as text, so that an empty field leaves the server's default. */
export interface SamplingSettings {
  temperature: string;
  top_p: string;
  top_k: string;
  max_tokens: string;
  seed: string;
  frequency_penalty: string;
  presence_penalty: string;
  stop: string;
}

export const mode = signal<Mode>("chat");
export const chosenModels = signal<string[]>([]);
export const systemPrompt = signal("");
export const sampling = signal<SamplingSettings>({
  temperature: "",
  top_p: "",
  top_k: "",
  max_tokens: "256",
  seed: "",
  frequency_penalty: "",
  presence_penalty: "",
  stop: "",
});
export const schemaText = signal("");
export const toolsText = signal("");
export type ToolChoice = "auto" | "required";
export const toolChoice = signal<ToolChoice>("auto");
/** Number of alternatives of each token that are asked for; 0 asks for no probabilities. */
export const numAlternatives = signal(3);

const INTEGER_FIELDS = new Set(["top_k", "max_tokens", "seed"]);

/** A request's settings, in the form of OpenAI's API. */
export interface RequestSettings {
  [field: string]: unknown;
  stop?: string[];
  tools?: object[];
  response_format?: object;
}

/** Return the fields for a request. Throws with a sentence about what cannot be read. */
export function makeRequestSettings(): RequestSettings {
  const settings: RequestSettings = {};
  const { stop, ...numbers } = sampling.value;
  for (const [name, text] of Object.entries(numbers)) {
    if (text.trim() !== "") settings[name] = readNumber(name, text);
  }
  const stops = stop.split("\n").filter((line) => line !== "");
  if (stops.length) settings.stop = stops;
  const schema = readJson(schemaText.value, "The JSON schema");
  if (schema !== undefined) {
    settings.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  const tools = mode.value === "chat" ? readJson(toolsText.value, "The list of tools") : undefined;
  if (tools !== undefined) settings.tools = readTools(tools);
  if (tools !== undefined && toolChoice.value !== "auto") settings.tool_choice = toolChoice.value;
  return settings;
}

function readNumber(name: string, text: string): number {
  const number = Number(text);
  const isValid = INTEGER_FIELDS.has(name) ? Number.isInteger(number) : Number.isFinite(number);
  if (!isValid)
    throw new Error(`${name} must be ${INTEGER_FIELDS.has(name) ? "an integer" : "a number"}, got "${text}".`);
  return number;
}

function readJson(text: string, what: string): unknown {
  if (!text.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} is not JSON: ${(error as Error).message}`);
  }
}

/** Return tools in OpenAI's form; a function that stands alone is wrapped. */
function readTools(value: unknown): object[] {
  if (!Array.isArray(value)) throw new Error("The list of tools must be a JSON array.");
  return value.map((tool) => (tool?.type === "function" ? tool : { type: "function", function: tool }));
}
