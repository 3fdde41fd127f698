/** The width of an element, kept true while it changes. */
import { useLayoutEffect, useState } from "preact/hooks";
import type { RefObject } from "preact";

export function useWidth(element: RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const observed = element.current;
    if (!observed) return;
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    observer.observe(observed);
    setWidth(Math.floor(observed.clientWidth));
    return () => observer.disconnect();
  }, [element]);
  return width;
}
