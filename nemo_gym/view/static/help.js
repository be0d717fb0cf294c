/* What the keys do, and how filters are written. */

import { html, useEffect, useRef } from "./dom.js";
import { clean } from "./format.js";

const KEYS = [
  ["j, k", "next, previous rollout or row"],
  ["Enter", "open the row"],
  ["f, F", "next, previous failure"],
  ["g", "next rollout of the same task"],
  ["c", "compare with another rollout of the task"],
  ["+, -", "mark the rollout as good, bad"],
  ["m, M", "write a label, a note"],
  ["Esc, u", "back to the list"],
  ["1, 2, 3, 4, 5, 6", "overview, table, groups, compare, timing, audit"],
  ["/, s", "filter, search"],
  ["t", "light or dark"],
  ["?", "this help"],
];
const EXAMPLES = [
  ["reward < 0.5 and tool_calls > 3", "numbers"],
  ['agent == "name" or failure == "timeout"', "text needs quotes"],
  ["0.2 < reward <= 0.8", "ranges"],
  ["task in [3, 5, 8]", "one of several"],
  ['answer contains "because"', "part of the text"],
  ["failure is null", "a missing value"],
];

export function Help({ columns, onClose }) {
  const dialog = useRef();
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  return html`<dialog
    class="help"
    ref=${dialog}
    onClose=${onClose}
    onClick=${(event) => event.target === dialog.current && dialog.current.close()}
    aria-label="help"
  >
    <div class="help-inner">
      <header>
        <h2>Keys</h2>
        <button class="button" onClick=${() => dialog.current.close()}>Close</button>
      </header>
      <dl>
        ${KEYS.map(
          ([keys, text]) =>
            html`<div key=${keys}>
              <dt>${keys.split(", ").map((key) => html`<kbd key=${key}>${key}</kbd>`)}</dt>
              <dd>${text}</dd>
            </div>`,
        )}
      </dl>
      <h2>Filters</h2>
      <dl class="examples">
        ${EXAMPLES.map(
          ([filter, text]) =>
            html`<div key=${filter}>
              <dt><code>${filter}</code></dt>
              <dd>${text}</dd>
            </div>`,
        )}
      </dl>
      <h2>Fields</h2>
      <p class="field-list">
        ${columns.map(
          (column) =>
            html`<code key=${column.name}
              >${/^[A-Za-z_][\w.]*$/.test(column.name) ? clean(column.name) : `\`${clean(column.name)}\``}</code
            > `,
        )}
      </p>
    </div>
  </dialog>`;
}
