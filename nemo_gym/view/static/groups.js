/* Rollouts by task, with the repeats side by side, or by any other column, and inside of that by a second one. */

import { html, useEffect, useLayoutEffect, useReply, useRef, useState } from "./dom.js";
import { SHARED } from "./shared.js";
import { both } from "./overview.js";
import { clean, DASH, formatCount, formatNumber, formatPercent, formatScore, valueFilter } from "./format.js";
import { goTo, placeUrl, selectionOf } from "./place.js";
import { NoRollouts, Reward, RewardChips, Select, Trouble } from "./ui.js";

const GROUP_PAGE = 60;
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
      const reply = await load(entries.length, stop.signal);
      if (!stop.signal.aborted)
        setList({ entries: [...entries, ...reply.entries], total: reply.total, reply, error: null });
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

/** The columns to group by, the usual ones first. */
function groupColumns(columns) {
  const known = columns.filter(({ name }) => !SHARED.sort.previews.includes(name)).map(({ name }) => name);
  const { by } = SHARED.groups;
  return [...by, ...known.filter((name) => !by.includes(name))].map((name) => [name, clean(name)]);
}

export function Groups({ source, place, version, columns }) {
  const options = groupColumns(columns);
  const by = options.some(([name]) => name === place.by) ? place.by : "task";
  const within = options.some(([name]) => name === place.within) && place.within !== by ? place.within : null;
  const sort = place.order ?? "key";
  const { filter, search } = selectionOf(place);
  const [seen, setSeen] = useState(version);
  const list = useGrowingList(
    async (offset, signal) => {
      const query = { by, sort, filter, search, threshold: place.threshold, offset, limit: GROUP_PAGE };
      const reply = await source.groups(query, signal);
      return { total: reply.total, entries: reply.groups };
    },
    [by, sort, filter, search, place.threshold, seen],
  );
  return html`<main class="page groups">
    <div class="table-bar">
      <${Select} label="group by" value=${by} options=${options} onChange=${(name) => goTo({ by: name }, { replace: true })} />
      <${Select}
        label="then by"
        value=${within ?? ""}
        options=${[["", "–"], ...options.filter(([name]) => name !== by)]}
        onChange=${(name) => goTo({ within: name || null }, { replace: true })}
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
    <ol class="group-list" data-by=${by}>
      ${list.entries.map(
        (group) =>
          html`<${Group}
            key=${`${by}:${group.key}:${group.file}`}
            ...${{ group, by, within, place, source, sort }}
          />`,
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

/** The filter that shows a group. */
function groupFilter(by, { key, file }) {
  const own = valueFilter(by, key);
  return file === null ? own : `${own} and ${valueFilter("file", file)}`;
}

function labelOfGroup(by, key) {
  if (key === null) return SHARED.groups.unnamed[by] ?? "none";
  return by === "task" ? `task ${key}` : clean(String(key));
}

/** The groups inside of a group, by a second column. */
function InnerGroups({ source, place, filter, by, sort }) {
  const { search, threshold } = place;
  const { value, error } = useReply(
    (signal) => source.groups({ by, sort, filter, search, threshold, limit: GROUP_PAGE }, signal),
    [by, sort, filter, search, threshold],
  );
  if (error) return html`<${Trouble} error=${error} />`;
  return html`<ol class="group-list inner-groups">
    ${value?.groups.map((group) => html`<${Group} key=${`${group.key}:${group.file}`} group=${group} by=${by} place=${{ ...place, filter }} />`)}
    ${value?.total > value?.groups.length && html`<li class="quiet pad">${formatNumber(value.total - value.groups.length)} more</li>`}
  </ol>`;
}

function Group({ group, by, within, place, source, sort }) {
  const [open, setOpen] = useState(false);
  const filter = both(place.filter, groupFilter(by, group));
  const href = placeUrl({ view: "table", filter, rollout: null });
  const toggle =
    within &&
    html`<button class="inner-toggle" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <span class=${`tree-arrow ${open ? "open" : ""}`}></span>by ${clean(within)}
    </button>`;
  const inner = open && within && html`<${InnerGroups} ...${{ source, place, filter, sort }} by=${within} />`;
  const mean =
    typeof group.mean === "number"
      ? html`<${Reward} value=${group.mean} mean=${true} />`
      : html`<span class="quiet">${DASH}</span>`;
  const label = html`<a class="group-name" href=${href}
    >${labelOfGroup(by, group.key)}${group.file !== null && html`<span class="group-file">${clean(group.file)}</span>`}</a
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
        ${toggle}
      </span>
      ${inner}
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
    ${toggle} ${inner}
  </li>`;
}
