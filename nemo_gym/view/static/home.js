/* The home of runs: every run below the folders, sorted and narrowed; two or more that are ticked open together. */

import { html, useState } from "./dom.js";
import { clean, formatCount, formatNumber, formatScore } from "./format.js";
import { Notice, Panel, Reward } from "./ui.js";

const COLUMNS = [
  ["name", "run"],
  ["environment", "environment"],
  ["model", "model"],
  ["date", "date"],
  ["mean", "mean reward"],
  ["rollouts", "rollouts"],
  ["failed", "failed"],
  ["tokens", "tokens each"],
  ["cost", "USD"],
];
const NUMERIC = new Set(["mean", "rollouts", "failed", "tokens", "cost"]);
const FEWEST_FOR_TREND = 3;

export function Home({ runs }) {
  const [sort, setSort] = useState({ by: "date", sign: -1 });
  const [wanted, setWanted] = useState("");
  const [ticked, setTicked] = useState([]);
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (run) => `${run.name} ${run.environment ?? ""} ${run.model ?? ""}`.toLowerCase();
  const shown = runs.filter((run) => words.every((word) => text(run).includes(word))).sort(byColumn(sort));
  const tick = (id) => setTicked(ticked.includes(id) ? ticked.filter((one) => one !== id) : [...ticked, id]);
  return html`<main class="page home">
    <h1 class="unseen">Runs</h1>
    <div class="table-bar">
      <label class="box"><span class="box-label">Runs</span>
        <input id="filter-box" type="text" placeholder="name, environment, model" value=${wanted} onInput=${(event) => setWanted(event.target.value)} />
      </label>
      <span class="count" aria-live="polite">${formatCount(shown.length, "run")}</span>
      <span class="stretch"></span>
      <a
        class=${`button ${ticked.length ? "" : "disabled"}`}
        href=${ticked.length ? runUrl(ticked, ticked.length > 1 ? "#view=compare" : "") : undefined}
        aria-disabled=${!ticked.length}
        >${ticked.length > 1 ? `Compare ${formatNumber(ticked.length)} runs` : "Tick two to compare"}</a
      >
    </div>
    <${Trends} runs=${shown} />
    ${runs.length === 0 && html`<${Notice} title="No runs yet">They appear here as soon as a collection starts.<//>`}
    ${
      shown.length > 0 &&
      html`<div class="table-scroll panel"><table class="plain-table home-table">
        <thead><tr><th scope="col"><span class="unseen">ticked</span></th>${COLUMNS.map(
          ([by, title]) =>
            html`<th key=${by} scope="col" class=${NUMERIC.has(by) ? "right" : ""} aria-sort=${sort.by === by ? (sort.sign > 0 ? "ascending" : "descending") : "none"}>
              <button onClick=${() => setSort({ by, sign: sort.by === by ? -sort.sign : NUMERIC.has(by) ? -1 : 1 })}>
                ${title}${sort.by === by && html`<span aria-hidden="true"> ${sort.sign > 0 ? "↑" : "↓"}</span>`}
              </button>
            </th>`,
        )}</tr></thead>
        <tbody>${shown.map((run) => html`<${RunRow} key=${run.id} run=${run} ticked=${ticked.includes(run.id)} onTick=${() => tick(run.id)} />`)}</tbody>
      </table></div>`
    }
  </main>`;
}

function runUrl(ids, fragment = "") {
  return `run/${ids.join("-")}/${fragment}`;
}

function byColumn({ by, sign }) {
  return ({ [by]: one }, { [by]: other }) => {
    if (one === other) return 0;
    if (one === null || other === null) return one === null ? 1 : -1;
    return (one < other ? -1 : 1) * sign;
  };
}

function RunRow({ run, ticked, onTick }) {
  const [low, high] = run.interval ?? [];
  return html`<tr>
    <td><input type="checkbox" aria-label=${`compare ${clean(run.name)}`} checked=${ticked} onChange=${onTick} /></td>
    <th scope="row"><a href=${runUrl([run.id])}>${clean(run.name)}</a>${run.live && html` <span class="live">live</span>`}</th>
    <td>${clean(run.environment ?? "–")}</td>
    <td>${clean(run.model ?? "–")}</td>
    <td>${clean(run.date.slice(0, 16).replace("T", " "))}</td>
    <td class="right">
      <${Reward} value=${run.mean} mean=${true} />${run.interval && html`<span class="range">${formatScore(low)} to ${formatScore(high)}</span>`}
    </td>
    <td class="right">${run.rollouts === null ? (run.planned ? `of ${formatNumber(run.planned)}` : "–") : formatNumber(run.rollouts)}</td>
    <td class=${`right ${run.failed ? "bad" : ""}`}>${formatNumber(run.failed)}</td>
    <td class="right">${run.tokens === null ? "–" : formatNumber(Math.round(run.tokens))}</td>
    <td class="right">${run.cost === null ? "–" : formatScore(run.cost)}</td>
  </tr>`;
}

/** The mean over time of runs of the same kind: the same environment and the same tasks. */
function Trends({ runs }) {
  const kinds = new Map();
  for (const run of runs) {
    if (typeof run.mean !== "number") continue;
    const kind = JSON.stringify([run.environment, run.input]);
    if (!kinds.has(kind)) kinds.set(kind, []);
    kinds.get(kind).push(run);
  }
  const shown = [...kinds.values()].filter((own) => own.length >= FEWEST_FOR_TREND).slice(0, 4);
  if (!shown.length) return null;
  return html`<div class="panels">
    ${shown.map((own) => html`<${Trend} key=${own[0].environment} runs=${own.toSorted((left, right) => (left.date < right.date ? -1 : 1))} />`)}
  </div>`;
}

function Trend({ runs }) {
  const [width, height, edge] = [560, 120, 8];
  const all = runs.flatMap((run) => [run.mean, ...(run.interval ?? [])]);
  const [low, high] = [Math.min(0, ...all), Math.max(1, ...all)];
  const x = (index) => edge + (index * (width - 2 * edge)) / (runs.length - 1);
  const y = (value) => height - edge - ((value - low) / (high - low)) * (height - 2 * edge);
  return html`<${Panel} title=${clean(runs[0].environment ?? "runs")} note=${`mean reward of ${formatCount(runs.length, "run")} over time`}>
    <svg class="trend" viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${`mean reward from ${formatScore(runs[0].mean)} to ${formatScore(runs.at(-1).mean)}`}>
      ${runs.map((run, index) => run.interval && html`<line key=${run.id} x1=${x(index)} x2=${x(index)} y1=${y(run.interval[0])} y2=${y(run.interval[1])} />`)}
      <polyline points=${runs.map((run, index) => `${x(index)},${y(run.mean)}`).join(" ")} />
      ${runs.map((run, index) => html`<a key=${run.id} href=${runUrl([run.id])}><circle cx=${x(index)} cy=${y(run.mean)} r="4"><title>${clean(run.name)}: ${formatScore(run.mean)}</title></circle></a>`)}
    </svg>
  <//>`;
}
