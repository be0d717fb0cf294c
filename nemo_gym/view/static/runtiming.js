/* Where the time of a run went: shares, times of each kind of call, slow rollouts, and how many ran at once. */

import { html, useReply, useRef, useSize, useState } from "./dom.js";
import { clean, formatCount, formatDuration, formatNumber, formatPercent } from "./format.js";
import { kindClass, toolLooks } from "./waterfall.js";
import { SHARED } from "./shared.js";
import { goTo, placeUrl, selectionOf } from "./place.js";
import { ticksOf, timeTicks } from "./charts.js";
import { Choice, Notice, Panel, Select, Trouble } from "./ui.js";

const LEAST_SHARE = 0.001; // that has a place of its own in the bar
const SHARES_SHOWN = 12;
const TIMES_SHOWN = 25;
const NEAR_LIMIT = 0.5; // a limit that is further away than that would make what happened a line at the bottom
const AREA_HEIGHT = 150;
const AREA_MARGIN = { left: 44, right: 12, top: 10, bottom: 24 };

export function RunTiming({ source, place, version, files }) {
  const run = files[Number(place.run)] ? Number(place.run) : 0;
  const { filter, search } = selectionOf(place);
  const { value, error } = useReply(
    (signal) => source.timing({ run, filter, search }, signal),
    [run, filter, search, version, files[run]?.attempts],
  );
  if (error) return html`<main class="page"><${Trouble} error=${error} /></main>`;
  if (!value) return html`<main class="page" aria-busy="true"></main>`;
  return html`<main class="page run-timing">
    ${
      files.length > 1 &&
      html`<div class="table-bar">
        <${Select}
          label="file"
          value=${String(run)}
          options=${files.map((file) => [String(file.id), clean(file.name)])}
          onChange=${(number) => goTo({ run: number === "0" ? null : number }, { replace: true })}
        />
      </div>`
    }
    ${
      value.attempts > 0
        ? html`<${Times} value=${value} />`
        : html`<${Notice} title="No times to show">${value.notes.map(clean).join(" · ") || "No attempt is selected."}<//>`
    }
  </main>`;
}

function Times({ value }) {
  return html`
    ${value.read < 0.99 && html`<p class="quiet" role="status">reading the steps: ${formatPercent(value.read)}</p>`}
    ${value.notes.map((note) => html`<p key=${note} class="bad" role="note">${clean(note)}</p>`)}
    <${TimeFigures} value=${value} />
    <div class="panels">
      <${Panel} title="Where the time went" note="of all attempts together; waiting is apart from working" wide=${true}>
        <${ShareBar} shares=${value.shares} seconds=${value.seconds} />
        ${value.finding.map((line) => html`<p key=${line} class="finding">${withCode(clean(line))}</p>`)}
      <//>
      ${value.over_time && html`<${OverTime} value=${value} />`}
      <${StepTable} value=${value} />
      <${Panel} title="Slowest rollouts"><${SlowTable} rollouts=${value.slowest} /><//>
      <${Stragglers} tail=${value.tail} />
    </div>
  `;
}

/** A line of advice, with the parameters that it names set as code. */
function withCode(line) {
  return line
    .split(/(\+\w+=[^\s,;]+)/)
    .map((piece, index) => (index % 2 ? html`<code key=${index}>${piece}</code>` : piece));
}

function TimeFigures({ value }) {
  const { spread } = value;
  return html`<div class="figures">
    <div class="figure">
      <span class="name">Rollout, median</span>
      <span class="number">${formatDuration(spread.p50)}</span>
      <span class="detail"
        ><span class="unbroken">95 % within ${formatDuration(spread.p95)},</span>${" "}<span class="unbroken"
          >longest ${formatDuration(spread.most)}</span
        ></span
      >
    </div>
    <div class="figure">
      <span class="name">At once</span>
      <span class="number">${formatNumber(value.at_once, 2)}</span>
      <span class="detail"
        >${value.limit ? `of ${formatNumber(value.limit)} allowed, ` : ""}at most ${formatNumber(value.peak)}</span
      >
    </div>
    <div class="figure">
      <span class="name">Throughput</span>
      <span class="number">${formatNumber(value.rate, 2)}<span class="unit"> / s</span></span>
      <span class="detail"
        >${formatCount(value.attempts, "attempt")}${" "}<span class="unbroken">in ${formatDuration(value.wall_s)}</span></span
      >
    </div>
    <div class="figure">
      <span class="name">Waiting</span>
      <span class="number">${formatPercent(value.waiting)}</span>
      <span class="detail"
        >${value.waited_s > 0 ? `${formatDuration(value.waited_s)} for slots, limits, connections, retries` : "none"}</span
      >
    </div>
    ${
      typeof value.blocked === "number" &&
      html`<div class="figure">
        <span class="name">Event loop lag</span>
        <span class=${`number ${value.blocked > 0.2 ? "bad" : ""}`}>${formatPercent(value.blocked)}</span>
        <span class="detail">work that was due waited ${formatDuration(value.blocked_s)}</span>
      </div>`
    }
  </div>`;
}

/** Shares of the time as one bar, with a list that says the same in words. */
export function ShareBar({ shares, seconds }) {
  const shown = shares.filter(({ share }, index) => share >= LEAST_SHARE && index < SHARES_SHOWN);
  const rest = 1 - shown.reduce((sum, { share }) => sum + share, 0);
  const looks = toolLooks(toolsOf(shares));
  const all = shown.map((one) => ({ ...one, look: lookOf(one.kind, one.name, looks) }));
  if (rest > 5e-4) all.push({ name: "everything else", look: kindClass("call"), share: rest });
  return html`<div class="share-bar">
    <div class="share-track" aria-hidden="true">
      ${all.map(
        ({ name, look, share }, index) =>
          html`<span
            key=${index}
            class=${look}
            style=${{ width: `${(share * 100).toFixed(3)}%` }}
            title=${`${clean(name)}: ${formatPercent(share)}, ${formatDuration(share * seconds)}`}
          ></span>`,
      )}
    </div>
    <ul class="share-list">
      ${all.map(
        ({ name, look, share }, index) =>
          html`<li key=${index} class=${`key ${look}`}>
            <span class="share-name">${clean(name)}</span> <b>${formatPercent(share)}</b>
            <span class="quiet">${formatDuration(share * seconds)}</span>
          </li>`,
      )}
    </ul>
  </div>`;
}

function toolsOf(shares) {
  return shares.filter(({ kind }) => kind === "tool").map(({ name }) => name);
}

function lookOf(kind, name, looks) {
  return (kind === "tool" && looks.get(name)) || kindClass(kind);
}

function OverTime({ value }) {
  const { edges, at_once: running, finished_per_s: finished } = value.over_time;
  return html`<${Panel} title="At once" note="rollouts running at the same time">
      <${Area} edges=${edges} values=${running} label="rollouts at once" limit=${value.limit} />
    <//>
    <${Panel} title="Throughput" note="rollouts ending per second">
      <${Area} edges=${edges} values=${finished} label="rollouts ending per second" />
    <//>`;
}

/** A value in each of several equal spans of time. */
function Area({ edges, values, label, limit: allowed = 0 }) {
  const ref = useRef();
  const { width } = useSize(ref);
  const [at, setAt] = useState(null);
  const end = edges.at(-1) || 1;
  const highest = values.reduce((high, value) => Math.max(high, value), 0);
  const limit = highest >= NEAR_LIMIT * allowed ? allowed : 0;
  const most = Math.max(highest, limit) || 1;
  const inner = width - AREA_MARGIN.left - AREA_MARGIN.right;
  const x = (seconds) => AREA_MARGIN.left + (seconds / end) * inner;
  const y = (value) =>
    AREA_HEIGHT - AREA_MARGIN.bottom - (value / most) * (AREA_HEIGHT - AREA_MARGIN.top - AREA_MARGIN.bottom);
  const line = values.map((value, index) => `L${x(edges[index])},${y(value)}L${x(edges[index + 1])},${y(value)}`).join("");
  const mean = values.reduce((sum, value) => sum + value, 0) / (values.length || 1);
  const description = `${label} over ${formatDuration(end)}: ${formatNumber(mean, 2)} on average, at most ${formatNumber(highest, 2)}`;
  const find = (event) => {
    const share = (event.clientX - ref.current.getBoundingClientRect().left - AREA_MARGIN.left) / inner;
    setAt(share >= 0 && share <= 1 ? Math.min(values.length - 1, Math.floor(share * values.length)) : null);
  };
  return html`<div class="chart area" ref=${ref} onPointerMove=${find} onPointerLeave=${() => setAt(null)}>
    ${
      width > 0 &&
      html`<svg width=${width} height=${AREA_HEIGHT} role="img" aria-label=${description}>
        ${ticksOf(0, most, 4).map(
          (tick) =>
            html`<g key=${tick}>
              <line class="grid" x1=${AREA_MARGIN.left} x2=${width - AREA_MARGIN.right} y1=${y(tick)} y2=${y(tick)} />
              <text class="axis" x=${AREA_MARGIN.left - 8} y=${y(tick) + 3.5} text-anchor="end"
                >${formatNumber(tick, 2)}</text
              >
            </g>`,
        )}
        <path class="area-fill" d=${`M${x(0)},${y(0)}${line}L${x(end)},${y(0)}Z`} />
        ${limit > 0 && html`<line class="area-limit" x1=${x(0)} x2=${x(end)} y1=${y(limit)} y2=${y(limit)} />`}
        ${
          at !== null &&
          html`<line class="base" x1=${x((edges[at] + edges[at + 1]) / 2)} x2=${x((edges[at] + edges[at + 1]) / 2)} y1=${AREA_MARGIN.top} y2=${y(0)} />`
        }
        ${timeTicks(end, width < 360 ? 3 : 5).map(
          ({ at: seconds, text }) =>
            html`<text key=${seconds} class="axis" x=${x(seconds)} y=${AREA_HEIGHT - 8} text-anchor="middle"
              >${text}</text
            >`,
        )}
      </svg>`
    }
    ${
      at !== null &&
      html`<span class=${`tip ${at > values.length / 2 ? "left" : ""}`} style=${{ left: `${x(edges[at])}px`, top: "28px" }}
        >${formatNumber(values[at], 2)} at ${formatDuration(edges[at])}</span
      >`
    }
  </div>`;
}

function StepTable({ value }) {
  const [by, setBy] = useState("steps");
  const [all, setAll] = useState(false);
  const rows = value[by];
  const looks = toolLooks(toolsOf(value.shares));
  const shown = all ? rows : rows.slice(0, TIMES_SHOWN);
  const aside = html`<span class="aside"
    ><${Choice}
      label="grouped by"
      value=${by}
      options=${[
        ["steps", "By step"],
        ["servers", "By server"],
      ]}
      onChange=${setBy}
  /></span>`;
  return html`<${Panel} title="How long calls took" note="largest share of the time first" wide=${true} aside=${aside}>
    <div class="scrolling" tabindex="0" role="region" aria-label="how long calls took">
      <table class="plain-table times">
        <thead>
          <tr>
            <th>${by === "steps" ? "step" : "server"}</th>
            ${["calls", "failed", "repeated", "median", "95 %", "99 %", "longest", "waited", "tokens/s"].map(
              (name) => html`<th key=${name} class="right">${name}</th>`,
            )}
          </tr>
        </thead>
        <tbody>
          ${shown.map((times, index) => html`<${TimesRow} key=${index} times=${times} by=${by} looks=${looks} />`)}
        </tbody>
      </table>
    </div>
    ${
      rows.length > shown.length &&
      html`<button class="fold-toggle" onClick=${() => setAll(true)}>Show all ${formatNumber(rows.length)}</button>`
    }
  <//>`;
}

function TimesRow({ times, by, looks }) {
  const retries = Object.entries(times.retries);
  const repeated = retries.reduce((sum, [, count]) => sum + count, 0);
  const why = retries.map(([failed, count]) => `${clean(failed)}: ${count}`).join(", ");
  const name = by === "servers" ? times.server || "unnamed" : times.tool || times.kind;
  return html`<tr>
    <th scope="row">
      ${by === "steps" && html`<span class=${`swatch ${lookOf(times.kind, times.tool, looks)}`}></span>`}${clean(name)}
      ${by === "steps" && times.server && html` <span class="quiet">${clean(times.server)}</span>`}
    </th>
    <td class="right">${formatNumber(times.count)}</td>
    <td class=${`right ${times.failed ? "bad" : "quiet"}`}>${times.failed ? formatNumber(times.failed) : "–"}</td>
    <td class=${`right ${repeated ? "" : "quiet"}`} title=${why}>
      ${repeated ? formatNumber(repeated) : "–"}${repeated > 0 && html` <span class="quiet">(${why})</span>`}
    </td>
    ${["p50", "p95", "p99", "most"].map(
      (field) => html`<td key=${field} class="right">${formatDuration(times[field])}</td>`,
    )}
    <td class=${`right ${times.waited_s ? "" : "quiet"}`}>${times.waited_s ? formatDuration(times.waited_s) : "–"}</td>
    <td class=${`right ${times.tokens_per_s ? "" : "quiet"}`}>
      ${times.tokens_per_s ? formatNumber(times.tokens_per_s, 2) : "–"}
    </td>
  </tr>`;
}

function Stragglers({ tail }) {
  if (!tail?.rollouts.length) return null;
  const note = `${formatDuration(tail.seconds)} of the run, ${formatPercent(tail.share)}, after 95 % had ended`;
  return html`<${Panel} title="Stragglers" note=${note}><${SlowTable} rollouts=${tail.rollouts} late=${true} /><//>`;
}

function SlowTable({ rollouts, late }) {
  return html`<table class="plain-table">
    <thead>
      <tr>
        <th>rollout</th>
        <th>mostly</th>
        ${late && html`<th class="right">later by</th>`}
        <th class="right">took</th>
      </tr>
    </thead>
    <tbody>
      ${rollouts.map(
        (one, index) =>
          html`<tr key=${index}>
            <td>
              ${
                one.id
                  ? html`<a href=${placeUrl({ rollout: one.id, tab: "timing" })}
                      >Task ${one.task} · rollout ${one.rollout}</a
                    >`
                  : `Task ${one.task} · rollout ${one.rollout}`
              }
              ${one.outcome !== SHARED.completed && html` <span class="bad">${clean(one.outcome || "failed")}</span>`}
            </td>
            <td class="quiet">${one.mostly ? `${clean(one.mostly.name)} ${formatPercent(one.mostly.share)}` : "–"}</td>
            ${late && html`<td class="right">${formatDuration(one.late_s)}</td>`}
            <td class="right">${formatDuration(one.duration)}</td>
          </tr>`,
      )}
    </tbody>
  </table>`;
}
