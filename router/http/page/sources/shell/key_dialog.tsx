/** Asks for the API key once; it stays in the tab. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { apiKey, setApiKey } from "./api";
import { Dialog } from "./dialog";

interface KeyDialogProps {
  isNeeded: boolean;
  onClose: () => void;
}

export function KeyDialog({ isNeeded, onClose }: KeyDialogProps): JSX.Element {
  const [key, setKey] = useState(apiKey.value);
  function save(event: Event): void {
    event.preventDefault();
    setApiKey(key);
    onClose();
  }
  return (
    <Dialog title="API key" onClose={onClose}>
      <form class="key-form" onSubmit={save}>
        <p>
          {isNeeded ? "This server asks for a key." : "Requests of this tab send this key."} It is kept in this tab
          only, until you close it.
        </p>
        <label class="field">
          <span>Key</span>
          <input
            type="password"
            value={key}
            autofocus
            autocomplete="off"
            placeholder="none"
            onInput={(event) => setKey(event.currentTarget.value)}
          />
        </label>
        <button type="submit" class="primary">
          Use this key
        </button>
      </form>
    </Dialog>
  );
}
