/* The pieces that transcripts are made of: folding text, markdown, JSON trees, pictures. */

import { html, useEffect, useMemo, useRef, useState } from "./dom.js";
import { clean, formatCount, formatNumber } from "./format.js";
import { isPicture, markdownFragment } from "./markdown.js";
import { paintCode } from "./highlight.js";
import { parsedJson } from "./record.js";

const FOLD_CHARACTERS = 3000;
const FOLD_LINES = 40;
const SHOWN_CHARACTERS = 1600;
const SHOWN_LINES = 22;
const LEAF_LONGEST = 400;
const TREE_STEP = 100;

/** The beginning of long text; null when the text is short enough to be shown. */
function foldedText(text) {
  let end = -1;
  for (let line = 0; line < FOLD_LINES; line += 1) {
    end = text.indexOf("\n", end + 1);
    if (end === -1) break;
  }
  if (text.length <= FOLD_CHARACTERS && end === -1) return null;
  const lines = text.slice(0, SHOWN_CHARACTERS).split("\n").slice(0, SHOWN_LINES);
  return lines.join("\n");
}

/** Text that shows its beginning when it is long. `draw` turns text into elements. */
function Fold({ text, open, draw }) {
  const start = useMemo(() => foldedText(text), [text]);
  const [unfolded, setUnfolded] = useState(false);
  const whole = start === null || unfolded || open;
  return html`
    ${draw(whole ? text : start)}
    ${
      start !== null &&
      !open &&
      html`<button class="fold-toggle" onClick=${() => setUnfolded(!unfolded)} aria-expanded=${unfolded}>
        ${unfolded ? "Show less" : `Show all ${formatCount(text.length, "character")}`}
      </button>`
    }
  `;
}

function Markdown({ text }) {
  const ref = useRef();
  useEffect(() => ref.current.replaceChildren(markdownFragment(text)), [text]);
  return html`<div class="prose" ref=${ref}></div>`;
}

function Plain({ text }) {
  return html`<pre class="plain">${clean(text)}</pre>`;
}

/** An argument of several lines; highlighted if its name says that it is code. */
export function CodeText({ text, name, open }) {
  const language = /code|script|source|python|command|cmd/i.test(name)
    ? "python"
    : /sql|query|js|javascript/i.test(name)
      ? "js"
      : "";
  return html`<${Fold}
    text=${text}
    open=${open}
    draw=${(shown) => html`<${PaintedText} text=${shown} language=${language} />`}
  />`;
}

function PaintedText({ text, language }) {
  const ref = useRef();
  useEffect(() => {
    ref.current.textContent = clean(text);
    paintCode(ref.current, language);
  }, [text, language]);
  return html`<pre class="plain" ref=${ref}></pre>`;
}

function Picture({ url }) {
  const [large, setLarge] = useState(false);
  if (!isPicture(url)) return html`<code class="absent">[picture not loaded: ${clean(url.slice(0, 120))}]</code>`;
  return html`<button
    class=${`picture ${large ? "large" : ""}`}
    onClick=${() => setLarge(!large)}
    aria-label="resize the picture"
  >
    <img src=${url} alt="picture of the conversation" loading="lazy" decoding="async" />
  </button>`;
}

/** A part of a message. `settings`: `{ markdown, open }`. */
export function Part({ part, settings }) {
  if (part.kind === "image") return html`<${Picture} url=${part.url} />`;
  if (part.kind === "json") return html`<${JsonTree} value=${part.value} />`;
  const draw = (text) => (settings.markdown ? html`<${Markdown} text=${text} />` : html`<${Plain} text=${text} />`);
  return html`${part.refusal && html`<span class="tag">refusal</span>`}<${Fold}
      text=${part.text}
      open=${settings.open}
      draw=${draw}
    />`;
}

/** What a tool answered: JSON as a tree, anything else as it was written. */
export function ResultPart({ part, settings }) {
  if (part.kind !== "text") return html`<${Part} part=${part} settings=${settings} />`;
  const value = parsedJson(part.text);
  if (typeof value === "object" && value !== null)
    return html`<${JsonTree} value=${value} depth=${part.text.length > FOLD_CHARACTERS ? 1 : 3} />`;
  return html`<${Fold} text=${part.text} open=${settings.open} draw=${(text) => html`<${Plain} text=${text} />`} />`;
}

/** A value as an outline that opens and closes; `depth` levels are open at first. */
export function JsonTree({ value, depth = 2 }) {
  return html`<div class="tree"><${TreeNode} value=${value} depth=${depth} last=${true} /></div>`;
}

function TreeNode({ name, value, depth, last }) {
  const label =
    name === undefined
      ? null
      : html`<span class="tree-key">${typeof name === "number" ? name : clean(name)}</span
          ><span class="tree-mark">: </span>`;
  if (value === null || typeof value !== "object")
    return html`<div class="tree-line">${label}<${Leaf} value=${value} /></div>`;
  return html`<${Branch} label=${label} value=${value} depth=${depth} last=${last} />`;
}

function Branch({ label, value, depth }) {
  const list = Array.isArray(value);
  const size = list ? value.length : Object.keys(value).length;
  const [open, setOpen] = useState(depth > 0 && size <= TREE_STEP);
  const [shown, setShown] = useState(TREE_STEP);
  const [start, end] = list ? ["[", "]"] : ["{", "}"];
  if (!size) return html`<div class="tree-line">${label}<span class="tree-mark">${start}${end}</span></div>`;
  if (isShort(value)) return html`<div class="tree-line">${label}<${Short} value=${value} /></div>`;
  const entries = () =>
    list ? value.slice(0, shown).map((entry, index) => [index, entry]) : Object.entries(value).slice(0, shown);
  return html`<div class="tree-branch">
    <button class="tree-toggle" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <span class=${`tree-arrow ${open ? "open" : ""}`}></span>${label}<span class="tree-mark">${start}</span>
      ${
        !open &&
        html`<span class="tree-size">${formatCount(size, list ? "item" : "field")}</span
          ><span class="tree-mark">${end}</span>`
      }
    </button>
    ${
      open &&
      html`<div class="tree-inner">
          ${entries().map(
            ([key, entry]) => html`<${TreeNode} key=${key} name=${key} value=${entry} depth=${depth - 1} />`,
          )}
          ${
            size > shown &&
            html`<button class="fold-toggle" onClick=${() => setShown(shown + 10 * TREE_STEP)}>
              Show more of ${formatNumber(size)}
            </button>`
          }
        </div>
        <span class="tree-mark">${end}</span>`
    }
  </div>`;
}

/** Whether a value is short enough for one line. */
function isShort(value) {
  const inner = Object.values(value);
  if (
    inner.length > 8 ||
    inner.some(
      (one) =>
        one !== null &&
        (typeof one === "object" || (typeof one === "string" && (one.length > 60 || one.includes("\n")))),
    )
  )
    return false;
  return JSON.stringify(value).length <= 84;
}

function Short({ value }) {
  const list = Array.isArray(value);
  const entries = Object.entries(value);
  return html`<span class="tree-mark">${list ? "[" : "{ "}</span>${entries.map(
      ([name, one], index) =>
        html`${index > 0 && html`<span class="tree-mark">, </span>`}${!list && html`<span class="tree-key">${clean(name)}</span><span class="tree-mark">: </span>`}<${Leaf}
            value=${one}
          />`,
    )}<span class="tree-mark">${list ? "]" : " }"}</span>`;
}

function Leaf({ value }) {
  const [open, setOpen] = useState(false);
  if (typeof value !== "string")
    return html`<span class=${`tree-${value === null ? "null" : typeof value}`}>${String(value)}</span>`;
  if (value.length <= LEAF_LONGEST)
    return html`<span class="tree-string">${value.includes("\n") ? clean(value) : `"${clean(value)}"`}</span>`;
  return html`<span class="tree-string">${clean(open ? value : value.slice(0, LEAF_LONGEST))}${!open && "…"}</span>
    <button class="fold-toggle inline" onClick=${() => setOpen(!open)}>
      ${open ? "less" : `all ${formatNumber(value.length)}`}
    </button>`;
}
