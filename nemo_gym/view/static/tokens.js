/* The tokens of a rollout: what was context, what was sampled, how likely each was, and where the context broke. */

import { Lazy, html, useMemo, useState } from "./dom.js";
import { clean, formatNumber, formatScore } from "./format.js";
import { segmentsOf } from "./continuity.js";

const CHUNK = 400;
// Natural logarithms; from nearly certain to hardly expected.
const STEPS = [-0.01, -0.1, -0.35, -0.7, -1.2, -2, -3.5];
const CONTEXT_SHOWN = 60;

export function hasTokens(record) {
  const output = record?.response?.output ?? record?.output;
  return Array.isArray(output) && output.some((item) => Array.isArray(item?.generation_token_ids));
}

function logProbLevel(value) {
  if (typeof value !== "number") return "unknown";
  const level = STEPS.findIndex((limit) => value >= limit);
  return level === -1 ? STEPS.length : level;
}

export function Tokens({ record, continuity }) {
  const segments = useMemo(() => segmentsOf(record), [record]);
  const breaks = new Map((continuity?.breaks ?? []).map((found) => [found.item, found]));
  const sampled = segments.reduce((sum, segment) => sum + segment.ids.length, 0);
  const mean = segments
    .flatMap((segment) => segment.logProbs)
    .reduce((sum, value, _, all) => sum + value / all.length, 0);
  return html`<div class="tokens">
    <div class="token-facts">
      <span><b>${formatNumber(sampled)}</b> sampled in <b>${formatNumber(segments.length)}</b> calls</span>
      <span>mean log-probability <b>${formatScore(mean, 3)}</b></span>
      <span class=${continuity?.ok ? "good" : "bad"}
        >${
          continuity?.ok
            ? "the context continues in every call"
            : `the context breaks in ${formatNumber(breaks.size)} of them`
        }</span
      >
      <${Legend} />
    </div>
    ${segments.map(
      (segment, index) =>
        html`<${Segment}
          key=${segment.index}
          segment=${segment}
          number=${index + 1}
          broken=${breaks.get(segment.index)}
        />`,
    )}
  </div>`;
}

function Legend() {
  return html`<span class="legend"
    ><span>likely</span>${[...STEPS, null].map((_, level) => html`<i key=${level} class=${`lp lp-${level}`}></i>`)}<span
      >unlikely</span
    ></span
  >`;
}

function Segment({ segment, number, broken }) {
  return html`<section class="segment">
    <h3>call ${number} <span class="quiet">item ${segment.index}</span></h3>
    ${
      broken &&
      html`<div class="break" role="alert">
        The context breaks at token ${formatNumber(broken.token ?? 0)}:
        ${clean(broken.reason ?? "it does not continue what was there before")}
      </div>`
    }
    <${Context} ids=${segment.context} />
    <${Sampled} segment=${segment} />
  </section>`;
}

function Context({ ids }) {
  const [open, setOpen] = useState(false);
  if (!ids.length) return null;
  const shown = open ? ids : ids.slice(0, CONTEXT_SHOWN);
  return html`<div class="context-ids">
    <button class="fold-toggle" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      ${formatNumber(ids.length)} new context tokens
    </button>
    <p class="ids">${shown.join(" ")}${shown.length < ids.length ? " …" : ""}</p>
  </div>`;
}

function Sampled({ segment }) {
  const chunks = [];
  for (let from = 0; from < segment.ids.length; from += CHUNK) chunks.push(from);
  return html`<div class=${`sampled ${segment.texts ? "texts" : ""}`}>
    ${chunks.map(
      (from) =>
        html`<${Lazy} key=${from} height=${segment.texts ? 150 : 420} eager=${from === 0}
          ><${Chunk} segment=${segment} from=${from}
        /><//>`,
    )}
  </div>`;
}

function Chunk({ segment, from }) {
  const ids = segment.ids.slice(from, from + CHUNK);
  return ids.map((id, offset) => {
    const index = from + offset;
    const value = segment.logProbs[index];
    const share =
      typeof value === "number"
        ? `${(Math.exp(value) * 100).toPrecision(3)} %, log ${value.toFixed(3)}`
        : "no log-probability";
    return html`<span key=${index} class=${`lp lp-${logProbLevel(value)}`} title=${`token ${index}, id ${id}: ${share}`}
      >${segment.texts ? clean(segment.texts[index]).replaceAll("\n", "⏎\n") : id}</span
    >`;
  });
}
