/** An answer's tokens, tinted by how likely each was; the one under the pointer or cursor shows its alternatives. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { redrawOn } from "../shell/redraw";
import type { Token } from "./conversation";
import { revision } from "./session";

export function TokenView({ tokens }: { tokens: Token[] }): JSX.Element {
  const [at, setAt] = useState(-1);
  redrawOn(revision);
  function onKeyDown(event: KeyboardEvent): void {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    setAt(Math.min(Math.max(at + step, 0), tokens.length - 1));
  }
  return (
    <div class="token-view">
      <div
        class="tokens"
        tabIndex={0}
        role="group"
        aria-label="Tokens; the arrow keys go through them"
        onKeyDown={onKeyDown}
        onMouseLeave={() => setAt(-1)}
      >
        {tokens.map((token, index) => (
          <span
            key={index}
            class={`token p${getLevel(token.logprob)}${index === at ? " at" : ""}`}
            onMouseEnter={() => setAt(index)}
          >
            {showBreaks(token.text)}
          </span>
        ))}
      </div>
      <div class="token-detail" role="status">
        {at >= 0 && tokens[at] ? <Detail token={tokens[at]} /> : HINT}
      </div>
    </div>
  );
}

const HINT = "Point at a token, or use the arrow keys, to see how likely it was.";

function Detail({ token }: { token: Token }): JSX.Element {
  const others = token.alternatives.filter((other) => other.text !== token.text);
  return (
    <>
      <Probability text={token.text} logprob={token.logprob} />
      {others.map((other) => (
        <Probability key={other.text} text={other.text} logprob={other.logprob} />
      ))}
    </>
  );
}

function Probability({ text, logprob }: { text: string; logprob: number }): JSX.Element {
  const percent = 100 * Math.exp(logprob);
  return (
    <span class="probability">
      <code>{JSON.stringify(text).slice(1, -1) || "(empty)"}</code>
      <meter min={0} max={100} value={percent} aria-label={`probability of ${text}`} />
      {percent >= 0.1 ? `${percent.toFixed(1)} %` : "< 0.1 %"}
    </span>
  );
}

/** Return 0 for a token that was nearly sure, up to 4 for one that was unlikely. */
function getLevel(logprob: number): number {
  const probability = Math.exp(logprob);
  return [0.9, 0.6, 0.3, 0.1].filter((bound) => probability < bound).length;
}

function showBreaks(text: string): string {
  return text.replaceAll("\n", "↵\n") || "∅";
}
