/* Small pieces that all views share: rewards as colour and number, failures, empty states. */

import { html } from "./dom.js";
import { clean, formatReward, formatScore } from "./format.js";
import { placeUrl } from "./place.js";

const scale = { low: 0, high: 1 };

/** The range that the colours span; rewards are mostly 0 to 1, but not always. */
export function setRewardRange(columns) {
  const reward = columns.find((column) => column.name === "reward");
  scale.low = Math.min(0, reward?.min ?? 0);
  scale.high = Math.max(1, reward?.max ?? 1);
}

export function rewardShare(value) {
  return Math.max(0, Math.min(1, (value - scale.low) / (scale.high - scale.low)));
}

/** A reward as colour and number; a failed rollout has none and says so. */
export function Reward({ value, failure, size = "", mean = false }) {
  if (failure) return html`<span class=${`reward failed ${size}`} title=${`failed: ${clean(failure)}`}>failed</span>`;
  if (typeof value !== "number") return html`<span class=${`reward none ${size}`} title="no reward">–</span>`;
  return html`<span class=${`reward ${size}`} style=${{ "--share": rewardShare(value).toFixed(3) }}
    >${mean ? formatScore(value) : formatReward(value)}</span
  >`;
}

/** The repeats of a task side by side, each a link to its rollout. */
export function RewardChips({ rollouts, current, hrefOf = (chip) => placeUrl({ rollout: chip.id }) }) {
  return html`<span class="chips">
    ${rollouts.map(
      (chip) =>
        html`<a
          key=${chip.id}
          class=${`chip ${chip.id === current ? "current" : ""}`}
          href=${hrefOf(chip)}
          aria-current=${chip.id === current ? "true" : undefined}
          title=${`rollout ${chip.rollout ?? "?"}${chip.failure ? `, failed: ${clean(chip.failure)}` : ""}`}
          ><${Reward} value=${chip.reward} failure=${chip.failure}
        /></a>`,
    )}
  </span>`;
}

/** A framed part of a page with a heading. */
export function Panel({ title, note, wide, aside, children }) {
  return html`<section class=${`panel ${wide ? "wide-panel" : ""}`}>
    <header>
      <h2>${title}</h2>
      ${note && html`<span class="note">${note}</span>`}${aside}
    </header>
    ${children}
  </section>`;
}

export function Notice({ title, children }) {
  return html`<div class="notice" role="status"><strong>${title}</strong>${children && html`<p>${children}</p>`}</div>`;
}

/** What a list says that has no rollouts to show. */
export function NoRollouts({ place, live }) {
  if (place.filter || place.search)
    return html`<${Notice} title="No rollout matches">Loosen the filter or the search.<//>`;
  if (!live) return html`<${Notice} title="No rollouts" />`;
  return html`<${Notice} title="No rollouts yet">They appear here as they are collected.<//>`;
}

export function Trouble({ error }) {
  return html`<div class="notice trouble" role="alert">
    <strong>${clean(error.message)}</strong>${error.hint && html`<p>${clean(error.hint)}</p>`}
  </div>`;
}

/** A few options as a row of buttons. */
export function Choice({ label, value, options, onChange }) {
  return html`<span class="choice" role="group" aria-label=${label}>
    ${options.map(
      ([key, text]) =>
        html`<button key=${key} aria-pressed=${key === value} onClick=${() => onChange(key)}>${text}</button>`,
    )}
  </span>`;
}

export function Select({ label, value, options, onChange }) {
  return html`<label class="select"
    ><span>${label}</span>
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${options.map(([key, text]) => html`<option key=${key} value=${key} selected=${key === value}>${text}</option>`)}
    </select>
  </label>`;
}
