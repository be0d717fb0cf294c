/* Steps of a rollout over time. */

import { html } from "./dom.js";
import { clean, formatDuration, formatNumber } from "./format.js";
import { ticksOf } from "./charts.js";

export function Waterfall({ steps }) {
  const end = Math.max(...steps.map((step) => step.end)) || 1;
  const percent = (seconds) => `${((seconds / end) * 100).toFixed(3)}%`;
  const busy = steps.reduce((sum, step) => sum + step.end - step.start, 0);
  const tools = steps.filter((step) => step.tool).reduce((sum, step) => sum + step.end - step.start, 0);
  return html`<div class="waterfall">
    <div class="token-facts">
      <span><b>${formatDuration(end)}</b> from the first step to the last</span>
      ${
        tools > 0 &&
        html`<span class="key model">model <b>${formatDuration(busy - tools)}</b></span
          ><span class="key tool">tools <b>${formatDuration(tools)}</b></span>`
      }
    </div>
    <div class="time-axis" aria-hidden="true">
      ${ticksOf(0, end, 6).map(
        (tick) => html`<span key=${tick} style=${{ left: percent(tick) }}>${formatNumber(tick)} s</span>`,
      )}
    </div>
    <ol>
      ${steps.map(
        (step, index) =>
          html`<li key=${index}>
            <span class="step-name">${clean(step.label)}</span>
            <span class="step-track"
              ><span
                class=${`step-bar ${step.tool ? "tool" : ""}`}
                style=${{ left: percent(step.start), width: percent(step.end - step.start) }}
              ></span
            ></span>
            <span class="step-time">${formatDuration(step.end - step.start)}</span>
          </li>`,
      )}
    </ol>
  </div>`;
}
