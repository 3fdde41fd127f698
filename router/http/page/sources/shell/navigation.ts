/** Which pane is shown, by the address's fragment: `#batch`, `#requests/ID`. */
import { computed, signal } from "@preact/signals";

export const PANES = ["playground", "batch", "requests", "server"] as const;
export type Pane = (typeof PANES)[number];
export const PANE_TITLES: Record<Pane, string> = {
  playground: "Playground",
  batch: "Live batch",
  requests: "Requests",
  server: "Server",
};

const fragment = signal(location.hash.slice(1));
addEventListener("hashchange", () => {
  fragment.value = location.hash.slice(1);
});

export const pane = computed<Pane>(() => {
  const name = fragment.value.split("/")[0] as Pane;
  return PANES.includes(name) ? name : "playground";
});
/** Id of the request that the pane of requests shows whole; empty for none. */
export const shownRequestId = computed(() =>
  pane.value === "requests" ? decodeFragment(fragment.value.split("/").slice(1).join("/")) : "",
);

/** Return the text that a part of the fragment stands for; a link that was cut off or mistyped stands for itself. */
export function decodeFragment(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function linkToRequest(id: string): string {
  return `#requests/${encodeURIComponent(id)}`;
}
