/* The viewer: the bar at the top, the view below it, the keyboard, and polling for changes of the files. */

import { html, render, useEffect, useLayoutEffect, useRef, useState } from "./dom.js";
import { clean, formatCount, formatPercent } from "./format.js";
import { goTo, placeUrl, readPlace, usePlace, VIEWS } from "./place.js";
import { Compare } from "./compare.js";
import { FilterBar } from "./filterbar.js";
import { Groups } from "./groups.js";
import { Help } from "./help.js";
import { Home } from "./home.js";
import { openSource } from "./source.js";
import { Overview } from "./overview.js";
import { Rollout, rivalOf } from "./rollout.js";
import { Audit } from "./audit.js";
import { markKey } from "./marks.js";
import { RunTiming } from "./runtiming.js";
import { setRewardRange, Trouble } from "./ui.js";
import { Table } from "./table.js";

const BELOW_HOME = /\/run\/[^/]+\/$/;
const POLL = 1500; // ms
const NAMES = {
  overview: "Overview",
  table: "Table",
  groups: "Groups",
  compare: "Compare",
  timing: "Timing",
  audit: "Audit",
};

/** The state of the files, polled while the page is visible. */
function useFiles(source) {
  const [files, setFiles] = useState({ state: null, columns: null, error: null });
  useEffect(() => {
    let [stopped, timer] = [false, null];
    const look = async () => {
      try {
        const state = document.hidden ? null : await source.state();
        if (state) {
          const columns = state.runs ? [] : await source.columns();
          setRewardRange(columns);
          if (!stopped) setFiles({ state, columns, error: null });
        } else if (!stopped) setFiles((last) => (last.error ? { ...last, error: null } : last));
      } catch (error) {
        if (!stopped) setFiles((last) => ({ ...last, error }));
      }
      if (!stopped && source.live) timer = setTimeout(look, POLL);
    };
    look();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [source]);
  return files;
}

function App({ source }) {
  const place = usePlace();
  const { state, columns, error } = useFiles(source);
  const [help, setHelp] = useState(false);
  const [, redraw] = useState(0);
  const detail = useRef(null);
  const focus = useRef({ index: null, total: 0, rowAt: () => null, moved: false, selection: null, top: 0 }).current;
  useEffect(() => {
    const listen = (event) =>
      handleKey(event, { detail: detail.current, focus, redraw: () => redraw((count) => count + 1), setHelp });
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
  useLayoutEffect(focusPending);
  useEffect(() => {
    focus.index = null;
  }, [place.filter, place.search, place.sort]);
  useEffect(() => {
    document.title = `${state?.title ? `${state.title} · ` : ""}Rollout Gym`;
  }, [state?.title]);
  if (!state)
    return error
      ? html`<main class="page"><${Trouble} error=${error} /></main>`
      : html`<main class="page" aria-busy="true"></main>`;
  if (state.runs)
    return html`<div class="shell">
      <header class="top">
        <span class="brand">Rollout Gym</span><span class="stretch"></span
        ><span class="following">${error ? html`<span class="bad" role="status">${clean(error.message)}</span>` : html`<span class="file-name">${clean(state.title)}</span>`}</span>
        <${ThemeButton} />
      </header>
      <${Home} runs=${state.runs} />
    </div>`;
  const shared = { source, place, version: state.version, columns, files: state.files };
  const choosing = !place.rollout && !(place.view === "compare" && (place.a || state.files.length < 2));
  return html`<div class=${`shell ${choosing && place.view === "table" ? "fixed" : ""}`}>
    <${Top} place=${place} state=${state} error=${error} live=${source.live} onHelp=${() => setHelp(true)} />
    ${choosing && html`<${FilterBar} source=${source} place=${place} columns=${columns} />`}
    ${
      place.rollout
        ? html`<${Rollout}
            ...${shared}
            onDetail=${(value) => {
              detail.current = value;
            }}
          />`
        : html`<${View} ...${shared} focus=${focus} />`
    }
    ${help && html`<${Help} columns=${columns} onClose=${() => setHelp(false)} />`}
  </div>`;
}

function View(shared) {
  const views = { overview: Overview, table: Table, groups: Groups, compare: Compare, timing: RunTiming, audit: Audit };
  return html`<${views[shared.place.view]} ...${shared} />`;
}

function Top({ place, state, error, live, onHelp }) {
  return html`<header class="top">
    <a class="brand" href=${placeUrl({ view: "overview", rollout: null, tab: null })}>Rollout Gym</a>
    <nav aria-label="views">
      ${live && BELOW_HOME.test(location.pathname) && html`<a href="../../">Runs</a>`}
      ${VIEWS.map(
        (view) =>
          html`<a
            key=${view}
            class=${place.view === view ? "here" : ""}
            aria-current=${place.view === view && !place.rollout ? "page" : undefined}
            href=${placeUrl({ view, rollout: null, tab: null, a: null, b: null })}
            >${NAMES[view]}</a
          >`,
      )}
    </nav>
    <span class="stretch"></span>
    <${Following} state=${state} error=${error} live=${live} />
    <${ThemeButton} />
    <button class="button quiet-button" onClick=${onHelp} aria-label="help">?</button>
  </header>`;
}

function ThemeButton() {
  return html`<button class="button quiet-button" onClick=${toggleTheme} aria-label="light or dark">
    <span class="theme-mark" aria-hidden="true"></span>
  </button>`;
}

/** What is being shown, and whether it still grows. */
function Following({ state, error, live }) {
  const files = state.files;
  const rows = files.reduce((sum, file) => sum + file.rollouts + file.failures, 0);
  const name = state.title || files.map((file) => file.name).join(", ");
  const bytes = files.reduce((sum, file) => sum + file.bytes, 0);
  const read = files.reduce((sum, file) => sum + Math.min(file.indexed_bytes, file.bytes), 0);
  const rollouts = files.reduce((sum, file) => sum + file.rollouts, 0);
  const searchable = files.reduce((sum, file) => sum + (file.searchable ?? file.rollouts), 0);
  const unreadable = files.reduce((sum, file) => sum + file.unreadable, 0);
  const following = live && files.some((file) => file.live);
  return html`<span class="following" title=${files.map((file) => file.path ?? file.name).join("\n")}>
    <span class="file-name">${clean(name)}</span>
    <span class="quiet">${formatCount(rows, "row")}</span>
    ${live && read < bytes * 0.99 && html`<span class="quiet">reading ${formatPercent(read / bytes)}</span>`}
    ${
      live &&
      searchable < rollouts * 0.99 &&
      html`<span class="quiet" title="how much of the text a search covers so far">
        text ${formatPercent(searchable / rollouts)}
      </span>`
    }
    ${unreadable > 0 && html`<span class="bad">${formatCount(unreadable, "unreadable line")}</span>`}
    ${
      error
        ? html`<span class="bad" role="status">${clean(error.message)}</span>`
        : following && html`<span class="live">live</span>`
    }
  </span>`;
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("rollout-gym-theme", root.dataset.theme);
  } catch {
    // Where storage is disabled, the choice lasts as long as the page.
  }
}

// The box that a key asked for, until it is drawn. What is typed meanwhile belongs into it.
const pendingFocus = { box: null, typed: "" };

function focusPending() {
  const box = pendingFocus.box && document.getElementById(pendingFocus.box);
  if (!box) return;
  box.focus();
  if (pendingFocus.typed) {
    box.value += pendingFocus.typed;
    box.dispatchEvent(new Event("input", { bubbles: true }));
  }
  Object.assign(pendingFocus, { box: null, typed: "" });
}

function handleKey(event, { detail, focus, redraw, setHelp }) {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (pendingFocus.box) {
    if (event.key.length === 1) pendingFocus.typed += event.key;
    event.preventDefault();
    return focusPending();
  }
  const place = readPlace();
  const act = place.rollout ? rolloutKey(event.key, detail) : listKey(event.key, place, focus, redraw);
  return (act || commonKey(event.key, place, setHelp)) && event.preventDefault();
}

function rolloutKey(key, detail) {
  if (key === "Escape" || key === "u") return (goTo({ rollout: null, tab: null }), true);
  if (detail?.id !== readPlace().rollout) return false;
  if (markKey(key)) return true;
  const group = detail.group ?? [];
  const after = group[(group.findIndex((chip) => chip.id === detail.id) + 1) % (group.length || 1)];
  const rival = detail.group && rivalOf(detail);
  if (key === "c" && rival)
    return (goTo({ view: "compare", a: detail.id, b: rival.id, rollout: null, tab: null }), true);
  const target = {
    j: detail.next,
    k: detail.previous,
    f: detail.next_failure,
    F: detail.previous_failure,
    g: after?.id,
  }[key];
  return target ? (goTo({ rollout: target }), true) : false;
}

function listKey(key, place, focus, redraw) {
  if (key === "Escape" && place.view === "compare" && place.a) return (history.back(), true);
  if (place.view !== "table") return false;
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[key];
  if (step) {
    focus.index = Math.max(0, Math.min(focus.total - 1, (focus.index ?? -1) + step));
    focus.moved = true;
    return (redraw(), true);
  }
  const row = key === "Enter" && focus.index !== null && focus.rowAt(focus.index);
  return row ? (goTo({ rollout: row.id }), true) : false;
}

function commonKey(key, place, setHelp) {
  if (key === "?") return (setHelp(true), true);
  if (key === "t") return (toggleTheme(), true);
  if (VIEWS[Number(key) - 1])
    return (goTo({ view: VIEWS[Number(key) - 1], rollout: null, tab: null, a: null, b: null }), true);
  const box = { "/": "filter", s: "search" }[key];
  if (!box) return false;
  if (!document.getElementById(`${box}-box`)) goTo({ view: "table", rollout: null, tab: null });
  pendingFocus.box = `${box}-box`;
  focusPending();
  return true;
}

render(html`<${App} source=${openSource()} />`, document.getElementById("app"));
