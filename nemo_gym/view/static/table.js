/* The table: any number of rows, of which only those in view are loaded and drawn.

Rows come in pages of a hundred. What the reader sees stays as it is while a collection goes on: new rows are announced
and come in when asked for. */

import { ColumnChooser, SortSelect, shownColumns } from "./columns.js";
import { html, useEffect, useMedia, useRef, useState } from "./dom.js";
import { clean, formatCount, formatField } from "./format.js";
import { PAGE_ROWS, useArrivals, useRows } from "./rows.js";
import { useLongScroll } from "./scrolling.js";
import { searchPlaces } from "./search.js";
import { goTo, placeUrl, selectionOf } from "./place.js";
import { NoRollouts, Reward, Trouble } from "./ui.js";

const OVERSCAN = 12;
const HEAD_HEIGHT = 32;
const WIDTHS = {
  reward: 74,
  task: 62,
  rollout: 66,
  question: "minmax(180px, 2fr)",
  answer: "minmax(160px, 1.6fr)",
  snippet: "minmax(240px, 3fr)",
  failure: 112,
  agent: 150,
  file: 130,
};
// What a search found, in place of the answer.
const FOUND = { name: "snippet", kind: "text" };
const WAIT_WHILE_SCROLLING = 70; // ms

function gridTemplate(columns) {
  return columns
    .map(
      (column) => WIDTHS[column.name] ?? (column.kind === "number" ? Math.max(72, 26 + column.name.length * 7.4) : 140),
    )
    .map((width) => (typeof width === "number" ? `${width}px` : width))
    .join(" ");
}

/** Whether a large part of the files is still to be indexed; then nobody has a reading position to lose. */
function isReading(files) {
  const [read, all] = files.reduce((sums, file) => [sums[0] + file.indexed_bytes, sums[1] + file.bytes], [0, 0]);
  return read < 0.9 * all;
}

export function Table({ source, place, version, columns, files, focus }) {
  const selection = selectionOf(place);
  const chosen = shownColumns(place, columns);
  const names = chosen.map((column) => column.name);
  const shown = place.search ? [...chosen.filter((column) => column.name !== "answer"), FOUND] : chosen;
  const [seen, setSeen] = useState(version);
  const reading = useRef(false);
  useEffect(() => {
    if (isReading(files) || reading.current) setSeen(version);
    reading.current = isReading(files);
  }, [version]);
  const narrow = useMedia("(max-width: 640px)");
  const rows = useRows(source, selection, names, seen);
  const arrivals = useArrivals(source, selection, version, seen, rows.total);
  useEffect(() => {
    if (rows.total === 0 && arrivals > 0) setSeen(version);
  }, [arrivals]);
  if (rows.error && !rows.total) return html`<main class="page"><${Trouble} error=${rows.error} /></main>`;
  return html`<main class="table-view">
    <div class="table-bar">
      <span class="count" aria-live="polite">${rows.total === null ? "" : formatCount(rows.total, "rollout")}</span>
      ${
        arrivals > 0 &&
        html`<button class="arrivals" onClick=${() => setSeen(version)}>
          ${formatCount(arrivals, "new row")} · show
        </button>`
      }
      <span class="stretch"></span>
      ${narrow && html`<${SortSelect} place=${place} columns=${columns} />`}
      <${ColumnChooser} columns=${columns} names=${names} />
    </div>
    ${
      rows.fresh && rows.total === 0
        ? html`<${NoRollouts} place=${place} live=${source.live} />`
        : html`<${Grid} rows=${rows} shown=${shown} place=${place} narrow=${narrow} focus=${focus} />`
    }
  </main>`;
}

function Grid({ rows, shown, place, narrow, focus }) {
  const frame = useRef();
  const timer = useRef(null);
  const height = narrow ? 66 : 33;
  const total = rows.total ?? 0;
  const view = useLongScroll(frame, { total, height, head: narrow ? 0 : HEAD_HEIGHT });
  const first = Math.max(0, Math.floor(view.top / height) - OVERSCAN);
  const last = Math.min(total, Math.ceil((view.top + view.height) / height) + OVERSCAN);
  useEffect(() => {
    clearTimeout(timer.current);
    // While the reader drags the scroll bar through a million rows, load only where it comes to rest.
    timer.current = setTimeout(() => rows.need(first, last || PAGE_ROWS), rows.fresh ? WAIT_WHILE_SCROLLING : 0);
  });
  usePlaceOfReader(view, focus, total, JSON.stringify(selectionOf(place)));
  useSelected(view, focus, { total, height, rowAt: rows.rowAt });
  const template = gridTemplate(shown);
  const drawn = [];
  for (let index = first; index < last; index += 1) {
    drawn.push(
      html`<${Row}
        key=${index}
        index=${index}
        row=${rows.rowAt(index)}
        shown=${shown}
        top=${index * height + view.shift}
        narrow=${narrow}
        template=${template}
        current=${focus.index === index}
        onOpen=${() => Object.assign(focus, { index, moved: false })}
        search=${place.search}
        sort=${place.sort}
      />`,
    );
  }
  return html`<div
    class=${`grid ${narrow ? "narrow" : ""} ${rows.fresh ? "" : "stale"}`}
    role="grid"
    aria-label="rollouts"
    aria-rowcount=${total + 1}
    aria-colcount=${shown.length}
    ref=${frame}
    tabindex="0"
    onScroll=${view.onScroll}
  >
    ${
      !narrow &&
      html`<div class="row head" role="row" aria-rowindex="1" style=${{ gridTemplateColumns: template }}>
        ${shown.map((column) => html`<${Head} key=${column.name} column=${column} sort=${place.sort} />`)}
      </div>`
    }
    <div class="rows" role="presentation" style=${{ height: `${view.space}px` }}>${drawn}</div>
  </div>`;
}

/** Back from a rollout, the list is where it was; another selection begins at its top. */
function usePlaceOfReader(view, focus, total, selection) {
  const arrived = useRef(false);
  useEffect(() => {
    if (!total || arrived.current === selection) return;
    if (arrived.current !== false) view.moveTo(0);
    else if (focus.selection === selection) view.moveTo(focus.top);
    arrived.current = selection;
  }, [total > 0, selection]);
  useEffect(() => {
    if (arrived.current === selection) Object.assign(focus, { selection, top: view.top });
  }, [view.top]);
}

/** Keeps the row that the keyboard is on in view. */
function useSelected(view, focus, { total, height, rowAt }) {
  useEffect(() => {
    focus.total = total;
    focus.rowAt = rowAt;
  });
  useEffect(() => {
    if (focus.index === null || !focus.moved) return;
    const top = focus.index * height;
    if (top < view.top) view.moveTo(top);
    else if (top > view.top + view.room - height) view.moveTo(top - view.room + height);
  }, [focus.index]);
}

function Head({ column, sort }) {
  if (column === FOUND) return html`<div class="cell text found" role="columnheader">found</div>`;
  const [name, direction] = (sort ?? "").startsWith("-") ? [sort.slice(1), "descending"] : [sort ?? "", "ascending"];
  const sorted = name === column.name;
  // The first click sorts numbers from the top; a third click restores the order of the file.
  const steps =
    column.kind === "number" ? [`-${column.name}`, column.name, null] : [column.name, `-${column.name}`, null];
  const next = steps[(steps.indexOf(sorted ? sort : null) + 1) % 3];
  return html`<div
    class=${`cell ${column.name === "reward" ? "" : column.kind}`}
    role="columnheader"
    aria-sort=${sorted ? direction : "none"}
  >
    <button onClick=${() => goTo({ sort: next }, { replace: true })} title=${`sort by ${clean(column.name)}`}>
      <span class="column-name">${clean(column.name.replaceAll("_", " "))}</span
      >${sorted && html`<span class="sort-mark" aria-hidden="true">${direction === "ascending" ? "↑" : "↓"}</span>`}
    </button>
  </div>`;
}

function Row({ index, row, shown, top, narrow, template, current, search, sort, onOpen }) {
  const style = narrow ? { top: `${top}px` } : { top: `${top}px`, gridTemplateColumns: template };
  if (!row)
    return html`<div class="row empty" role="row" aria-rowindex=${index + 2} style=${style}>
      <span class="ghost"></span>
    </div>`;
  const cells = narrow
    ? html`<${NarrowCells} row=${row} shown=${shown} search=${search} sort=${sort} />`
    : shown.map((column) => html`<${Cell} key=${column.name} column=${column} row=${row} search=${search} />`);
  return html`<a
    class=${`row ${current ? "current" : ""} ${row.values.failure ? "is-failed" : ""}`}
    role="row"
    aria-rowindex=${index + 2}
    data-id=${row.id}
    style=${style}
    href=${placeUrl({ rollout: row.id, tab: null })}
    onClick=${onOpen}
    >${cells}</a
  >`;
}

function Cell({ column, row, search }) {
  const { values } = row;
  if (column.name === "reward")
    return html`<div class="cell" role="gridcell"><${Reward} value=${values.reward} failure=${values.failure} /></div>`;
  if (column.name === "answer" && values.failure)
    return html`<div class="cell bad" role="gridcell">${clean(values.failure)}</div>`;
  if (column === FOUND)
    return html`<div class="cell text" role="gridcell">
      <${Snippet} text=${clean(row.snippet ?? "")} search=${search} />
    </div>`;
  const value = values[column.name];
  const text = formatField(column.name, value);
  return html`<div
    class=${`cell ${column.kind} ${value === null || value === undefined ? "missing" : ""}`}
    role="gridcell"
    title=${text.length > 18 ? text : undefined}
  >
    ${text}
  </div>`;
}

/** The surroundings of a match, with all that the search finds in them marked. */
function Snippet({ text, search }) {
  const places = [...searchPlaces(search)(text)].flatMap((matches) => [...matches]);
  places.sort((left, right) => left.index - right.index);
  const first = places[0]?.index ?? 0;
  let end = first > 32 ? first - 28 : 0; // a narrow column shows the beginning only
  const pieces = end ? ["…"] : [];
  for (const { index, 0: found } of places) {
    if (index < end) continue;
    pieces.push(text.slice(end, index), html`<mark>${text.slice(index, index + found.length)}</mark>`);
    end = index + found.length;
  }
  return [...pieces, text.slice(end)];
}

/** A value with the name of its column: "1 turn", "2 tool calls". */
function describeCell(name, value) {
  const noun = clean(name.replaceAll("_", " "));
  return `${formatField(name, value)} ${value === 1 ? noun.replace(/s$/, "") : noun}`;
}

function NarrowCells({ row, shown, search, sort }) {
  const { values } = row;
  // What does not fit is left out, so the column that rows are sorted by comes first.
  const sorted = (column) => Number(column.name === sort?.replace(/^-/, ""));
  const extra = shown
    .filter((column) => column.kind === "number" && !["reward", "task", "rollout"].includes(column.name))
    .sort((left, right) => sorted(right) - sorted(left))
    .slice(0, 3);
  return html`<div class="line" role="gridcell">
      <${Reward} value=${values.reward} failure=${values.failure} /><strong>task ${values.task ?? "–"}</strong
      ><span>rollout ${values.rollout ?? "–"}</span><span class="facts">${extra.map(
        (column) =>
          html`<span key=${column.name} class="quiet">${describeCell(column.name, values[column.name])}</span>`,
      )}</span>
    </div>
    <div class="line second" role="gridcell">
      ${
        row.snippet
          ? html`<${Snippet} text=${clean(row.snippet)} search=${search} />`
          : clean(values.failure ?? values.question ?? values.answer ?? "")
      }
    </div>`;
}
