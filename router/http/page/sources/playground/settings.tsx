/** What is asked: mode, models, sampling, schema and tools. */
import type { ComponentChildren, JSX } from "preact";
import { Area, Choice, Field } from "../shell/controls";
import { modelNames } from "../shell/models";
import {
  chosenModels,
  mode,
  numAlternatives,
  sampling,
  schemaText,
  systemPrompt,
  toolChoice,
  toolsText,
  type SamplingSettings,
  type ToolChoice,
} from "./sampling";

/** Browsers open six connections to a server; one is left for everything else. */
const MAX_MODELS = 5;
const FIELDS: Partial<Record<keyof SamplingSettings, [label: string, hint: string]>> = {
  temperature: ["Temperature", "0 takes the likeliest token, 1 samples as the model has it"],
  top_p: ["Top p", "Samples from the likeliest tokens that together have this probability"],
  top_k: ["Top k", "Samples from so many of the likeliest tokens"],
  max_tokens: ["Max tokens", "The answer ends after so many tokens at the latest"],
  seed: ["Seed", "The same seed gives the same answer"],
  frequency_penalty: ["Frequency penalty", "Makes tokens less likely the more often they came"],
  presence_penalty: ["Presence penalty", "Makes tokens less likely that came already"],
};
const TOOL_CHOICES: Record<ToolChoice, string> = { auto: "may call", required: "must call" };
const EXAMPLE_SCHEMA = JSON.stringify(
  {
    type: "object",
    properties: { name: { type: "string" }, age: { type: "integer" } },
    required: ["name", "age"],
    additionalProperties: false,
  },
  null,
  2,
);
const EXAMPLE_TOOLS = JSON.stringify(
  [
    {
      name: "weather",
      description: "Tells the weather in a city.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  ],
  null,
  2,
);

export function SettingsPanel(): JSX.Element {
  return (
    <details class="settings" open={matchMedia("(min-width: 60rem)").matches}>
      <summary>Settings</summary>
      <Choice
        label="Mode"
        options={{ chat: "Chat", raw: "Raw" }}
        value={mode.value}
        onChange={(value) => {
          mode.value = value;
        }}
      />
      <ModelChoice />
      {mode.value === "chat" && (
        <Area
          label="System prompt"
          value={systemPrompt.value}
          rows={2}
          onChange={(value) => {
            systemPrompt.value = value;
          }}
        />
      )}
      <SamplingFields />
      <JsonBox
        title="JSON schema of the answer"
        example={EXAMPLE_SCHEMA}
        text={schemaText.value}
        onChange={(value) => {
          schemaText.value = value;
        }}
      />
      {mode.value === "chat" && (
        <JsonBox
          title="Tools"
          example={EXAMPLE_TOOLS}
          text={toolsText.value}
          onChange={(value) => {
            toolsText.value = value;
          }}
        >
          <Choice
            label="Calls"
            options={TOOL_CHOICES}
            value={toolChoice.value}
            onChange={(value) => {
              toolChoice.value = value;
            }}
          />
        </JsonBox>
      )}
    </details>
  );
}

function ModelChoice(): JSX.Element {
  const chosen = chosenModels.value.length ? chosenModels.value : modelNames.value.slice(0, 1);
  function toggle(name: string): void {
    const others = chosen.filter((other) => other !== name);
    if (others.length === chosen.length) chosenModels.value = [...chosen, name].slice(-MAX_MODELS);
    else if (others.length) chosenModels.value = others;
  }
  return (
    <fieldset class="models">
      <legend>Models, side by side</legend>
      {modelNames.value.map((name) => (
        <label key={name}>
          <input type="checkbox" checked={chosen.includes(name)} onChange={() => toggle(name)} /> {name}
        </label>
      ))}
    </fieldset>
  );
}

function SamplingFields(): JSX.Element {
  function set(name: keyof SamplingSettings, value: string): void {
    sampling.value = { ...sampling.value, [name]: value };
  }
  return (
    <div class="sampling">
      {Object.entries(FIELDS).map(([name, [label, hint]]) => (
        <Field
          key={name}
          label={label}
          hint={hint}
          value={sampling.value[name as keyof SamplingSettings]}
          onChange={(value) => set(name as keyof SamplingSettings, value)}
        />
      ))}
      <label class="field" title="Likely tokens that are shown beside each of the answer">
        <span>Probabilities</span>
        <select
          value={numAlternatives.value}
          onChange={(event) => {
            numAlternatives.value = Number(event.currentTarget.value);
          }}
        >
          <option value={0}>none</option>
          {[1, 3, 5].map((count) => (
            <option key={count} value={count}>
              top {count}
            </option>
          ))}
        </select>
      </label>
      <Area
        label="Stop strings, one a line"
        value={sampling.value.stop}
        rows={2}
        onChange={(value) => set("stop", value)}
      />
    </div>
  );
}

interface JsonBoxProps {
  title: string;
  example: string;
  text: string;
  onChange: (text: string) => void;
  children?: ComponentChildren;
}

function JsonBox({ title, example, text, onChange, children }: JsonBoxProps): JSX.Element {
  return (
    <details class="json-box">
      <summary>
        {title}
        {text.trim() ? " (set)" : ""}
      </summary>
      <Area label={title} value={text} rows={8} isCode onChange={onChange} />
      {children}
      <div class="json-actions">
        <button type="button" class="quiet" onClick={() => onChange(example)}>
          Example
        </button>
        <button type="button" class="quiet" onClick={() => onChange("")}>
          Clear
        </button>
      </div>
    </details>
  );
}
