/** Which colour a sequence has: that of its adapter or of its tenant. The palette is styles/base.css. */
import { computed, signal } from "@preact/signals";
import { isBaseModel, modelNames } from "../shell/models";
import { readColour } from "../shell/theme";
import type { Sequence } from "./protocol";

export type ColourBy = "adapter" | "tenant" | "request";
/** What was chosen here; null before. */
const chosenColour = signal<ColourBy | null>(null);
/** A server without adapters would have all requests in one colour. */
export const colourBy = computed<ColourBy>(
  () => chosenColour.value ?? (modelNames.value.some((name) => !isBaseModel(name)) ? "adapter" : "request"),
);
const NUM_COLOURS = 8;

export function chooseColour(value: ColourBy): void {
  chosenColour.value = value;
}

export interface Palette {
  series: string[];
  paper: string;
  ink: string;
  muted: string;
  line: string;
  alarm: string;
  shared: string;
}

export function readPalette(): Palette {
  const series = Array.from({ length: NUM_COLOURS }, (_, index) => readColour(`series-${index}`));
  return {
    series,
    paper: readColour("surface"),
    ink: readColour("ink"),
    muted: readColour("muted"),
    line: readColour("line"),
    alarm: readColour("alarm"),
    shared: readColour("shared"),
  };
}

/** Return the index of a sequence's colour in the palette. */
export function getSeries(sequence: Sequence | undefined): number {
  if (!sequence) return 0;
  const source = sequence.source_id ?? sequence.id;
  const ordinal = { adapter: sequence.adapter_ordinal, tenant: sequence.tenant_ordinal - 1, request: source }[
    colourBy.value
  ];
  return ((ordinal % NUM_COLOURS) + NUM_COLOURS) % NUM_COLOURS;
}

/** Return the words for a sequence's colour in the legend. */
export function describeSeries(sequence: Sequence, model: string): string {
  if (colourBy.value === "tenant") return sequence.tenant === null ? "another tenant" : sequence.tenant || "everyone";
  return sequence.adapter ?? (sequence.adapter_ordinal === 0 ? model : "an adapter of others");
}
