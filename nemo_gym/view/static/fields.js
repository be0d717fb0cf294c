/* What the rewards depend on: every column with the mean of each of its values, in one run or in two. */

import { html, useReply, useState } from "./dom.js";
import { clean, formatNumber, formatPercent, formatScore, signed, valueFilter } from "./format.js";
import { placeUrl, selectionOf } from "./place.js";
import { Panel, Reward, Trouble } from "./ui.js";
import { both } from "./overview.js";

const FIRST_SHOWN = 4; // columns; the rest on request

/** What the panel shows, for views that wait for it: whatever is drawn below it moves when it appears. */
export function useFields({ source, place, version, runs = null }) {
  const { filter, search } = selectionOf(place);
  return useReply(
    (signal) => source.fields({ filter, search, ...runs }, signal),
    [filter, search, version, JSON.stringify(runs)],
  );
}

export function FieldsPanel({ fields, place, runs = null, names = [] }) {
  const { value, error } = fields;
  const [all, setAll] = useState(false);
  if (error) return html`<${Trouble} error=${error} />`;
  if (!value || (!value.fields.length && !value.note && !value.failures?.length)) return null;
  const shown = all ? value.fields : value.fields.slice(0, FIRST_SHOWN);
  const title = runs ? "Where it changed" : "What the reward depends on";
  const note = runs
    ? "columns in which the change is most uneven first; the contributions of a column add up to the change"
    : "columns that explain most first; a contribution is how far a value moves the mean";
  return html`<${Panel} title=${title} note=${note} wide=${true}>
    ${value.note && html`<p class="quiet">${value.note}</p>`}
    ${
      shown.length > 0 &&
      html`<div class="table-scroll"><table class="plain-table fields-table">
        <${Titles} names=${runs ? names : ["mean reward"]} />
        ${shown.map((field) => html`<${FieldRows} key=${field.name} field=${field} difference=${value.difference} place=${place} two=${Boolean(runs)} />`)}
      </table></div>`
    }
    ${
      value.fields.length > FIRST_SHOWN &&
      html`<button class="fold-toggle" aria-expanded=${all} onClick=${() => setAll(!all)}>
        ${all ? "Fewer columns" : `All ${formatNumber(value.fields.length)} columns`}
      </button>`
    }
    ${value.failures?.length > 0 && html`<${FailureRows} failures=${value.failures} names=${names} place=${place} />`}
  <//>`;
}

function Titles({ names }) {
  return html`<thead>
    <tr>
      <th scope="col">column</th>
      ${names.map(
        (name, index) =>
          html`<th key=${index} scope="col" class="right">${clean(name)}</th>
            <th scope="col" class="right quiet">rollouts</th>`,
      )}
      <th scope="col" class="right">contribution</th>
    </tr>
  </thead>`;
}

function FieldRows({ field, difference, place, two }) {
  return html`<tbody>
    <tr class="field-title">
      <th colspan=${two ? 6 : 4} scope="rowgroup">
        ${clean(field.name)} ${field.repeats && html`<span class="quiet">repeats the reward</span>`}
      </th>
    </tr>
    ${field.values.map(
      (value, index) =>
        html`<tr key=${index}>
          <th scope="row">
            <a href=${placeUrl({ view: "table", filter: both(place.filter, shareFilterOf(field.name, value)), rollout: null })}
              >${labelOfValue(value)}</a
            >
          </th>
          ${value.sides.map((side, at) => html`<${SideCells} key=${at} side=${side} />`)}
          <td class="right"><${Contribution} value=${value.contribution} difference=${difference} /></td>
        </tr>`,
    )}
  </tbody>`;
}

function SideCells({ side }) {
  const [low, high] = side.interval ?? [];
  return html`<td class="right">
      ${
        side.count
          ? html`<${Reward} value=${side.mean} mean=${true} />${
              side.interval && html`<span class="range">${formatScore(low)} to ${formatScore(high)}</span>`
            }`
          : html`<span class="quiet">–</span>`
      }
    </td>
    <td class="right quiet">${formatNumber(side.count)}</td>`;
}

/** How far a value moves the mean and, of two runs, which share of the change that is. */
function Contribution({ value, difference }) {
  const share = difference && Math.abs(difference) > 1e-9 ? value / difference : null;
  return html`<span class=${value < -5e-4 ? "bad" : value > 5e-4 ? "good" : "quiet"}>${signed(value)}</span>${
    share !== null && html`<span class="range">${formatPercent(share)}</span>`
  }`;
}

function FailureRows({ failures, names, place }) {
  return html`<div class="table-scroll"><table class="plain-table fields-table">
    <thead>
      <tr>
        <th scope="col">failed attempts</th>
        ${names.map((name, index) => html`<th key=${index} scope="col" class="right">${clean(name)}</th>`)}
      </tr>
    </thead>
    <tbody>
      ${failures.map(
        ({ name, counts }) =>
          html`<tr key=${name}>
            <th scope="row">
              <a href=${placeUrl({ view: "table", filter: both(place.filter, valueFilter("failure", name)) })}>${clean(name)}</a>
            </th>
            ${counts.map((count, index) => html`<td key=${index} class="right">${formatNumber(count)}</td>`)}
          </tr>`,
      )}
    </tbody>
  </table></div>`;
}

function labelOfValue(value) {
  if ("value" in value) return value.value === null ? html`<span class="quiet">none</span>` : clean(String(value.value));
  if (value.from === null) return `below ${formatNumber(value.to)}`;
  return value.to === null ? `${formatNumber(value.from)} and more` : `${formatNumber(value.from)} to ${formatNumber(value.to)}`;
}

/** The filter that shows the rollouts of a value or a bucket. */
function shareFilterOf(name, value) {
  if ("value" in value) return valueFilter(name, value.value);
  const limits = [
    value.from !== null && valueFilter(name, value.from, ">="),
    value.to !== null && valueFilter(name, value.to, "<"),
  ];
  return limits.filter(Boolean).join(" and ") || valueFilter(name, null, "!=");
}
