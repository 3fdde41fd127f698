/** Adapters: which are loaded, and for admin keys loading and unloading. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { send } from "../shell/api";
import { Notice } from "../shell/controls";
import { asSentence } from "../shell/format";
import { isBaseModel, loadModels, modelNames } from "../shell/models";
import { usePolled } from "../shell/poll";

interface AdapterObject {
  id: string;
  source?: string;
  state?: string;
  [field: string]: unknown;
}

export function AdapterList({ isAdmin }: { isAdmin: boolean }): JSX.Element {
  const { value, error, refresh } = usePolled<{ data: AdapterObject[] }>("v1/adapters", 5);
  const [failure, setFailure] = useState("");
  async function act(path: string, options: { method: string; body?: object }): Promise<void> {
    setFailure("");
    try {
      await send(path, options);
    } catch (reason) {
      setFailure((reason as Error).message);
    }
    refresh();
    void loadModels();
  }
  const adapters = value?.data ?? [];
  const loadable = modelNames.value.filter((name) => !isBaseModel(name) && !adapters.some(({ id }) => id === name));
  return (
    <section class="card" aria-label="Adapters">
      <h3>
        Adapters <small>loaded when a request names them{isAdmin ? ", or here" : ""}</small>
      </h3>
      {(error || failure) && <Notice kind="error">{asSentence(failure || error)}</Notice>}
      {adapters.length > 0 && (
        <div class="table-scroll" tabIndex={0} role="region" aria-label="Loaded adapters">
          <table>
            <thead>
              <tr>
                <th scope="col">name</th>
                <th scope="col">source</th>
                <th scope="col">state</th>
                {isAdmin && (
                  <th scope="col">
                    <span class="hidden">Actions</span>
                  </th>
                )}
              </tr>
            </thead>
            <tbody>
              {adapters.map((adapter) => (
                <tr key={adapter.id}>
                  <td>{adapter.id}</td>
                  <td>{adapter.source ?? "–"}</td>
                  <td>{adapter.state ?? "–"}</td>
                  {isAdmin && (
                    <td>
                      <button
                        type="button"
                        class="quiet"
                        aria-label={`Unload ${adapter.id}`}
                        onClick={() => act(`v1/adapters/${encodeURIComponent(adapter.id)}`, { method: "DELETE" })}
                      >
                        Unload
                      </button>
                    </td>
                  )}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {adapters.length === 0 && <p class="hint">None is loaded.</p>}
      {isAdmin && <LoadForm names={loadable} onLoad={(id) => act("v1/adapters", { method: "POST", body: { id } })} />}
    </section>
  );
}

function LoadForm({ names, onLoad }: { names: string[]; onLoad: (id: string) => void }): JSX.Element {
  const [id, setId] = useState("");
  return (
    <form
      class="load-adapter"
      onSubmit={(event) => {
        event.preventDefault();
        if (id.trim()) onLoad(id.trim());
      }}
    >
      <label class="field">
        <span>Adapter, by its name in its source</span>
        <input type="text" list="loadable" value={id} onInput={(event) => setId(event.currentTarget.value)} />
      </label>
      <datalist id="loadable">
        {names.map((name) => (
          <option key={name} value={name} />
        ))}
      </datalist>
      <button type="submit" disabled={!id.trim()}>
        Load
      </button>
    </form>
  );
}
