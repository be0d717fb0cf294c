/* Rollouts by task, with the repeats side by side, or by agent, failure class or file. */

import { html, useEffect, useLayoutEffect, useRef, useState } from "./dom.js";
import { both } from "./overview.js";
import { clean, DASH, formatCount, formatNumber, formatPercent, formatScore } from "./format.js";
import { goTo, placeUrl, selectionOf } from "./place.js";
import { Choice, NoRollouts, Reward, RewardChips, Select, Trouble } from "./ui.js";

const GROUP_PAGE = 60;
const KINDS = [
  ["task", "Task"],
  ["agent", "Agent"],
  ["failure", "Failure"],
  ["file", "File"],
];
const ORDERS = [
  ["key", "name"],
  ["mean", "lowest mean"],
  ["-mean", "highest mean"],
  ["-spread", "widest spread"],
  ["-count", "most rollouts"],
];

// The last list and its scroll position: the way back from a rollout leads there.
const lastList = { key: null, list: null, scroll: 0 };

/** A list that loads more as its end comes into view. `load(offset, signal)` answers `{ total, entries }`. */
export function useGrowingList(load, inputs) {
  const key = JSON.stringify(inputs);
  const known = useRef(lastList.key === key ? lastList.list : null);
  const [list, setList] = useState(known.current ?? { entries: [], total: null, error: null });
  const latest = useRef(null);
  latest.current = { key, list };
  const busy = useRef(null);
  const more = async (entries) => {
    const stop = new AbortController();
    busy.current = stop;
    try {
      const answer = await load(entries.length, stop.signal);
      if (!stop.signal.aborted)
        setList({ entries: [...entries, ...answer.entries], total: answer.total, answer, error: null });
    } catch (error) {
      if (!stop.signal.aborted) setList((last) => ({ ...last, error }));
    } finally {
      if (busy.current === stop) busy.current = null;
    }
  };
  useLayoutEffect(() => {
    if (known.current) scrollTo(0, lastList.scroll);
    return () => Object.assign(lastList, latest.current, { scroll: scrollY });
  }, []);
  useEffect(() => {
    if (!known.current) more([]);
    known.current = null;
    return () => busy.current?.abort();
  }, inputs);
  const end = useRef();
  useEffect(() => {
    if (!end.current || list.total === null || list.entries.length >= list.total) return undefined;
    const watcher = new IntersectionObserver(
      (seen) => seen.some((entry) => entry.isIntersecting) && !busy.current && more(list.entries),
      { rootMargin: "600px 0px" },
    );
    watcher.observe(end.current);
    return () => watcher.disconnect();
  }, [list]);
  return { ...list, end };
}

export function Groups({ source, place, version }) {
  const by = KINDS.some(([kind]) => kind === place.by) ? place.by : "task";
  const sort = place.order ?? "key";
  const { filter, search } = selectionOf(place);
  const [seen, setSeen] = useState(version);
  const list = useGrowingList(
    async (offset, signal) => {
      const query = { by, sort, filter, search, threshold: place.threshold, offset, limit: GROUP_PAGE };
      const answer = await source.groups(query, signal);
      return { total: answer.total, entries: answer.groups };
    },
    [by, sort, filter, search, place.threshold, seen],
  );
  return html`<main class="page groups">
    <div class="table-bar">
      <${Choice}
        label="group by"
        value=${by}
        options=${KINDS}
        onChange=${(kind) => goTo({ by: kind }, { replace: true })}
      />
      <span class="count"
        >${
          list.total === null ? "" : by === "task" ? formatCount(list.total, "task") : formatCount(list.total, "group")
        }</span
      >
      ${version !== seen && html`<button class="arrivals" onClick=${() => setSeen(version)}>new rows · show</button>`}
      <span class="stretch"></span>
      <${Select}
        label="sort by"
        value=${sort}
        options=${ORDERS}
        onChange=${(order) => goTo({ order: order === "key" ? null : order }, { replace: true })}
      />
    </div>
    ${list.error && html`<${Trouble} error=${list.error} />`}
    ${list.total === 0 && html`<${NoRollouts} place=${place} live=${source.live} />`}
    ${by === "task" && list.total > 0 && html`<${GroupHead} />`}
    <ol class=${`group-list by-${by}`}>
      ${list.entries.map(
        (group) => html`<${Group} key=${`${by}:${group.key}`} group=${group} by=${by} place=${place} />`,
      )}
    </ol>
    <div ref=${list.end}></div>
  </main>`;
}

function GroupHead() {
  return html`<div class="group group-titles" aria-hidden="true">
    <span>task</span><span>mean</span><span>question</span><span>rollouts</span><span class="right">solved</span
    ><span class="right">spread</span><span class="right">failed</span>
  </div>`;
}

function Group({ group, by, place }) {
  const href = placeUrl({
    view: "table",
    filter: both(place.filter, group.filter),
    rollout: null,
  });
  const [name, ...where] = clean(
    by === "failure" && !group.key ? "completed" : (group.label ?? group.key ?? "none"),
  ).split(" · ");
  const mean =
    typeof group.mean === "number"
      ? html`<${Reward} value=${group.mean} mean=${true} />`
      : html`<span class="quiet">${DASH}</span>`;
  const label = html`<a class="group-name" href=${href}
    >${name}${where.length > 0 && html`<span class="group-file">${where.join(" · ")}</span>`}</a
  >`;
  if (!group.rollouts) {
    return html`<li class="group plain-group">
      ${mean}${label}
      <span class="group-facts">
        ${
          typeof group.min === "number" &&
          html`<span>from <b>${formatScore(group.min)}</b> to <b>${formatScore(group.max)}</b></span>`
        }
        ${typeof group.solve_rate === "number" && html`<span>solved <b>${formatPercent(group.solve_rate)}</b></span>`}
        ${group.failed > 0 && by !== "failure" && html`<span class="bad">${formatNumber(group.failed)} failed</span>`}
        <span><b>${formatNumber(group.count)}</b> ${group.count === 1 ? "rollout" : "rollouts"}</span>
      </span>
    </li>`;
  }
  return html`<li class="group">
    ${label}<span class="group-mean">${mean}</span>
    <p class="group-question" title=${clean(group.question ?? "")}>${clean(group.question ?? "")}</p>
    <span class="group-chips"
      ><${RewardChips} rollouts=${group.rollouts} />${
        group.count > group.rollouts.length &&
        html`<a class="quiet" href=${href}>+ ${formatNumber(group.count - group.rollouts.length)}</a>`
      }</span
    >
    <span class="group-number">${formatPercent(group.solve_rate)}</span>
    <span class="group-number">${group.std > 0 ? formatScore(group.std) : DASH}</span>
    <span class=${`group-number ${group.failed ? "bad" : "quiet"}`}>${group.failed || DASH}</span>
  </li>`;
}
