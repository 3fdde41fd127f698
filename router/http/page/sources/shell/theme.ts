/** Light and dark: as the system has it, or as chosen here. */
import { effect, signal } from "@preact/signals";

export type Theme = "light" | "dark";
const THEME_NAME = "weft-theme";
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

export const theme = signal<Theme>(readTheme());

function readTheme(): Theme {
  const chosen = localStorage.getItem(THEME_NAME);
  return chosen === "light" || chosen === "dark" ? chosen : systemIsDark.matches ? "dark" : "light";
}

export function toggleTheme(): void {
  theme.value = theme.value === "dark" ? "light" : "dark";
  localStorage.setItem(THEME_NAME, theme.value);
}

/** Return the value of a colour of styles/base.css. */
export function readColour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

systemIsDark.addEventListener("change", () => {
  theme.value = readTheme();
});
effect(() => {
  document.documentElement.dataset.theme = theme.value;
});
