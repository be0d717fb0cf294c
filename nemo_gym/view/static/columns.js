/* Which columns the table shows, and in what order its rows come. */

import { html, useEffect, useMemo, useRef, useState } from "./dom.js";
import { clean, formatNumber } from "./format.js";
import { goTo } from "./place.js";

const USUAL = ["reward", "task", "rollout", "turns", "tool_calls", "tokens", "question", "answer"];

/** Whether a column name can be part of a comma-separated list; a field may have any name. */
function canBeListed({ name }) {
  return name === name.trim() && !name.includes(",");
}

/** The columns that are shown: the reader's choice, or the default columns that have values. */
export function shownColumns(place, columns) {
  const known = new Map(columns.filter(canBeListed).map((column) => [column.name, column]));
  const chosen = place.columns?.split(",").filter((name) => known.has(name));
  if (chosen?.length) return chosen.map((name) => known.get(name));
  const useful = ({ name, known: rows }) => ["reward", "question", "answer"].includes(name) || rows !== 0;
  return USUAL.map((name) => known.get(name)).filter((column) => column && useful(column));
}

export function SortSelect({ place, columns }) {
  const options = columns.flatMap((column) => [
    [`-${column.name}`, `${column.name} ↓`],
    [column.name, `${column.name} ↑`],
  ]);
  return html`<label class="select"
    ><span class="narrow-hidden">sort</span
    ><select
      aria-label="sort by"
      value=${place.sort ?? ""}
      onChange=${(event) => goTo({ sort: event.target.value || null }, { replace: true })}
    >
      <option value="">as written</option>
      ${options.map(([key, text]) => html`<option key=${key} value=${key}>${clean(text)}</option>`)}
    </select></label
  >`;
}

export function ColumnChooser({ columns, names }) {
  const [open, setOpen] = useState(false);
  const box = useRef();
  useEffect(() => {
    if (!open) return undefined;
    const close = (event) =>
      (event.type === "keydown" ? event.key === "Escape" : !box.current?.contains(event.target)) && setOpen(false);
    addEventListener("pointerdown", close);
    addEventListener("keydown", close);
    return () => {
      removeEventListener("pointerdown", close);
      removeEventListener("keydown", close);
    };
  }, [open]);
  const toggle = (name) => {
    const chosen = names.includes(name) ? names.filter((other) => other !== name) : [...names, name];
    goTo({ columns: chosen.join(",") || null }, { replace: true });
  };
  const sorted = useMemo(
    () => columns.filter(canBeListed).sort((left, right) => names.includes(right.name) - names.includes(left.name)),
    [open, columns],
  );
  return html`<span class="popover-frame" ref=${box}>
    <button class="button" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      Columns <span class="quiet">${names.length}/${columns.length}</span>
    </button>
    ${
      open &&
      html`<div class="popover" role="group" aria-label="columns to show">
        ${sorted.map(
          (column) =>
            html`<label key=${column.name}
              ><input
                type="checkbox"
                checked=${names.includes(column.name)}
                onChange=${() => toggle(column.name)}
              /><span>${clean(column.name)}</span
              ><span class="quiet"
                >${
                  column.kind === "number" && column.max !== null
                    ? `${formatNumber(column.min)} – ${formatNumber(column.max)}`
                    : ""
                }</span
              ></label
            >`,
        )}
        <button class="fold-toggle" onClick=${() => goTo({ columns: null }, { replace: true })}>default columns</button>
      </div>`
    }
  </span>`;
}
