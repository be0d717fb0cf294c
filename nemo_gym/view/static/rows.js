/* Rows of a list of any length: pages of a hundred, loaded as they come into view, and the number of new rows. */

import { SHARED } from "./shared.js";
import { useReply, useRef, useState } from "./dom.js";

export const PAGE_ROWS = SHARED.page_rows;

/** Rows by index, fetched as they come into view. */
export function useRows(source, selection, names, version) {
  const [store, setStore] = useState({ total: null, pages: new Map(), error: null });
  const pending = useRef(new Map());
  const current = useRef(null);
  const key = JSON.stringify([selection, names, version]);
  const load = (page) => {
    // A timer of an earlier selection may still fire.
    if (current.current !== key || pending.current.has(page)) return;
    const stop = new AbortController();
    pending.current.set(page, stop);
    const query = { ...selection, offset: page * PAGE_ROWS, limit: PAGE_ROWS, columns: names.join(",") };
    source.rollouts(query, stop.signal).then(
      (reply) => {
        if (current.current !== key) return;
        pending.current.delete(page);
        setStore((last) => {
          const fresh = last.key === key ? last.pages : new Map();
          fresh.set(page, reply.rows);
          return { key, total: reply.total, pages: fresh, error: null };
        });
      },
      (error) => {
        if (stop.signal.aborted || current.current !== key) return;
        pending.current.delete(page);
        setStore((last) => ({ ...last, error }));
      },
    );
  };
  if (current.current !== key) {
    for (const stop of pending.current.values()) stop.abort();
    pending.current.clear();
    current.current = key;
  }
  const fresh = store.key === key;
  const need = (from, to) => {
    for (let page = Math.floor(from / PAGE_ROWS); page <= Math.floor(Math.max(to - 1, from) / PAGE_ROWS); page += 1) {
      if (!fresh || !store.pages.has(page)) load(page);
    }
    for (const [page, stop] of pending.current) {
      if ((page + 2) * PAGE_ROWS < from || (page - 1) * PAGE_ROWS > to) {
        stop.abort();
        pending.current.delete(page);
      }
    }
  };
  return {
    ...store,
    fresh,
    need,
    rowAt: (index) => store.pages.get(Math.floor(index / PAGE_ROWS))?.[index % PAGE_ROWS],
  };
}

/** How many rows of this selection arrived since the rows on screen were loaded. */
export function useArrivals(source, selection, version, seen, total) {
  const { value } = useReply(
    async (signal) => (version === seen ? null : source.rollouts({ ...selection, offset: 0, limit: 1 }, signal)),
    [version, seen, JSON.stringify(selection)],
  );
  return version === seen || !value || total === null ? 0 : value.total - total;
}
