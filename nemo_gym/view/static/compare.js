/* Two rollouts side by side around their first difference; two runs paired by task. */

import { html, useReply, useMemo, useState } from "./dom.js";
import { clean, formatCount, formatField, formatNumber, signed } from "./format.js";
import { entriesOf, factsOf, fieldsOf, givenOf, outputOf, readEntries, textOfEntry, wholeText } from "./record.js";
import { FieldsPanel, useFields } from "./fields.js";
import { goTo, placeUrl, selectionOf } from "./place.js";
import { Choice, Notice, Reward, RewardChips, Select, Trouble } from "./ui.js";
import { Step } from "./transcript.js";
import { PAGE_ROWS } from "./rows.js";
import { useGrowingList } from "./groups.js";

const PAIRINGS = [
  ["content", "what they ask"],
  ["index", "their number"],
];
const ORDER_OF_CHANGE = [
  ["change", "worst first"],
  ["-change", "best first"],
];

export function Compare({ source, place, files, version }) {
  if (place.a && place.b) return html`<${ComparePair} source=${source} place=${place} />`;
  if (files.length > 1) return html`<${CompareRuns} source=${source} place=${place} files=${files} version=${version} />`;
  return html`<main class="page">
    <${Notice} title="Nothing to compare yet">
      Open a rollout of a task that was attempted more than once and choose <b>Compare</b>, or press <kbd>c</kbd> there.
      Given two files, this page pairs them by task.
    <//>
  </main>`;
}

function ComparePair({ source, place }) {
  const { value, error } = useReply((signal) => source.compare(place.a, place.b, signal), [place.a, place.b]);
  if (error) return html`<main class="page"><${Trouble} error=${error} /></main>`;
  if (!value || value.a.id !== place.a || value.b.id !== place.b)
    return html`<main class="page" aria-busy="true"></main>`;
  return html`<${Pair} key=${`${place.a}|${place.b}`} reply=${value} />`;
}

function Pair({ reply }) {
  const { a, b } = reply;
  const { prompt, item } = reply.first_difference;
  const samePrompt = prompt === null;
  const at = prompt ?? item;
  // Prompts that differ are read side by side, like everything that follows them.
  const read = (record) => (samePrompt ? entriesOf(outputOf(record), true) : readEntries(record));
  const left = useMemo(() => read(a.record), [a]);
  const right = useMemo(() => read(b.record), [b]);
  const same = equalEntries(left, right, at);
  const [open, setOpen] = useState(at === null || same < 3);
  const marks = differingParts(left[same], right[same]);
  return html`<main class="page compare">
    <div class="pair heads">
      <${PairHead} detail=${a} other=${b} side="a" /><${PairHead} detail=${b} other=${a} side="b" />
    </div>
    <${FieldsOfPair} a=${a.record} b=${b.record} />
    ${samePrompt && html`<${SamePrompt} record=${a.record} />`}
    <div class="pairs">
      ${
        same > 0 &&
        at !== null &&
        html`<button class="hidden-steps" aria-expanded=${open} onClick=${() => setOpen(!open)}>
          ${open ? "Hide" : "Show"} ${formatCount(same, "equal step")}
        </button>`
      }
      ${
        open &&
        left
          .slice(0, same)
          .map(
            (entry, index) =>
              html`<div key=${entry.key} class="pair same">
                <${Side} entries=${[entry]} side="a" eager=${index < 12} /><${Side}
                  entries=${[right[index]]}
                  side="b"
                  eager=${index < 12}
                />
              </div>`,
          )
      }
      <div class=${`rule difference ${at === null ? "none" : ""}`} id="first-difference">
        <span>${at === null ? "no difference" : samePrompt ? "first difference" : "the prompts differ"}</span>
      </div>
      ${
        at !== null &&
        html`<div class="pair">
          <${Side} entries=${left.slice(same)} mark=${marks.left} side="a" eager=${true} /><${Side}
            entries=${right.slice(same)}
            mark=${marks.right}
            side="b"
            eager=${true}
          />
        </div>`
      }
    </div>
  </main>`;
}

/** How many entries come before the one that holds the differing item. */
function equalEntries(left, right, at) {
  if (at === null) return Math.min(left.length, right.length);
  const made = left[0]?.made;
  const before = (entry) => entry && entry.made === made && lastItem(entry) < at;
  let same = 0;
  while (before(left[same]) && before(right[same])) same += 1;
  return same;
}

/** The position of the last item that an entry stands for: a call shows its result as well. */
function lastItem(entry) {
  return entry.result?.index ?? entry.index;
}

/** Where two entries of one kind differ, as `[from, to]` in the text of each; nothing where the texts are equal. */
function differingParts(one, other) {
  if (!one || !other || one.kind !== other.kind) return {};
  const [left, right] = [wholeText(one), wholeText(other)];
  if (left === right) return {};
  const shorter = Math.min(left.length, right.length);
  let from = 0;
  while (from < shorter && left[from] === right[from]) from += 1;
  let tail = 0;
  while (tail < shorter - from && left[left.length - 1 - tail] === right[right.length - 1 - tail]) tail += 1;
  return { left: [from, left.length - tail], right: [from, right.length - tail] };
}

function Side({ entries, mark, side, eager }) {
  const settings = { markdown: true, open: false };
  return html`<div class=${`side ${side}`}>
    ${entries.map(
      (entry, index) =>
        html`${entry.made && entries[index - 1]?.made === false && html`<div class="rule"><span>model output</span></div>`}<${Step}
            key=${entry.key}
            entry=${entry}
            settings=${settings}
            mark=${index === 0 ? mark : undefined}
            eager=${eager && index < 12}
            id=${`${side}-${entry.key}`}
          />`,
    )}
    ${!entries.length && html`<p class="quiet pad">ended before</p>`}
  </div>`;
}

function PairHead({ detail, other, side }) {
  const { record } = detail;
  const swap = (chip) => placeUrl(side === "a" ? { a: chip.id, b: other.id } : { a: other.id, b: chip.id });
  return html`<header class="pair-head">
    <div class="title">
      <${Reward} value=${record.reward} failure=${record._ng_failure_class} size="large" />
      <div>
        <h1>
          <a href=${placeUrl({ rollout: detail.id, a: null, b: null })}
            >Task ${record._ng_task_index ?? "–"}${" "}<span class="quiet">
              · rollout ${record._ng_rollout_index ?? "–"}</span
            ></a
          >
        </h1>
        <p class="quiet">${whereOf(detail)}</p>
      </div>
    </div>
    ${detail.group?.length > 1 && html`<${RewardChips} rollouts=${detail.group} current=${detail.id} hrefOf=${swap} />`}
  </header>`;
}

/** The agent of a rollout, and the file and line that it was read from. */
function whereOf({ record, file, line }) {
  return [record.agent_ref?.name, file, line ? `line ${line}` : null].filter(Boolean).map(clean).join(" · ");
}

function FieldsOfPair({ a, b }) {
  const read = (record) => new Map([...fieldsOf(record).short, ...factsOf(record)]);
  const [left, right] = [read(a), read(b)];
  const names = [...new Set([...left.keys(), ...right.keys()])].filter((name) => left.get(name) !== right.get(name));
  if (!names.length) return null;
  return html`<table class="plain-table differing">
    <tbody>
      ${names.map(
        (name) =>
          html`<tr key=${name}>
            <td>${formatField(name, left.get(name))}</td>
            <th>${clean(name)}</th>
            <td>${formatField(name, right.get(name))}</td>
          </tr>`,
      )}
    </tbody>
  </table>`;
}

function SamePrompt({ record }) {
  const [open, setOpen] = useState(false);
  const entries = useMemo(() => entriesOf(givenOf(record), false), [record]);
  if (!entries.length) return null;
  const last = textOfEntry(entries.findLast((entry) => entry.role === "user") ?? entries.at(-1));
  return html`<div class="same-prompt">
    <button aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <span class=${`tree-arrow ${open ? "open" : ""}`}></span
      ><span class="field-name">prompt</span>${!open && html`<span class="preview">${clean(last.slice(0, 200))}</span>`}
    </button>
    ${
      open &&
      entries.map(
        (entry) =>
          html`<${Step} key=${entry.key} entry=${entry} settings=${{ markdown: true, open: false }} eager=${true} />`,
      )
    }
  </div>`;
}

function CompareRuns({ source, place, files, version }) {
  const { filter, search } = selectionOf(place);
  const ids = files.map((file) => String(file.id));
  const a = ids.includes(place.run_a) ? place.run_a : ids[0];
  const b = ids.includes(place.run_b) ? place.run_b : ids.find((id) => id !== a);
  const sort = place.order === "-change" ? "-change" : "change";
  const pair = place.pair === "index" ? "index" : "content";
  const list = useGrowingList(
    async (offset, signal) => {
      const reply = await source.compareRuns({ a, b, sort, pair_by: pair, filter, search, offset, limit: PAGE_ROWS }, signal);
      return { ...reply, entries: reply.tasks };
    },
    [a, b, sort, pair, filter, search],
  );
  const runs = { a, b, pair_by: pair };
  const fields = useFields({ source, place, version, runs });
  const options = files.map((file) => [String(file.id), clean(file.name)]);
  return html`<main class="page compare-runs">
    <h1 class="unseen">Two runs compared</h1>
    <div class="table-bar">
      <${Select}
        label="from"
        value=${a}
        options=${options}
        onChange=${(id) => goTo({ run_a: id }, { replace: true })}
      />
      <${Select} label="to" value=${b} options=${options} onChange=${(id) => goTo({ run_b: id }, { replace: true })} />
      <${Select}
        label="pair tasks by"
        value=${pair}
        options=${PAIRINGS}
        onChange=${(by) => goTo({ pair: by === "content" ? null : by }, { replace: true })}
      />
      <span class="stretch"></span>
      <${Choice}
        label="order"
        value=${sort}
        options=${ORDER_OF_CHANGE}
        onChange=${(order) => goTo({ order }, { replace: true })}
      />
    </div>
    ${list.error && html`<${Trouble} error=${list.error} />`}
    ${list.reply && html`<${RunSummary} reply=${list.reply} />`}
    ${
      list.total > 0 &&
      html`<${FieldsPanel}
        fields=${fields}
        place=${place}
        runs=${runs}
        names=${[a, b].map((id) => files.find((file) => String(file.id) === id).name)}
      />`
    }
    ${list.total === 0 && html`<${Notice} title="No pairs"
      >No task of one file ${pair === "content" ? "asks the same as one" : "has the number of one"} of the other.<//
    >`}
    ${
      (fields.value || fields.error) &&
      html`<ol class="run-list">
        ${list.entries.map((task) => html`<${RunTask} key=${task.key} task=${task} />`)}
      </ol>`
    }
    <div ref=${list.end}></div>
  </main>`;
}

function RunSummary({ reply }) {
  const { difference, interval, better, worse, same, total, only_a: onlyA, only_b: onlyB } = reply;
  const alone = [
    [onlyA, "first"],
    [onlyB, "second"],
  ].filter(([count]) => count);
  const all = better + worse + same || 1;
  return html`<div class="figures">
    <div class="figure main-figure">
      <span class="name">Change of the mean</span><span class="number">${signed(difference)}</span
      ><span class="detail"
        >${interval ? `${signed(interval[0])} to ${signed(interval[1])}, 95 % interval` : "no interval"}</span
      >
    </div>
    <div class="figure wide-figure">
      <span class="name"
        >${formatCount(total, "pair")} of
        tasks${alone.map(([count, file]) => ` · ${formatNumber(count)} only in the ${file} file`)}</span
      >
      <span class="split" aria-hidden="true"
        ><span class="worse" style=${{ flexGrow: worse / all }}></span
        ><span class="same" style=${{ flexGrow: same / all }}></span
        ><span class="better" style=${{ flexGrow: better / all }}></span
      ></span>
      <span class="detail"
        ><b>${formatNumber(worse)}</b> worse · <b>${formatNumber(same)}</b> the same${" · "}<b
          >${formatNumber(better)}</b
        >${" better"}</span
      >
    </div>
  </div>`;
}

function RunTask({ task }) {
  const pair =
    task.a?.length && task.b?.length
      ? placeUrl({ view: "compare", a: idOf(task.a[0]), b: idOf(task.b[0]), rollout: null })
      : null;
  const width = `${Math.min(Math.abs(task.change), 1) * 50}%`;
  return html`<li class="run-task">
    <${pair ? "a" : "span"} class="run-link" href=${pair ?? undefined}>
      <span class="run-name">task ${task.key}${task.key_b === task.key ? "" : ` · ${task.key_b}`}</span>
      <span class="run-means"
        ><${Reward} value=${task.a_mean} mean=${true} /><span class="quiet">→</span
        ><${Reward} value=${task.b_mean} mean=${true}
      /></span>
      <span class="run-change"
        ><span
          class=${task.change < 0 ? "worse" : "better"}
          style=${{ width, [task.change < 0 ? "right" : "left"]: "50%" }}
        ></span
      ></span>
      <span class=${`run-number ${task.change < 0 ? "bad" : task.change > 0 ? "good" : "quiet"}`}
        >${signed(task.change)}</span
      >
      <span class="run-question">${clean(task.question ?? "")}</span>
    <//>
  </li>`;
}

function idOf(rollout) {
  return typeof rollout === "string" ? rollout : rollout.id;
}
