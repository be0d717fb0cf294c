/* What people say about rollouts: a label and a note on each, and how often labels agree with rewards. */

import { html, useReply, useRef, useState } from "./dom.js";
import { clean, formatCount, formatPercent, quoteText } from "./format.js";
import { placeUrl, selectionOf } from "./place.js";
import { Panel, Trouble } from "./ui.js";

const GOOD = "good";
const BAD = "bad";
const BUTTONS = { "+": "mark-good", "=": "mark-good", "-": "mark-bad", m: "mark-label", M: "mark-note" };

/** A key that marks the open rollout; the page has no other way in than its own buttons and boxes. */
export function markKey(key) {
  const target = BUTTONS[key] && document.getElementById(BUTTONS[key]);
  if (!target) return false;
  if (target.tagName === "BUTTON") target.click();
  else target.focus();
  return true;
}

/** The label and note of the open rollout, each of which has a page of its own. Both are saved when they are complete. */
export function Marking({ source, detail }) {
  const [mark, setMark] = useState(detail.mark);
  const [error, setError] = useState(null);
  const latest = useRef(detail.mark); // a label and a note may be changed before the first of them is saved
  const show = (shown) => setMark((latest.current = shown));
  if (!mark) return null;
  const save = async (changed) => {
    const [before, wanted] = [latest.current, { ...latest.current, ...changed }];
    if ((wanted.label || null) === before.label && (wanted.note || null) === before.note) return;
    const sent = { label: wanted.label || null, note: wanted.note || null };
    show({ ...before, ...sent });
    try {
      await source.mark(detail.id, sent);
      setError(null);
    } catch (failure) {
      show(before);
      setError(failure);
    }
  };
  const toggle = (label) => save({ label: mark.label === label ? null : label });
  return html`<div class="marking" role="group" aria-label="your mark">
    ${[GOOD, BAD].map(
      (label) =>
        html`<button
          key=${label}
          id=${`mark-${label}`}
          class=${`button mark-${label}`}
          aria-pressed=${mark.label === label}
          onClick=${() => toggle(label)}
          >${label === GOOD ? "Good" : "Bad"}<kbd>${label === GOOD ? "+" : "-"}</kbd></button
        >`,
    )}
    <${Line} key=${`label ${mark.label}`} id="mark-label" text=${mark.label} hint="label (m)" limit=${60} onDone=${(label) => save({ label })} />
    <${Line} key=${`note ${mark.note}`} id="mark-note" text=${mark.note} hint="note (M)" limit=${10000} onDone=${(note) => save({ note })} />
    ${mark.by && html`<span class="quiet">${clean(mark.by)}</span>`}
    ${error && html`<${Trouble} error=${error} />`}
  </div>`;
}

/** A box that is done with when Enter is pressed or it is left; Escape takes back what was typed. */
function Line({ id, text, hint, limit, onDone }) {
  const [typed, setTyped] = useState(text ?? "");
  const onKey = (event) => {
    if (event.key === "Escape") {
      event.target.value = text ?? "";
      setTyped(text ?? "");
    }
    if (event.key === "Escape" || event.key === "Enter") event.target.blur();
  };
  return html`<input
    id=${id}
    class=${id}
    value=${typed}
    placeholder=${hint}
    aria-label=${hint}
    maxlength=${limit}
    autocomplete="off"
    onInput=${(event) => setTyped(event.target.value)}
    onKeyDown=${onKey}
    onBlur=${(event) => onDone(event.target.value.trim())}
  />`;
}

/** The labels in what is selected, and what good and bad say about the reward. */
export function MarksPanel({ source, place, version }) {
  const selection = selectionOf(place);
  const { value } = useReply(
    (signal) => source.marks({ ...selection, threshold: place.threshold }, signal),
    [place.filter, place.search, place.threshold, version],
  );
  if (!value?.labels.length) return null;
  const only = (filter) => placeUrl({ view: "table", filter: place.filter ? `(${place.filter}) and ${filter}` : filter });
  return html`<${Panel} title="Marks" note="labels that people gave" wide=${true}>
    <div class="mark-labels">
      ${value.labels.map(
        ([label, count]) =>
          html`<a key=${label} class="button" href=${only(`label == ${quoteText(label)}`)}>${clean(label)} <strong>${count}</strong></a>`,
      )}
    </div>
    ${value.agreement && html`<${Agreement} found=${value.agreement} />`}
  <//>`;
}

function Agreement({ found }) {
  return html`<p>
    The reward agrees with ${formatPercent(found.share)} of ${formatCount(found.rollouts, "label")}
    ${" "}[${formatPercent(found.low)}, ${formatPercent(found.high)}]: ${found.rewarded_but_bad} rewarded but bad,
    ${" "}${found.unrewarded_but_good} good without a reward.
  </p>`;
}
