/** Keeps an error of what it contains from emptying the page. */
import type { ComponentChildren, JSX } from "preact";
import { useErrorBoundary } from "preact/hooks";
import { Notice } from "./controls";

export function ErrorBoundary({ children }: { children: ComponentChildren }): JSX.Element {
  const [error, reset] = useErrorBoundary();
  if (!error) return <>{children}</>;
  return (
    <>
      <Notice kind="error">This cannot be shown: {String(error.message ?? error)}</Notice>
      <button type="button" onClick={reset}>
        Try again
      </button>
    </>
  );
}
