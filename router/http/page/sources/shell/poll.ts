/** Values that are asked of the server again and again while they are shown. */
import { useEffect, useState } from "preact/hooks";
import { apiKey, fetchJson, RequestFailed } from "./api";

export interface Polled<T> {
  value: T | null;
  error: string;
  refresh: () => void;
}

/** Return what `path` answers, asked anew every `seconds` (0: once) and whenever the key changes. */
export function usePolled<T>(path: string, seconds: number): Polled<T> {
  const [value, setValue] = useState<T | null>(null);
  const [error, setError] = useState("");
  const [turn, setTurn] = useState(0);
  const key = apiKey.value;
  useEffect(() => {
    setValue(null); // what another key may see
    setError("");
  }, [key]);
  useEffect(() => {
    const aborter = new AbortController();
    let timer = 0;
    async function ask(): Promise<void> {
      try {
        setValue(await fetchJson<T>(path, { signal: aborter.signal }));
        setError("");
      } catch (failure) {
        if (aborter.signal.aborted) return;
        setError(failure instanceof RequestFailed ? failure.message : String(failure));
      }
      if (seconds > 0) timer = window.setTimeout(ask, seconds * 1000);
    }
    void ask();
    return () => {
      aborter.abort();
      clearTimeout(timer);
    };
  }, [path, seconds, key, turn]);
  return { value, error, refresh: () => setTurn(turn + 1) };
}
