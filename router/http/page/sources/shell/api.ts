/** Requests to the server, with the tab's API key. */
import { signal } from "@preact/signals";

/** Folder of the page's address: the server's root, behind any prefix. */
export const SERVER_URL = new URL(".", document.baseURI);
const KEY_NAME = "weft-api-key";

/** Key that requests send; empty without one. It is kept for this tab only. */
export const apiKey = signal(sessionStorage.getItem(KEY_NAME) ?? "");
/** Whether the server refused a request for want of a valid key. */
export const isKeyNeeded = signal(false);
/** Key that was refused last: the page asks once for another, not with every request. */
let refusedKey: string | null = null;

const keyListeners: (() => void)[] = [];

/** Have `forget` called whenever the key has changed, to drop what the last key could see. */
export function onKeyChange(forget: () => void): void {
  keyListeners.push(forget);
}

export function setApiKey(key: string): void {
  const last = apiKey.value;
  apiKey.value = key.trim();
  if (apiKey.value !== last) for (const forget of keyListeners) forget();
  isKeyNeeded.value = false;
  if (apiKey.value) sessionStorage.setItem(KEY_NAME, apiKey.value);
  else sessionStorage.removeItem(KEY_NAME);
}

/** A request that the server answered with an error, or that did not reach it. */
export class RequestFailed extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

export interface RequestOptions {
  method?: string;
  body?: unknown;
  signal?: AbortSignal;
}

/** Send a request; return its response if it succeeded. Throws RequestFailed, and AbortError if `signal` says so. */
export async function send(path: string, { method, body, signal }: RequestOptions = {}): Promise<Response> {
  const headers: Record<string, string> = apiKey.value ? { Authorization: `Bearer ${apiKey.value}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(new URL(path, SERVER_URL), {
    method: method ?? (body === undefined ? "GET" : "POST"),
    headers,
    signal: signal ?? null,
    body: body === undefined ? null : JSON.stringify(body),
  }).catch((error: Error) => {
    if (error.name === "AbortError") throw error;
    throw new RequestFailed("The server does not answer.", 0);
  });
  if (response.ok) return response;
  if (response.status === 401) onKeyRefused();
  const message = readErrorMessage(await response.text());
  throw new RequestFailed(message || `${response.status} ${response.statusText}`, response.status);
}

function onKeyRefused(): void {
  if (refusedKey === apiKey.value) return;
  refusedKey = apiKey.value;
  isKeyNeeded.value = true;
}

export async function fetchJson<T>(path: string, options?: RequestOptions): Promise<T> {
  return (await send(path, options)).json() as Promise<T>;
}

/** Return the message of an answer that is an error in any dialect; the answer itself if it has none. */
export function readErrorMessage(text: string): string {
  try {
    return findMessage(JSON.parse(text)) ?? text;
  } catch {
    return text;
  }
}

/** Return the message of an error: a text, or an object that has it as `message` or as `error`. */
export function findMessage(error: unknown): string | null {
  if (typeof error === "string") return error || null;
  if (typeof error !== "object" || error === null) return null;
  const { error: inner, message } = error as { error?: unknown; message?: unknown };
  return findMessage(inner) ?? findMessage(message);
}

/** An event of a stream; `name` is "message" unless the server gave another. */
export interface ServerEvent {
  name: string;
  data: string;
}

/** Yield the events of a response in the format of server-sent events, until it ends. */
export async function* readEvents(response: Response): AsyncGenerator<ServerEvent> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value.replaceAll("\r", "");
      let end: number;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const event = parseEvent(text.slice(0, end));
        text = text.slice(end + 2);
        if (event) yield event;
      }
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

/** Return the event of these lines; null for a comment. */
export function parseEvent(lines: string): ServerEvent | null {
  let name = "message";
  const data: string[] = [];
  for (const line of lines.split("\n")) {
    if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
    else if (line.startsWith("event:")) name = line.slice(6).trim();
  }
  return data.length ? { name, data: data.join("\n") } : null;
}
