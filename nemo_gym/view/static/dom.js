/* The vendored component library under the names that all other modules use, and the few hooks of our own. */

export const { h, render, Component } = globalThis.preact;
export const { useState, useEffect, useLayoutEffect, useMemo, useRef, useCallback } = globalThis.preactHooks;
export const html = globalThis.htm.bind(h);

/** The reply of an asynchronous call; the last good one stays visible while the next is loading. */
export function useReply(load, inputs) {
  const [reply, setReply] = useState({ value: null, error: null, loading: true });
  useEffect(() => {
    const stop = new AbortController();
    setReply((last) => ({ ...last, loading: true }));
    load(stop.signal).then(
      (value) => !stop.signal.aborted && setReply({ value, error: null, loading: false }),
      (error) => !stop.signal.aborted && setReply((last) => ({ ...last, error, loading: false })),
    );
    return () => stop.abort();
  }, inputs);
  return reply;
}

/** The size of an element, kept current. */
export function useSize(ref) {
  const [size, setSize] = useState({ width: 0, height: 0 });
  useLayoutEffect(() => {
    const measure = () => setSize({ width: ref.current.clientWidth, height: ref.current.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(ref.current);
    measure();
    return () => observer.disconnect();
  }, []);
  return size;
}

/** Whether a media query holds. */
export function useMedia(query) {
  const list = useMemo(() => matchMedia(query), [query]);
  const [matches, setMatches] = useState(list.matches);
  useEffect(() => {
    const update = () => setMatches(list.matches);
    list.addEventListener("change", update);
    return () => list.removeEventListener("change", update);
  }, [list]);
  return matches;
}

/** Draws its children only once they are near the viewport; until then a placeholder of about their height. */
export function Lazy({ height, eager, children }) {
  const [near, setNear] = useState(Boolean(eager));
  const ref = useRef();
  useEffect(() => {
    if (near) return undefined;
    if (eager) {
      setNear(true);
      return undefined;
    }
    const watcher = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && setNear(true),
      { rootMargin: "900px 0px" },
    );
    watcher.observe(ref.current);
    return () => watcher.disconnect();
  }, [near, eager]);
  return near ? children : html`<div ref=${ref} class="lazy" style=${{ height: `${height}px` }}></div>`;
}
