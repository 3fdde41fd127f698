/** All settings of the server, each with where it came from; for admin keys. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Notice } from "../shell/controls";
import { asSentence } from "../shell/format";
import { usePolled } from "../shell/poll";

interface Setting {
  group: string;
  name: string;
  value: unknown;
  source: string;
}

export function SettingList(): JSX.Element | null {
  const { value, error } = usePolled<{ settings: Setting[] }>("v1/engine/settings", 0);
  const [showsAll, setShowsAll] = useState(false);
  if (error) return <Notice kind="error">{asSentence(error)}</Notice>;
  if (!value?.settings.length) return null;
  const shown = value.settings.filter(({ source }) => showsAll || source !== "default");
  return (
    <section class="card" aria-label="Settings">
      <h3>
        Settings <small>and where each came from</small>
      </h3>
      <label class="inline">
        <input type="checkbox" checked={showsAll} onChange={(event) => setShowsAll(event.currentTarget.checked)} />
        <span>also those with their default, {value.settings.length} in all</span>
      </label>
      {shown.length > 0 ? <SettingTable settings={shown} /> : <p class="hint">All have their defaults.</p>}
      <p class="hint">
        <code>weft serve --help-all</code> explains each.
      </p>
    </section>
  );
}

function SettingTable({ settings }: { settings: Setting[] }): JSX.Element {
  return (
    <div class="table-scroll" tabIndex={0} role="region" aria-label="Table of settings">
      <table>
        <thead>
          <tr>
            <th scope="col">setting</th>
            <th scope="col">value</th>
            <th scope="col">from</th>
            <th scope="col">group</th>
          </tr>
        </thead>
        <tbody>
          {settings.map(({ group, name, value, source }) => (
            <tr key={name}>
              <td>
                <code>{name}</code>
              </td>
              <td>{describeValue(value)}</td>
              <td>{source}</td>
              <td>{group}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function describeValue(value: unknown): string {
  if (value === null || value === "" || (Array.isArray(value) && value.length === 0)) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  return Array.isArray(value) ? value.join(", ") : String(value);
}
