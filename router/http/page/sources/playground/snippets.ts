/** "Copy as": an answer's request as a program of several clients, which runs as it is shown.
 *
 * The key is never shown: programs read it from WEFT_API_KEY. tests/clients/test_page_snippets.py runs each. */
import type { Message } from "./conversation";
import type { RequestSettings } from "./sampling";

export const CLIENT_TITLES = {
  curl: "curl",
  openai: "Python: openai",
  huggingface_hub: "Python: huggingface_hub",
  text_generation: "Python: text_generation",
  lorax: "Python: lorax",
  javascript: "JavaScript",
};
export type ClientName = keyof typeof CLIENT_TITLES;

export interface SnippetRequest {
  /** Address of the server, without a slash at its end. */
  url: string;
  hasKey: boolean;
  model: string;
  isAdapter: boolean;
  /** A chat, with the text that the model's template makes of it for clients without chats; or a text to go on with. */
  messages?: Message[];
  prompt: string;
  settings: RequestSettings;
}

export interface Snippet {
  language: string;
  code: string;
  /** Why the client cannot send this request; empty if it can. */
  reason: string;
}

const KEY_NAME = "WEFT_API_KEY";

export function makeSnippet(client: ClientName, request: SnippetRequest): Snippet {
  const made = MAKERS[client](request);
  const language = client === "curl" ? "sh" : client === "javascript" ? "javascript" : "python";
  return typeof made === "string" ? { language, code: made, reason: "" } : { language, code: "", reason: made.reason };
}

type Made = string | { reason: string };

const MAKERS: Record<ClientName, (request: SnippetRequest) => Made> = {
  curl: makeCurl,
  openai: makeOpenAI,
  huggingface_hub: makeHub,
  text_generation: makeTextGeneration,
  lorax: makeLorax,
  javascript: makeJavaScript,
};

function makeBody(request: SnippetRequest): object {
  const question = request.messages ? { messages: request.messages } : { prompt: request.prompt };
  return { model: request.model, ...question, ...request.settings };
}

function getRoute(request: SnippetRequest): string {
  return `${request.url}/v1/${request.messages ? "chat/completions" : "completions"}`;
}

function makeCurl(request: SnippetRequest): string {
  const key = request.hasKey ? ` \\\n    -H "authorization: Bearer $${KEY_NAME}"` : "";
  const body = JSON.stringify(makeBody(request), null, 2).replaceAll("'", "'\\''");
  return `curl ${getRoute(request)} -H 'content-type: application/json'${key} \\\n    -d '${body}'\n`;
}

function makeJavaScript(request: SnippetRequest): string {
  const key = request.hasKey ? `, authorization: \`Bearer \${process.env.${KEY_NAME}}\`` : "";
  const choice = "answer.choices[0]";
  const text = !request.messages
    ? `${choice}.text`
    : request.settings.tools
      ? `${choice}.message.content ?? JSON.stringify(${choice}.message.tool_calls)`
      : `${choice}.message.content`;
  return `const response = await fetch("${getRoute(request)}", {
  method: "POST",
  headers: { "content-type": "application/json"${key} },
  body: JSON.stringify(${indent(JSON.stringify(makeBody(request), null, 2), "  ")}),
});
const answer = await response.json();
console.log(${text});
`;
}

/** Names of settings that a client's function takes as arguments, by OpenAI's name. Others go into \`extra_body\`. */
const OPENAI_ARGUMENTS = [
  "temperature",
  "top_p",
  "max_tokens",
  "seed",
  "frequency_penalty",
  "presence_penalty",
  "stop",
  "tools",
  "tool_choice",
  "response_format",
];

function makeOpenAI(request: SnippetRequest): string {
  const settings = splitOff(
    request.settings,
    request.messages ? OPENAI_ARGUMENTS : OPENAI_ARGUMENTS.filter((name) => name !== "response_format"),
  );
  const question = request.messages ? { messages: request.messages } : { prompt: request.prompt };
  const call = request.messages ? "chat.completions" : "completions";
  const key = request.hasKey ? `os.environ["${KEY_NAME}"]` : '"none"';
  return `${request.hasKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url="${request.url}/v1", api_key=${key})
answer = client.${call}.create(${toArguments({ model: request.model, ...question, ...settings })})
print(${pickText(request)})
`;
}

function pickText(request: SnippetRequest): string {
  if (!request.messages) return "answer.choices[0].text";
  const message = "answer.choices[0].message";
  return request.settings.tools ? `${message}.content or ${message}.tool_calls` : `${message}.content`;
}

function makeHub(request: SnippetRequest): Made {
  const key = request.hasKey ? `, api_key=os.environ["${KEY_NAME}"]` : "";
  const head = `${request.hasKey ? "import os\n\n" : ""}from huggingface_hub import InferenceClient\n`;
  if (request.messages) {
    const settings = splitOff(request.settings, OPENAI_ARGUMENTS);
    return `${head}
client = InferenceClient(base_url="${request.url}"${key})
answer = client.chat_completion(${toArguments({ messages: request.messages, model: request.model, ...settings })})
print(${pickText(request)})
`;
  }
  const settings = toTgiSettings(request.settings, "stop", ["frequency_penalty"]);
  if ("reason" in settings) return settings as { reason: string };
  const adapter = request.isAdapter ? { adapter_id: request.model } : {};
  const schema = request.settings.response_format ? { grammar: { type: "json", value: getSchema(request) } } : {};
  const prompt = { prompt: request.prompt, return_full_text: false };
  return `${head}
client = InferenceClient("${request.url}"${key})
print(client.text_generation(${toArguments({ ...prompt, ...adapter, ...settings, ...schema })}))
`;
}

function makeTextGeneration(request: SnippetRequest): Made {
  if (request.isAdapter) return { reason: "text_generation cannot name an adapter" };
  const key = request.hasKey ? `headers={"authorization": "Bearer " + os.environ["${KEY_NAME}"]}, ` : "";
  const head = `${request.hasKey ? "import os\n\n" : ""}from text_generation import Client

client = Client("${request.url}", ${key}timeout=60)
`;
  if (request.messages) {
    const known = [
      "temperature",
      "top_p",
      "max_tokens",
      "seed",
      "frequency_penalty",
      "presence_penalty",
      "tools",
      "tool_choice",
    ];
    const unknown = Object.keys(request.settings).filter((name) => !known.includes(name));
    if (unknown.length) return { reason: `chats of text_generation have no ${unknown.join(", ")}` };
    return `${head}answer = client.chat(${toArguments({ messages: request.messages, ...request.settings })})
print(${pickText(request)})
`;
  }
  const settings = toTgiSettings(request.settings, "stop_sequences", ["frequency_penalty"]);
  if ("reason" in settings) return settings as { reason: string };
  const schema = request.settings.response_format ? { grammar: { type: "json", value: getSchema(request) } } : {};
  return `${head}answer = client.generate(${toArguments({ prompt: request.prompt, ...settings, ...schema })})
print(answer.generated_text)
`;
}

/** LoRAX's client has no chats: a chat is sent as the text that the model's template makes of it. The client
 * understands details of servers with --compat lorax only. */
function makeLorax(request: SnippetRequest): Made {
  if (request.settings.tools) return { reason: "lorax has no tools" };
  if (request.settings.response_format) return { reason: "schemas of lorax need a server with --compat lorax" };
  const settings = toTgiSettings(request.settings, "stop_sequences", []);
  if ("reason" in settings) return settings as { reason: string };
  const key = request.hasKey ? `headers={"authorization": "Bearer " + os.environ["${KEY_NAME}"]}, ` : "";
  const adapter = request.isAdapter ? { adapter_id: request.model } : {};
  return `${request.hasKey ? "import os\n\n" : ""}from lorax import Client

client = Client("${request.url}", ${key}timeout=60)
answer = client.generate(${toArguments({ prompt: request.prompt, ...adapter, ...settings, details: false })})
print(answer.generated_text)
`;
}

function getSchema(request: SnippetRequest): unknown {
  return (request.settings.response_format as { json_schema: { schema: unknown } }).json_schema.schema;
}

const TGI_NAMES: Record<string, string> = {
  max_tokens: "max_new_tokens",
  top_p: "top_p",
  top_k: "top_k",
  seed: "seed",
  frequency_penalty: "frequency_penalty",
};

/** Return the settings under the names of TGI's clients, which sample only when asked to; or why they have none. */
function toTgiSettings(settings: RequestSettings, stopName: string, optional: string[]): Record<string, unknown> {
  const made: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(settings)) {
    if (["temperature", "response_format"].includes(name)) continue;
    const tgiName = name === "stop" ? stopName : TGI_NAMES[name];
    if (!tgiName || (name === "frequency_penalty" && !optional.includes(name))) {
      return { reason: `this client has no ${name}` };
    }
    made[tgiName] = value;
  }
  if (settings.temperature === 0) return made;
  made.do_sample = true;
  if (settings.temperature !== undefined) made.temperature = settings.temperature;
  return made;
}

/** Move settings that are no arguments of the function into \`extra_body\`. */
function splitOff(settings: RequestSettings, names: string[]): Record<string, unknown> {
  const entries = Object.entries(settings);
  const own = Object.fromEntries(entries.filter(([name]) => names.includes(name)));
  const extra = Object.fromEntries(entries.filter(([name]) => !names.includes(name)));
  return Object.keys(extra).length ? { ...own, extra_body: extra } : own;
}

function toArguments(values: Record<string, unknown>): string {
  const lines = Object.entries(values).map(([name, value]) => `    ${name}=${indent(toPython(value), "    ")},\n`);
  return `\n${lines.join("")}`;
}

function indent(text: string, margin: string): string {
  return text.replaceAll("\n", `\n${margin}`);
}

/** Return a value as Python code: JSON in Python's words. */
function toPython(value: unknown): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return value.length ? `[${value.map(toPython).join(", ")}]` : "[]";
  if (typeof value === "object") {
    const entries = Object.entries(value as object).map(([name, item]) => `${JSON.stringify(name)}: ${toPython(item)}`);
    return `{${entries.join(", ")}}`;
  }
  return JSON.stringify(value);
}
