/** Numbers and times as text. */

export function formatMs(ms: number): string {
  if (ms >= 10_000) return `${(ms / 1000).toFixed(0)} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(1)} s`;
  return ms >= 10 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`;
}

export function formatCount(count: number): string {
  return count.toLocaleString("en-US");
}

export function formatRate(rate: number): string {
  return rate >= 100 ? formatCount(Math.round(rate)) : rate.toFixed(1);
}

/** Return "1 step", "2 steps". */
export function formatNumberOf(count: number, noun: string): string {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Return the sentence with a capital and a full stop. */
export function asSentence(text: string): string {
  const trimmed = text.trim();
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1) + (/[.!?]$/.test(trimmed) ? "" : ".");
}
