/* The overview: mean reward, distribution, pass@k, failures and a scatter plot. */

import { html, useReply } from "./dom.js";
import { clean, formatCount, formatDuration, formatField, formatNumber, formatPercent, formatScore, quoteText } from "./format.js";
import { Curve, Histogram, Scatter } from "./charts.js";
import { goTo, placeUrl, selectionOf } from "./place.js";
import { FieldsPanel, useFields } from "./fields.js";
import { JsonTree } from "./parts.js";
import { MarksPanel } from "./marks.js";
import { ShareBar } from "./runtiming.js";
import { NoRollouts, Panel, Reward, Select, Trouble } from "./ui.js";

const AXES = ["tokens", "turns", "tool_calls", "duration", "output_tokens", "input_tokens", "bytes", "reward"];

export function Overview({ source, place, version, columns, files }) {
  const selection = selectionOf(place);
  const { value, error } = useReply(
    (signal) => source.overview({ ...selection, threshold: place.threshold }, signal),
    [place.filter, place.search, place.threshold, version],
  );
  const fields = useFields({ source, place, version });
  if (error) return html`<main class="page"><${Trouble} error=${error} /></main>`;
  if (!value) return html`<main class="page" aria-busy="true"></main>`;
  if (!value.rollouts)
    return html`<main class="page"><${NoRollouts} place=${place} live=${source.live} /></main>`;
  const failures = Object.entries(value.failed).sort((left, right) => right[1] - left[1]);
  const rated = value.solve_rates?.counts?.length > 0;
  const several = value.agents?.length > 1;
  // Panels of half the width come in pairs; the last of an odd number takes a line of its own.
  const odd = [isGraded(value), failures.length, rated, several].filter(Boolean).length % 2 === 1;
  return html`<main class="page overview">
    <${Figures} value=${value} failures=${failures} live=${source.live} />
    <div class="panels">
      <${Panel} title="Rewards" note="click a bar to see its rollouts">
        ${
          value.histogram?.counts?.length
            ? html`<${Histogram}
                ...${value.histogram}
                coloured=${true}
                label="histogram of the rewards"
                onPick=${(...edges) => pickReward(place.filter, ...edges)}
              />`
            : html`<p class="quiet">no rewards</p>`
        }
      <//>
      <${Attempts} value=${value} />
      <${MarksPanel} source=${source} place=${place} version=${version} />
      <${TimePanel} source=${source} place=${place} version=${version} files=${files} />
      <${FieldsPanel} fields=${fields} place=${place} />
      <${ScatterPanel} source=${source} place=${place} version=${version} columns=${columns} />
      ${
        failures.length > 0 &&
        html`<${Panel} title="Failures by class" note="not part of any mean" wide=${odd && !rated && !several}>
          <${Bars}
            entries=${failures}
            hrefOf=${(name) => placeUrl({ view: "table", filter: both(place.filter, `failure == ${quoteText(name)}`) })}
          />
        <//>`
      }
      ${
        rated &&
        html`<${Panel} title="Tasks by solve rate" note="left: never solved, right: always" wide=${odd && !several}>
          <${Histogram} ...${value.solve_rates} label="histogram of the tasks' solve rates" />
        <//>`
      }
      ${
        several &&
        html`<${Panel} title="Agents" wide=${odd}><${Agents} agents=${value.agents} filter=${place.filter} /><//>`
      }
      ${
        value.metrics &&
        html`<${Panel} title="Metrics file" wide=${true}><${JsonTree} value=${value.metrics} depth=${1} /><//>`
      }
    </div>
  </main>`;
}

/** Where the time of a run went, if its steps were recorded. */
function TimePanel({ source, place, version, files }) {
  const { filter, search } = selectionOf(place);
  const known = files.length === 1 ? files[0].attempts : 0;
  const { value } = useReply(
    async (signal) => (known ? source.timing({ run: 0, filter, search }, signal) : null),
    [filter, search, version, known],
  );
  if (!known || !value?.attempts) return null;
  const aside = html`<span class="aside"><a class="button" href=${placeUrl({ view: "timing" })}>All times</a></span>`;
  return html`<${Panel} title="Where the time went" wide=${true} aside=${aside}>
    <${ShareBar} shares=${value.shares} seconds=${value.seconds} />
  <//>`;
}

/** The current filter with one more condition. */
export function both(filter, condition) {
  return filter ? `(${filter}) and ${condition}` : condition;
}

function pickReward(filter, from, to, last) {
  const upper = last ? `reward <= ${to}` : `reward < ${to}`;
  goTo({ view: "table", filter: both(filter, `reward >= ${from} and ${upper}`) });
}

/** Whether the expected best reward of k rollouts says more than pass@k. */
function isGraded({ pass_at_k: passes, reward_at_k: rewards }) {
  return rewards.some((point, index) => Math.abs(point.value - passes[index]?.value) > 1e-9);
}

/** pass@k and, where rewards are graded, the expected best reward; over the same tasks for every k. */
function Attempts({ value }) {
  const { pass_at_k: passes, reward_at_k: rewards, pass_threshold: threshold } = value;
  const over = `n = ${formatCount(value.pass_tasks, "task")}${
    value.pass_tasks_left_out
      ? `; ${formatNumber(value.pass_tasks_left_out)} with fewer than ${passes.length} rollouts left out`
      : ""
  }`;
  const aside = html`<label class="select threshold"
    ><span>passes at reward ≥</span
    ><input
      type="number"
      step="any"
      value=${threshold}
      onChange=${(event) => goTo({ threshold: event.target.value || null }, { replace: true })}
  /></label>`;
  return html`<${Panel} title="pass@k" note="chance that at least one of k rollouts passes" aside=${aside}>
      ${
        passes.length
          ? html`<${Curve} points=${passes} low=${0} high=${1} label="pass@k over k" />
              <p class="quiet">${over}</p>`
          : html`<p class="quiet">no rewards</p>`
      }
    <//>
    ${
      isGraded(value) &&
      html`<${Panel} title="reward@k" note="expected best reward of k rollouts">
        <${Curve} points=${rewards} label="reward@k over k" />
        <p class="quiet">${over}</p>
      <//>`
    }`;
}

function Figures({ value, failures, live }) {
  const [low, high] = value.interval ?? [];
  const failed = failures.reduce((sum, [, count]) => sum + count, 0);
  const first = value.pass_at_k?.[0];
  const last = value.pass_at_k?.at(-1);
  return html`<div class="figures">
    <div class="figure main-figure">
      <span class="name">Mean reward</span>
      <span class="number">${formatScore(value.mean_reward, 3)}</span>
      <span class="detail"
        >${
          value.interval
            ? `${formatScore(low, 3)} to ${formatScore(high, 3)}, 95 % interval`
            : live
              ? "no interval yet"
              : "interval: only without a filter"
        }</span
      >
      ${
        value.interval &&
        low >= 0 &&
        high <= 1 &&
        html`<${Interval} low=${low} high=${high} mean=${value.mean_reward} />`
      }
    </div>
    ${
      first &&
      html`<div class="figure">
        <span class="name">pass@1</span>
        <span class="number">${formatScore(first.value, 3)}</span>
        <span class="detail"
          >${last.k > 1 ? `pass@${last.k} ${formatScore(last.value, 3)} · ` : ""}reward ≥ ${formatNumber(
            value.pass_threshold,
          )} · ${formatCount(value.pass_tasks, "task")}</span
        >
      </div>`
    }
    <div class="figure">
      <span class="name">Rollouts</span>
      <span class="number">${formatNumber(value.completed)}</span>
      <span class="detail">${value.planned ? `of ${formatNumber(value.planned)} planned` : "completed"}</span>
      ${
        value.planned > 0 &&
        html`<${Meter}
          share=${value.coverage ?? value.completed / value.planned}
          label="share of the plan that is done"
        />`
      }
    </div>
    <div class="figure">
      <span class="name">Failed</span>
      <span class=${`number ${failed ? "bad" : ""}`}>${formatNumber(failed)}</span>
      <span class="detail"
        >${failed ? `${formatPercent(failed / (failed + value.completed))} of all attempts shown` : "none"}</span
      >
    </div>
    ${value.progress && html`<${Progress} progress=${value.progress} />`}
  </div>`;
}

function Progress({ progress }) {
  const { rate_per_s: rate, eta_s: eta, done, planned } = progress;
  if ((planned && done >= planned) || (!rate && !eta)) return null;
  return html`<div class="figure">
    <span class="name">Time left</span>
    <span class="number">${formatDuration(eta)}</span>
    <span class="detail"
      >${
        rate
          ? `${formatNumber(rate >= 1 ? rate : rate * 60, 2)} rollouts ${rate >= 1 ? "a second" : "a minute"}`
          : `${formatNumber(done)} done`
      }</span
    >
  </div>`;
}

function Interval({ low, high, mean }) {
  const percent = (value) => `${(value * 100).toFixed(2)}%`;
  return html`<span class="interval" aria-hidden="true">
    <span class="span" style=${{ left: percent(low), width: percent(Math.max(high - low, 0.005)) }}></span>
    <span class="point" style=${{ left: percent(mean) }}></span>
  </span>`;
}

function Meter({ share, label }) {
  const percent = Math.max(0, Math.min(1, share)) * 100;
  return html`<span
    class="meter"
    role="progressbar"
    aria-label=${label}
    aria-valuenow=${Math.round(percent)}
    aria-valuemin="0"
    aria-valuemax="100"
    ><span style=${{ width: `${percent}%` }}></span
  ></span>`;
}

function Bars({ entries, hrefOf }) {
  const most = Math.max(...entries.map(([, count]) => count));
  return html`<ul class="bars">
    ${entries.map(
      ([name, count]) =>
        html`<li key=${name}>
          <a href=${hrefOf(name)}
            ><span class="bar-name">${clean(name)}</span
            ><span class="bar-track"><span style=${{ width: `${(count / most) * 100}%` }}></span></span
            ><span class="bar-count">${formatNumber(count)}</span></a
          >
        </li>`,
    )}
  </ul>`;
}

function Agents({ agents, filter }) {
  return html`<table class="plain-table">
    <thead>
      <tr>
        <th>agent</th>
        <th class="right">rollouts</th>
        <th class="right">mean</th>
        <th class="right">interval</th>
      </tr>
    </thead>
    <tbody>
      ${agents.map(
        (agent) =>
          html`<tr key=${agent.agent}>
            <td>
              <a href=${placeUrl({ view: "table", filter: both(filter, `agent == ${agent.agent === null ? "null" : quoteText(agent.agent)}`) })}
                >${clean(agent.agent ?? "unnamed")}</a
              >
            </td>
            <td class="right">${formatNumber(agent.rollouts)}</td>
            <td class="right"><${Reward} value=${agent.mean_reward} mean=${true} /></td>
            <td class="right quiet">
              ${agent.interval ? `${formatScore(agent.interval[0])} to ${formatScore(agent.interval[1])}` : "–"}
            </td>
          </tr>`,
      )}
    </tbody>
  </table>`;
}

function capital(name) {
  return (name[0].toUpperCase() + name.slice(1)).replaceAll("_", " ");
}

function ScatterPanel({ source, place, version, columns }) {
  const numeric = columns
    .filter((column) => column.kind === "number" && column.max !== null)
    .map((column) => column.name);
  const axes = [...AXES.filter((name) => numeric.includes(name)), ...numeric.filter((name) => !AXES.includes(name))];
  const x = axes.includes(place.x) ? place.x : axes[0];
  const y = axes.includes(place.y) ? place.y : "reward";
  const { filter, search } = selectionOf(place);
  const { value, error } = useReply(
    async (signal) => (x ? source.scatter({ x, y, filter, search }, signal) : null),
    [x, y, filter, search, version],
  );
  if (!axes.length) return null;
  const options = axes.map((name) => [name, name.replaceAll("_", " ")]);
  const aside = html`<span class="aside">
    <${Select}
      label="across"
      value=${x}
      options=${options}
      onChange=${(name) => goTo({ x: name }, { replace: true })}
    />
    <${Select} label="up" value=${y} options=${options} onChange=${(name) => goTo({ y: name }, { replace: true })} />
  </span>`;
  const coloured = value && (y === "reward" ? value.y : x === "reward" ? value.x : null);
  return html`<${Panel} title=${`${capital(y)} against ${x.replaceAll("_", " ")}`} wide=${true} aside=${aside}>
    ${error && html`<${Trouble} error=${error} />`} ${!value && !error && html`<div class="chart tall"></div>`}
    ${
      value &&
      value.ids.length > 0 &&
      html`<${Scatter}
        ...${value}
        coloured=${coloured}
        xName=${x}
        yName=${y}
        onPick=${(id) => goTo({ rollout: id })}
        describe=${(at) => `${y} ${formatField(y, value.y[at])} · ${x} ${formatField(x, value.x[at])}`}
      />`
    }
    ${value && !value.ids.length && html`<p class="quiet">no rollout has both values</p>`}
    ${value?.sampled && html`<p class="quiet">a sample of ${formatCount(value.ids.length, "rollout")}</p>`}
  <//>`;
}
