/* The conversation of a rollout: what was given, then what the model did, turn by turn. Drawn as it comes into view. */

import { Lazy, html, useMemo, useRef, useState } from "./dom.js";
import { useFoundMarks } from "./found.js";
import { clean, formatNumber } from "./format.js";
import { CodeText, JsonTree, Part, ResultPart } from "./parts.js";
import { readEntries, summaryOf, textOfEntry, tracesOf, wholeText } from "./record.js";

const FIRST_DRAWN = 6;
const GIVEN_SHOWN = 6;
const DRAWN_AT_ONCE = 60; // steps; a longer conversation is drawn as it is scrolled to, unfolded or not

export function Transcript({ record, search }) {
  const conversation = useRef();
  useFoundMarks(conversation, search);
  const entries = useMemo(() => readEntries(record), [record]);
  const traces = useMemo(() => tracesOf(record), [record]);
  const [settings, setSettings] = useState({ markdown: true, open: false });
  const given = entries.filter((entry) => !entry.made);
  const made = entries.filter((entry) => entry.made);
  // Of many steps, those out of view are dropped and redrawn when all are unfolded, because drawing all takes long.
  const many = entries.length > DRAWN_AT_ONCE;
  if (!entries.length && !traces.length) return html`<p class="quiet pad">There is no conversation in this record.</p>`;
  return html`<div class="transcript-frame">
    <${Outline} entries=${entries} />
    <div class="transcript" ref=${conversation}>
      <div class="transcript-bar">
        <button
          class="button"
          aria-pressed=${settings.markdown}
          onClick=${() => setSettings({ ...settings, markdown: !settings.markdown })}
        >
          Rendered
        </button>
        <button
          class="button"
          aria-pressed=${settings.open}
          onClick=${() => setSettings({ ...settings, open: !settings.open })}
        >
          Unfold all
        </button>
      </div>
      <${Given} entries=${given} settings=${settings} />
      ${made.length > 0 && html`<div class="rule"><span>model output from here on</span></div>`}
      ${made.map(
        (entry, index) =>
          html`<${Step}
            key=${many ? `${entry.key} ${settings.open}` : entry.key}
            entry=${entry}
            settings=${settings}
            first=${startsTurn(made, index)}
            eager=${given.length + index < FIRST_DRAWN || (settings.open && !many)}
          />`,
      )}
      ${
        record.response?.incomplete_details &&
        html`<div class="rule cut">
          <span>cut off: ${clean(record.response.incomplete_details.reason ?? "no reason given")}</span>
        </div>`
      }
      ${traces.map((trace) => html`<${Trace} key=${trace.title} trace=${trace} settings=${settings} />`)}
    </div>
  </div>`;
}

/** A chain of model calls beside the response. */
function Trace({ trace, settings }) {
  const [open, setOpen] = useState(false);
  const shown = open || settings.open;
  return html`<div class="rule"><span>${clean(trace.title)}</span></div>
    ${
      shown
        ? trace.entries.map(
            (entry, index) =>
              html`<${Step}
                key=${entry.key}
                entry=${entry}
                settings=${settings}
                first=${startsTurn(trace.entries, index)}
              />`,
          )
        : html`<button class="hidden-steps" onClick=${() => setOpen(true)}>
            ${formatNumber(trace.entries.length)} steps of calls that are not in the response
          </button>`
    }`;
}

function startsTurn(entries, index) {
  return entries[index].turn > 0 && (index === 0 || entries[index - 1].turn !== entries[index].turn);
}

/** A long prompt with worked examples shows its beginning and its end. */
function Given({ entries, settings }) {
  const [whole, setWhole] = useState(false);
  const hidden = whole || settings.open || entries.length <= GIVEN_SHOWN ? 0 : entries.length - 4;
  const draw = (entry) =>
    html`<${Step} key=${entry.key} entry=${entry} settings=${settings} eager=${entries.length <= DRAWN_AT_ONCE} />`;
  if (!hidden) return entries.map(draw);
  return html`${entries.slice(0, 2).map(draw)}
    <button class="hidden-steps" onClick=${() => setWhole(true)}>
      ${formatNumber(hidden)} more steps of the prompt
    </button>
    ${entries.slice(-2).map(draw)}`;
}

function Outline({ entries }) {
  const made = entries.filter((entry) => entry.made);
  const jump = (entry) => document.getElementById(`step-${entry.key}`)?.scrollIntoView({ block: "start" });
  return html`<nav class="outline" aria-label="steps of the rollout">
    <ol>
      ${made.map(
        (entry, index) =>
          html`<li key=${entry.key} class=${startsTurn(made, index) ? "first" : ""}>
            <button onClick=${() => jump(entry)}>
              <span class="outline-turn">${startsTurn(made, index) ? entry.turn : ""}</span
              ><span class=${`outline-kind ${entry.kind}`}
                >${entry.kind === "call" ? clean(entry.name) : clean(entry.label)}</span
              >
            </button>
          </li>`,
      )}
    </ol>
  </nav>`;
}

/** Estimated height of an entry, so that the scroll bar is about right before it is drawn. */
function guessedHeight(entry) {
  const length =
    Math.min(textOfEntry(entry).length, 1600) + (entry.result ? Math.min(textOfEntry(entry.result).length, 1600) : 0);
  return entry.kind === "reasoning" ? 48 : 60 + (length / 90) * 21;
}

export function Step({ entry, settings, first, eager, mark, id = `step-${entry.key}` }) {
  return html`<section id=${id} class=${`step ${entry.kind} ${entry.made ? "made" : "given"} ${first ? "first" : ""}`}>
    <div class="who">
      ${first && html`<span class="turn">turn ${entry.turn}</span>`}<span
        class=${`role ${entry.kind} ${entry.role ?? ""}`}
        >${clean(entry.label)}</span
      >
    </div>
    <div class="what">
      <${Lazy} height=${guessedHeight(entry)} eager=${eager}
        ><${StepBody} entry=${entry} settings=${settings} mark=${mark}
      /><//>
    </div>
  </section>`;
}

function StepBody({ entry, settings, mark }) {
  if (mark) return html`<${Marked} entry=${entry} mark=${mark} />`;
  if (entry.kind === "call") return html`<${Call} entry=${entry} settings=${settings} />`;
  if (entry.kind === "reasoning") return html`<${Reasoning} entry=${entry} settings=${settings} />`;
  if (!entry.parts.length) return html`<span class="quiet">(empty)</span>`;
  const draw = entry.kind === "result" ? ResultPart : Part;
  return entry.parts.map((part, index) => html`<${draw} key=${index} part=${part} settings=${settings} />`);
}

function Reasoning({ entry, settings }) {
  const [open, setOpen] = useState(false);
  const shown = open || settings.open;
  const text = textOfEntry(entry);
  return html`<div class="reasoning-box">
    <button class="reasoning-toggle" aria-expanded=${shown} onClick=${() => setOpen(!open)}>
      <span class=${`tree-arrow ${shown ? "open" : ""}`}></span
      ><span>${shown ? `${formatNumber(text.length)} characters` : clean(summaryOf(entry, 150) || "empty")}</span>
    </button>
    ${shown && entry.parts.map((part, index) => html`<${Part} key=${index} part=${part} settings=${settings} />`)}
  </div>`;
}

function Call({ entry, settings }) {
  return html`<div class="call-box">
    <div class="call-head">
      <span class="call-name">${clean(entry.name)}</span><${ShortArguments} args=${entry.args} />
    </div>
    ${
      !areShort(entry.args) &&
      html`<div class="call-arguments">
        ${
          entry.args !== null && typeof entry.args === "object"
            ? html`<${Arguments} args=${entry.args} settings=${settings} />`
            : html`<${ResultPart} part=${{ kind: "text", text: String(entry.args) }} settings=${settings} />`
        }
      </div>`
    }
    ${
      entry.result
        ? html`<div class="call-result">
            <span class="result-mark" aria-label="result">→</span>
            <div>
              ${
                entry.result.parts.length
                  ? entry.result.parts.map(
                      (part, index) => html`<${ResultPart} key=${index} part=${part} settings=${settings} />`,
                    )
                  : html`<span class="quiet">(empty)</span>`
              }
            </div>
          </div>`
        : html`<div class="call-result">
            <span class="result-mark" aria-hidden="true">→</span><span class="quiet">no result was recorded</span>
          </div>`
    }
  </div>`;
}

/** Arguments with text of several lines, code mostly, are read as text; all others as a tree. */
function Arguments({ args, settings }) {
  const long = Object.entries(args).filter(([, value]) => typeof value === "string" && value.includes("\n"));
  if (Array.isArray(args) || !long.length) return html`<${JsonTree} value=${args} />`;
  const rest = Object.fromEntries(Object.entries(args).filter(([name]) => !long.some(([other]) => other === name)));
  return html`${Object.keys(rest).length > 0 && html`<${JsonTree} value=${rest} />`}
  ${long.map(
    ([name, value]) =>
      html`<div key=${name} class="long-argument">
        <span class="tree-key">${clean(name)}</span><${CodeText} text=${value} name=${name} open=${settings.open} />
      </div>`,
  )}`;
}

function areShort(args) {
  if (args === null || args === undefined || args === "") return true;
  if (typeof args !== "object" || Array.isArray(args)) return false;
  return (
    JSON.stringify(args).length <= 90 &&
    Object.values(args).every((value) => value === null || (typeof value !== "object" && !String(value).includes("\n")))
  );
}

function ShortArguments({ args }) {
  if (!areShort(args) || !args) return null;
  return html`<span class="call-short"
    >(${Object.entries(args).map(
      ([name, value], index) =>
        html`${index > 0 && ", "}<span class="tree-key">${clean(name)}</span>=<span
            class=${typeof value === "string" ? "tree-string" : "tree-number"}
            >${clean(JSON.stringify(value))}</span
          >`,
    )})</span
  >`;
}

/** The text of an entry with the part marked in which it differs from another. */
function Marked({ entry, mark: [from, to] }) {
  const text = wholeText(entry);
  const before = from > 1500 ? `…${text.slice(from - 1200, from)}` : text.slice(0, from);
  const after = text.length - to > 1500 ? `${text.slice(to, to + 1200)}…` : text.slice(to);
  return html`<pre class="plain marked">
${clean(before)}<mark>${clean(text.slice(from, Math.min(to, from + 6000))) || "‸"}</mark>${clean(after)}</pre>`;
}
