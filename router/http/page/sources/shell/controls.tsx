/** Small controls that all panes use. */
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";

export function CopyButton({ text, label }: { text: string; label: string }): JSX.Element {
  const [said, setSaid] = useState("");
  async function copy(): Promise<void> {
    setSaid((await copyText(text)) ? "Copied" : "Not copied");
    setTimeout(() => setSaid(""), 1500);
  }
  return (
    <button type="button" class="quiet" onClick={copy}>
      <span role="status">{said || label}</span>
    </button>
  );
}

/** Copy a text; return whether the browser let us. It has a clipboard for pages on this machine or over HTTPS. */
async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text: string): boolean {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  return isCopied;
}

interface FieldProps {
  label: string;
  value: string;
  onChange: (value: string) => void;
  hint?: string;
  placeholder?: string;
  inputMode?: "decimal" | "numeric" | "text";
}

export function Field({ label, value, onChange, hint, placeholder, inputMode }: FieldProps): JSX.Element {
  return (
    <label class="field" title={hint}>
      <span>{label}</span>
      <input
        type="text"
        value={value}
        placeholder={placeholder ?? "default"}
        inputMode={inputMode ?? "decimal"}
        autocomplete="off"
        spellcheck={false}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
    </label>
  );
}

interface AreaProps {
  label: string;
  value: string;
  onChange: (value: string) => void;
  placeholder?: string;
  rows?: number;
  isCode?: boolean;
}

export function Area({ label, value, onChange, placeholder, rows, isCode }: AreaProps): JSX.Element {
  return (
    <label class="field">
      <span>{label}</span>
      <textarea
        value={value}
        rows={rows ?? 3}
        placeholder={placeholder}
        spellcheck={!isCode}
        class={isCode ? "code" : ""}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
    </label>
  );
}

interface ChoiceProps<T extends string> {
  label: string;
  options: Record<T, string>;
  value: T;
  onChange: (value: T) => void;
}

/** A row of which one is chosen. */
export function Choice<T extends string>({ label, options, value, onChange }: ChoiceProps<T>): JSX.Element {
  return (
    <div class="choice" role="group" aria-label={label}>
      {Object.entries<string>(options).map(([name, title]) => (
        <button key={name} type="button" aria-pressed={name === value} onClick={() => onChange(name as T)}>
          {title}
        </button>
      ))}
    </div>
  );
}

export function Notice({ kind, children }: { kind: "error" | "note"; children: ComponentChildren }): JSX.Element {
  return (
    <p class={`notice ${kind}`} role={kind === "error" ? "alert" : undefined}>
      {children}
    </p>
  );
}
