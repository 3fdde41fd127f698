/** The page: its header, the four panes, and the dialog that asks for the key. */
import { render, type JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { BatchPane } from "./batch/pane";
import { PlaygroundPane } from "./playground/pane";
import { RequestsPane } from "./requests/pane";
import { ServerPane } from "./server/pane";
import { apiKey, isKeyNeeded } from "./shell/api";
import { ErrorBoundary } from "./shell/error_boundary";
import { KeyDialog } from "./shell/key_dialog";
import { loadModels, serverInfo } from "./shell/models";
import { pane, PANES, PANE_TITLES, type Pane } from "./shell/navigation";
import { theme, toggleTheme } from "./shell/theme";
import "./styles/page.css";

const CONTENTS: Record<Pane, () => JSX.Element> = {
  playground: PlaygroundPane,
  batch: BatchPane,
  requests: RequestsPane,
  server: ServerPane,
};

function Page(): JSX.Element {
  const Content = CONTENTS[pane.value];
  const key = apiKey.value;
  useEffect(() => {
    void loadModels().catch(() => undefined);
  }, [key]);
  return (
    <>
      <Header />
      <main id={pane.value} tabIndex={-1} aria-label={PANE_TITLES[pane.value]}>
        <ErrorBoundary key={pane.value}>
          <Content />
        </ErrorBoundary>
      </main>
    </>
  );
}

function Header(): JSX.Element {
  const [asksKey, setAsksKey] = useState(false);
  const isDark = theme.value === "dark";
  return (
    <header class="page-header">
      <a class="skip" href={`#${pane.value}`} onClick={() => document.querySelector("main")?.focus()}>
        Skip to the content
      </a>
      <h1>
        <span class="mark" aria-hidden="true" /> weft <small>{serverInfo.value?.model_id}</small>
      </h1>
      <nav aria-label="Panes">
        {PANES.map((name) => (
          <a key={name} href={`#${name}`} aria-current={name === pane.value ? "page" : undefined}>
            {PANE_TITLES[name]}
          </a>
        ))}
      </nav>
      <div class="header-actions">
        <a href="docs" class="button quiet">
          API
        </a>
        <button type="button" class="quiet" onClick={() => setAsksKey(true)}>
          {apiKey.value ? "Key ✓" : "Key"}
        </button>
        <button
          type="button"
          class="quiet"
          aria-label={isDark ? "Light colours" : "Dark colours"}
          onClick={toggleTheme}
        >
          {isDark ? "☀" : "☾"}
        </button>
      </div>
      {(asksKey || isKeyNeeded.value) && (
        <KeyDialog
          isNeeded={isKeyNeeded.value}
          onClose={() => {
            setAsksKey(false);
            isKeyNeeded.value = false;
          }}
        />
      )}
    </header>
  );
}

render(<Page />, document.getElementById("page")!);
