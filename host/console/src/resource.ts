// Data that a page loads, and loads again.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { sendJson } from "./api";

/** Loads JSON from `path`, and again every `seconds` while the page is visible. Without a path it loads nothing. */
export function useResource<T>(path: string | null, seconds: number): { data: T | null; error: unknown; load: () => Promise<void> } {
  const [data, setData] = useState<T | null>(null);
  const [error, setError] = useState<unknown>(null);
  const newest = useRef(0);

  const load = useCallback(async () => {
    if (path === null) return;
    newest.current += 1;
    const mine = newest.current;
    try {
      const loaded = await sendJson<T>(path);
      // An answer that a later one has overtaken is old.
      if (mine !== newest.current) return;
      setData(() => loaded);
      setError(null);
    } catch (error) {
      if (mine === newest.current) setError(error);
    }
  }, [path]);

  useEffect(() => {
    void load();
    const timer = setInterval(() => document.visibilityState === "visible" && void load(), seconds * 1000);
    return () => {
      clearInterval(timer);
      newest.current += 1;
    };
  }, [load, seconds]);
  return { data, error, load };
}
