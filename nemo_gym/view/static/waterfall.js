/* The steps of a rollout over time: each below the call that made it, waits hatched, repeated attempts marked. */

import { html, useEffect, useMemo, useRef, useState } from "./dom.js";
import { clean, formatBytes, formatCount, formatDuration, formatNumber, formatPercent } from "./format.js";
import { SHARED } from "./shared.js";
import { timeTicks } from "./charts.js";

const STEP_KINDS = new Set([...SHARED.step_kinds, "agent", "waiting"]);
const WAITED_FOR = { slot: "a free slot", gate: "the rate limit", connection: "a connection", retry: "another attempt" };
const STEPS_SHOWN = 300;
const DEEPEST = 8; // levels that are indented

export function kindClass(kind) {
  return `kind-${STEP_KINDS.has(kind) ? kind : "call"}`;
}

/** How each tool looks, by its name: tools in order have different shades of one colour. */
export function toolLooks(names) {
  return new Map([...new Set(names)].map((name, index) => [name, `${kindClass("tool")} shade-${index % 3}`]));
}

export function Waterfall({ timing, missing }) {
  if (!timing)
    return html`<div class="waterfall"><p class="quiet">No times: ${clean(missing ?? "none were recorded")}.</p></div>`;
  return html`<div class="waterfall">
    <${Facts} timing=${timing} />
    ${
      timing.steps.length
        ? html`<${Steps} timing=${timing} />`
        : html`<p class="quiet">It made no calls that were recorded.</p>`
    }
  </div>`;
}

function Facts({ timing }) {
  const retries = timing.steps.reduce((sum, step) => sum + (step.retries?.length ?? 0), 0);
  const shown = timing.shares.filter(({ share }) => share >= 0.0005).slice(0, 8);
  const looks = looksOf(timing.steps);
  return html`<div class="token-facts">
    <span><b>${formatDuration(timing.duration)}</b> in ${formatCount(timing.steps.length, "call")}</span>
    ${timing.attempt > 1 && html`<span>attempt <b>${formatNumber(timing.attempt)}</b></span>`}
    ${timing.waited_s > 0 && html`<span>waited <b>${formatDuration(timing.waited_s)}</b></span>`}
    ${retries > 0 && html`<span class="key-retry">${formatCount(retries, "repeated attempt")}</span>`}
    ${shown.map(
      ({ name, share }) =>
        html`<span key=${name} class=${`key ${looks.get(name) ?? kindClass(name)}`}
          >${clean(name)} <b>${formatPercent(share)}</b></span
        >`,
    )}
  </div>`;
}

function looksOf(steps) {
  return toolLooks(steps.filter(({ kind }) => kind === "tool").map(({ label }) => label));
}

function Steps({ timing }) {
  const [shown, setShown] = useState(STEPS_SHOWN);
  const [current, setCurrent] = useState(0);
  const list = useRef();
  const moved = useRef(false);
  useEffect(() => {
    if (moved.current) list.current.querySelectorAll(".step-line")[current]?.focus();
    moved.current = false;
  }, [current]);
  const end = timing.end || 1;
  const steps = timing.steps.slice(0, shown);
  const looks = useMemo(() => looksOf(timing.steps), [timing]);
  const rated = timing.steps.some((step) => step.tokens_per_s !== undefined);
  const onKey = (event) => {
    const last = steps.length - 1;
    const to = { ArrowDown: current + 1, ArrowUp: current - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    moved.current = true;
    setCurrent(Math.max(0, Math.min(last, to)));
  };
  return html`<div class=${rated ? "timed-steps rated" : "timed-steps"}>
    <div class="time-axis" aria-hidden="true">
      ${timeTicks(end, 6).map(
        ({ at, text }) => html`<span key=${at} style=${{ left: percentOf(at, end) }}>${text}</span>`,
      )}
    </div>
    <ol ref=${list} onKeyDown=${onKey} aria-label="steps; the arrow keys move between them">
      ${steps.map(
        (step, index) =>
          html`<li key=${index}>
            <button
              class="step-line"
              tabindex=${index === current ? 0 : -1}
              aria-label=${describeStep(step).join(", ")}
              onFocus=${() => setCurrent(index)}
            >
              <${StepLine} step=${step} end=${end} rated=${rated} look=${(step.kind === "tool" && looks.get(step.label)) || kindClass(step.kind)} />
            </button>
          </li>`,
      )}
    </ol>
    ${
      timing.steps.length > shown &&
      html`<button class="fold-toggle" onClick=${() => setShown(shown + 5 * STEPS_SHOWN)}>
        Show more of ${formatCount(timing.steps.length, "step")}
      </button>`
    }
  </div>`;
}

function percentOf(seconds, end) {
  return `${Math.max(0, Math.min(100, (seconds / end) * 100)).toFixed(3)}%`;
}

function StepLine({ step, end, rated, look }) {
  const failed = step.status >= 400 || (step.status === undefined && step.finish);
  const left = step.start > end / 2;
  const waited = step.duration ? Math.min(1, (step.waited ?? 0) / step.duration) : 0;
  return html`<span class="step-name" style=${{ paddingLeft: `${Math.min(step.depth, DEEPEST) * 14}px` }}
      >${step.depth > 0 && html`<span class="quiet">└ </span>`}${clean(step.label)}</span
    >
    <span class="step-track"
      ><span
        class=${`step-bar ${look} ${failed ? "failed" : ""}`}
        style=${{ left: `min(${percentOf(step.start, end)}, 100% - 2px)`, width: percentOf(step.duration, end) }}
        ><span class="step-wait" style=${{ width: percentOf(waited, 1) }}></span></span
      >${(step.retries ?? [])
        .slice(0, 100)
        .map(
          (retry, index) =>
            html`<span key=${index} class="step-retry" style=${{ left: percentOf(retry.at, end) }}></span>`,
        )}<span class=${`tip step-tip ${left ? "left" : ""}`} style=${{ left: percentOf(step.start, end) }}
        >${describeStep(step).map((line, index) => html`<span key=${index}>${line}</span>`)}</span
      ></span
    >
    <span class="step-time">${formatDuration(step.duration)}</span>
    ${rated && html`<span class="step-rate">${step.tokens_per_s !== undefined ? `${formatNumber(step.tokens_per_s, 2)} tok/s` : ""}</span>`}`;
}

/** What is known of a step, as short phrases. */
function describeStep(step) {
  const cause = WAITED_FOR[step.waited_for] ?? step.waited_for;
  const status = [step.status && `status ${step.status}`, step.finish].filter(Boolean).join(", ");
  return [
    step.label + (step.server && !step.label.includes(step.server) ? ` on ${step.server}` : ""),
    `${formatDuration(step.duration)}, from ${formatDuration(step.start)} on`,
    step.waited && `waited ${formatDuration(step.waited)}${cause ? `, mostly for ${cause}` : ""}`,
    ...(step.retries ?? []).slice(0, 5).map((retry) => `repeated after ${retry.failed || "a failure"} at ${formatDuration(retry.at)}`),
    step.retries?.length > 5 && `and ${formatNumber(step.retries.length - 5)} more times`,
    (step.tokens_in || step.tokens_out) &&
      `${formatNumber(step.tokens_in ?? 0)} tokens in${step.tokens_cached ? ` (${formatNumber(step.tokens_cached)} cached)` : ""}, ${formatNumber(step.tokens_out ?? 0)} out`,
    step.tokens_per_s !== undefined && `${formatNumber(step.tokens_per_s, 2)} tokens a second`,
    (step.bytes_out || step.bytes_in) &&
      `${formatBytes(step.bytes_out ?? 0)} sent, ${formatBytes(step.bytes_in ?? 0)} received`,
    status,
  ]
    .filter(Boolean)
    .map(clean);
}
