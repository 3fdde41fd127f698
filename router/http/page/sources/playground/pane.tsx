/** The playground: a chat, or a text to go on with, for one model or several side by side. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Notice } from "../shell/controls";
import { serverInfo } from "../shell/models";
import { redrawOn } from "../shell/redraw";
import { AnswerView } from "./answer";
import type { Answer, Exchange } from "./conversation";
import { CopyAsDialog } from "./copy_as";
import { mode } from "./sampling";
import {
  ask,
  clear,
  getExchanges,
  getParent,
  isGenerating,
  retry,
  revision,
  settingsError,
  stop,
  turnBranch,
} from "./session";
import { SettingsPanel } from "./settings";

export function PlaygroundPane(): JSX.Element {
  const [copied, setCopied] = useState<Answer | null>(null);
  redrawOn(revision);
  const exchanges = getExchanges();
  return (
    <div class="playground">
      <SettingsPanel />
      <section class="conversation" aria-label="Conversation">
        <h2 class="hidden">Conversation</h2>
        <div class="exchanges">
          {exchanges.length === 0 && <Welcome />}
          {exchanges.map((exchange, index) => (
            <ExchangeView
              key={index}
              exchange={exchange}
              isLast={index === exchanges.length - 1}
              onCopyAs={setCopied}
            />
          ))}
        </div>
        {settingsError.value && <Notice kind="error">{settingsError.value}</Notice>}
        <Composer hasExchanges={exchanges.length > 0} />
      </section>
      {copied && <CopyAsDialog answer={copied} onClose={() => setCopied(null)} />}
    </div>
  );
}

const EXAMPLES = {
  chat: ["Tell me a story about a frog.", "Count to five.", "What is the weather in Paris?"],
  raw: ["Once upon a time", "The best way to learn is", "1, 2, 3,"],
};

function Welcome(): JSX.Element {
  const info = serverInfo.value;
  return (
    <div class="welcome">
      <h3>{mode.value === "chat" ? "Ask the model something" : "Begin a text"}</h3>
      {info && (
        <p>
          {info.model_id}
          {info.notice ? `: ${info.notice}` : ""}.
        </p>
      )}
      <ul class="examples" aria-label="Examples">
        {EXAMPLES[mode.value].map((text) => (
          <li key={text}>
            <button type="button" onClick={() => ask(text)}>
              {text}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

interface ExchangeProps {
  exchange: Exchange;
  isLast: boolean;
  onCopyAs: (answer: Answer) => void;
}

function ExchangeView({ exchange, isLast, onCopyAs }: ExchangeProps): JSX.Element {
  const [isEdited, setIsEdited] = useState(false);
  redrawOn(revision);
  return (
    <div class="exchange">
      {isEdited ? (
        <PromptEditor exchange={exchange} onClose={() => setIsEdited(false)} />
      ) : (
        <PromptView exchange={exchange} onEdit={() => setIsEdited(true)} />
      )}
      <div class="answers">
        {exchange.answers.map((answer) => (
          <AnswerView
            key={answer.model}
            answer={answer}
            isRaw={mode.value === "raw"}
            onCopyAs={() => onCopyAs(answer)}
            {...(isLast && answer.state === "done"
              ? { onToolResults: (results) => ask("", exchange, results, [answer.model]) }
              : {})}
          />
        ))}
      </div>
    </div>
  );
}

function PromptView({ exchange, onEdit }: { exchange: Exchange; onEdit: () => void }): JSX.Element {
  const isTool = exchange.toolResults.length > 0;
  const text = isTool ? exchange.toolResults.map((result) => result.content).join("\n") : exchange.prompt;
  return (
    <div class="prompt" role="group" aria-label={isTool ? "Results of tools" : "Your message"}>
      <p>{text}</p>
      <div class="prompt-actions">
        <BranchSwitch exchange={exchange} />
        {!isTool && (
          <button type="button" class="quiet" onClick={onEdit}>
            Edit
          </button>
        )}
        <button type="button" class="quiet" onClick={() => retry(exchange)}>
          Retry
        </button>
      </div>
    </div>
  );
}

/** Goes through the edits and retries that stand in one place. */
function BranchSwitch({ exchange }: { exchange: Exchange }): JSX.Element | null {
  const parent = getParent(exchange);
  const count = parent?.branches.length ?? 1;
  if (count < 2) return null;
  const at = parent.shownBranch;
  return (
    <span class="branches" role="group" aria-label="Versions">
      <button
        type="button"
        class="quiet"
        aria-label="Earlier version"
        disabled={at === 0}
        onClick={() => turnBranch(parent, -1)}
      >
        ‹
      </button>
      {at + 1}/{count}
      <button
        type="button"
        class="quiet"
        aria-label="Later version"
        disabled={at === count - 1}
        onClick={() => turnBranch(parent, 1)}
      >
        ›
      </button>
    </span>
  );
}

function PromptEditor({ exchange, onClose }: { exchange: Exchange; onClose: () => void }): JSX.Element {
  const [text, setText] = useState(exchange.prompt);
  function send(): void {
    ask(text, getParent(exchange));
    onClose();
  }
  return (
    <form
      class="prompt editor"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <label class="field">
        <span>Your message, anew</span>
        <textarea rows={3} value={text} autofocus onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <div class="prompt-actions">
        <button type="button" class="quiet" onClick={onClose}>
          Cancel
        </button>
        <button type="submit">Send as a branch</button>
      </div>
    </form>
  );
}

function Composer({ hasExchanges }: { hasExchanges: boolean }): JSX.Element {
  const [text, setText] = useState("");
  const area = useRef<HTMLTextAreaElement>(null);
  const isChat = mode.value === "chat";
  useEffect(() => {
    if (area.current) area.current.style.height = text ? `${Math.min(area.current.scrollHeight, 240)}px` : "";
  }, [text]);
  function send(): void {
    if (!text.trim() || isGenerating()) return;
    ask(text);
    if (isChat) setText("");
  }
  function onKeyDown(event: KeyboardEvent): void {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  }
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        ref={area}
        rows={isChat ? 2 : 4}
        value={text}
        aria-label={isChat ? "Message" : "Text to go on with"}
        placeholder={isChat ? "Message (Enter sends, Shift+Enter begins a line)" : "Text to go on with (Enter sends)"}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <div class="composer-actions">
        {hasExchanges && (
          <button type="button" class="quiet" onClick={clear}>
            New
          </button>
        )}
        {isGenerating() ? (
          <button type="button" class="primary" onClick={stop}>
            Stop
          </button>
        ) : (
          <button type="submit" class="primary" disabled={!text.trim()}>
            Send
          </button>
        )}
      </div>
    </form>
  );
}
