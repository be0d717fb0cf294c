/* Where the reader is: the view and its filters, kept in the URL so that a view can be shared.

The state lives in the fragment: it works for pages opened from disk and is never sent to a server. A query string of
the same form is understood as well. */

import { useEffect, useState } from "./dom.js";

export const VIEWS = ["overview", "table", "groups", "compare", "timing", "audit"];
const PLACE_KEYS = [
  "view",
  "filter",
  "search",
  "sort",
  "columns",
  "by",
  "within",
  "order",
  "x",
  "y",
  "threshold",
  "pair",
  "rollout",
  "tab",
  "a",
  "b",
  "run",
  "run_a",
  "run_b",
];
const listeners = new Set();

export function readPlace() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const query = new URLSearchParams(location.search);
  const place = {};
  for (const key of PLACE_KEYS) {
    const value = fragment.get(key) ?? (location.hash.length > 1 ? null : query.get(key));
    if (value) place[key] = value;
  }
  if (!VIEWS.includes(place.view)) place.view = "overview";
  return place;
}

/** The address of the current place with some keys changed; null removes a key. */
export function placeUrl(change, from = readPlace()) {
  const next = { ...from, ...change };
  const parameters = new URLSearchParams();
  for (const key of PLACE_KEYS) if (next[key]) parameters.set(key, next[key]);
  return `#${parameters}`;
}

export function goTo(change, { replace = false } = {}) {
  const url = placeUrl(change);
  if (url === location.hash) return;
  if (replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  tellPlace();
}

function tellPlace() {
  const place = readPlace();
  for (const listener of listeners) listener(place);
}

export function usePlace() {
  const [place, setPlace] = useState(readPlace);
  useEffect(() => {
    listeners.add(setPlace);
    addEventListener("popstate", tellPlace);
    addEventListener("hashchange", tellPlace);
    // The address may have changed since the first look at it, when nobody listened yet.
    setPlace((known) => (placeUrl({}, known) === placeUrl({}) ? known : readPlace()));
    return () => {
      listeners.delete(setPlace);
      removeEventListener("popstate", tellPlace);
      removeEventListener("hashchange", tellPlace);
    };
  }, []);
  return place;
}

/** The parts of the place that select and order rollouts. */
export function selectionOf(place) {
  return { filter: place.filter ?? "", search: place.search ?? "", sort: place.sort ?? "" };
}
