/* Markdown by a hostile author as harmless elements.

Three lines of defence: HTML in the text stays text, whatever marked and KaTeX produce goes through an allowlist of tags
and attributes, and the page's policy forbids scripts, styles and requests of any other origin. */

import { clean } from "./format.js";
import { paintCode } from "./highlight.js";

const HTML_TAGS = [
  "p",
  "br",
  "hr",
  "h1",
  "h2",
  "h3",
  "h4",
  "h5",
  "h6",
  "strong",
  "em",
  "del",
  "code",
  "pre",
  "blockquote",
  "ul",
  "ol",
  "li",
  "table",
  "thead",
  "tbody",
  "tr",
  "th",
  "td",
  "a",
  "img",
  "span",
];
const MATH_TAGS = [
  "math",
  "semantics",
  "mrow",
  "mi",
  "mn",
  "mo",
  "mtext",
  "ms",
  "mspace",
  "msup",
  "msub",
  "msubsup",
  "mfrac",
  "msqrt",
  "mroot",
  "mtable",
  "mtr",
  "mtd",
  "mover",
  "munder",
  "munderover",
  "mstyle",
  "menclose",
  "mpadded",
  "mphantom",
  "mmultiscripts",
  "mprescripts",
];
const HTML_ATTRIBUTES = ["href", "src", "alt", "title", "start", "align", "data-language"];
const MATH_ATTRIBUTES = [
  "display",
  "mathvariant",
  "stretchy",
  "fence",
  "separator",
  "lspace",
  "rspace",
  "accent",
  "accentunder",
  "linethickness",
  "columnalign",
  "rowspacing",
  "columnspacing",
  "columnlines",
  "rowlines",
  "scriptlevel",
  "displaystyle",
  "minsize",
  "maxsize",
  "width",
  "height",
  "depth",
  "voffset",
  "notation",
  "mathcolor",
  "symmetric",
  "largeop",
  "movablelimits",
  "encoding",
];
const PICTURE = /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+$/;
const WEB_LINK = /^(?:https?:|mailto:)/i;
const MATH_LONGEST = 5000;
// The time that the parser takes can grow with the square of the length, so what it gets at once is short.
const WHOLE_LONGEST = 16_000;
const PIECE_LONGEST = 4000;
const MARKDOWN_LONGEST = 300_000;
const DEEPEST_QUOTE = 20;
const DEEP_QUOTE = /^(?:[ \t]*>){20,}/gm;
const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;

const purifier = globalThis.DOMPurify;
const sanitised = {
  ALLOWED_TAGS: [...HTML_TAGS, ...MATH_TAGS],
  ALLOWED_ATTR: [...HTML_ATTRIBUTES, ...MATH_ATTRIBUTES],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** Whether a URL is an embedded image, which needs no request. */
export function isPicture(url) {
  return PICTURE.test(url);
}

function escapeHtml(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}

function mathHtml(tex, display) {
  if (tex.length > MATH_LONGEST) return `<code>${escapeHtml(tex)}</code>`;
  try {
    const options = {
      output: "mathml",
      displayMode: display,
      throwOnError: true,
      trust: false,
      strict: "ignore",
      maxExpand: 200,
      maxSize: 10,
    };
    const made = globalThis.katex.renderToString(tex, options);
    return made.replace(/<annotation[\s\S]*?<\/annotation>/g, "");
  } catch {
    return `<code>${escapeHtml(tex)}</code>`;
  }
}

const MATH_FORMS = [
  { open: "$$", pattern: /^\$\$([\s\S]+?)\$\$/, display: true },
  { open: "\\[", pattern: /^\\\[([\s\S]+?)\\\]/, display: true },
  { open: "\\(", pattern: /^\\\(([\s\S]+?)\\\)/, display: false },
  // Prices are not mathematics: no space inside the dollars, no digit after them.
  { open: "$", pattern: /^\$(?!\s)((?:[^$\\\n]|\\[^\n])+?)(?<!\s)\$(?!\d)/, display: false },
];

const MATH_STARTS = { block: /(?<=\n)(?:\$\$|\\\[)/, inline: /\$|\\\(|\\\[/ };

function mathExtension(level) {
  return {
    name: `math_${level}`,
    level,
    start: (text) => {
      const found = MATH_STARTS[level].exec(text);
      return found ? found.index : undefined;
    },
    tokenizer: (text) => {
      for (const form of MATH_FORMS) {
        if (!text.startsWith(form.open) || (level === "block" && !form.display)) continue;
        const match = form.pattern.exec(text);
        if (match) return { type: `math_${level}`, raw: match[0], tex: match[1], display: form.display };
      }
      return undefined;
    },
    renderer: ({ tex, display }) => mathHtml(tex, display),
  };
}

const parser = new globalThis.marked.Marked({ gfm: true, breaks: true });
parser.use({
  extensions: [mathExtension("block"), mathExtension("inline")],
  renderer: {
    html: ({ text }) => escapeHtml(text),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    code: ({ text, lang }) => `<pre><code data-language="${escapeHtml(lang ?? "")}">${escapeHtml(text)}</code></pre>`,
    image({ href, text }) {
      if (isPicture(href)) return `<img src="${escapeHtml(href)}" alt="${escapeHtml(text)}">`;
      return `<code>[picture not loaded: ${escapeHtml(text || "no description")} · ${escapeHtml(href.slice(0, 120))}]</code>`;
    },
    link({ href, text, tokens }) {
      const inner = tokens ? this.parser.parseInline(tokens) : escapeHtml(text);
      if (!WEB_LINK.test(href)) return `${inner} <code>${escapeHtml(href.slice(0, 120))}</code>`;
      return `<a href="${escapeHtml(href)}" title="${escapeHtml(href)}">${inner}</a>`;
    },
  },
});

/** Text in pieces for the parser: cut between paragraphs where possible, else between lines, else anywhere. A block of
 * code that is cut goes on in the next piece. */
function markdownPieces(text) {
  if (text.length <= WHOLE_LONGEST) return [text];
  const pieces = [];
  let [piece, size, fence] = [[], 0, null];
  const cut = () => {
    if (fence) piece.push(fence.mark);
    pieces.push(piece.join("\n"));
    [piece, size] = [fence ? [fence.opening] : [], 0];
  };
  for (const line of shortLines(text)) {
    if (size && size + line.length > PIECE_LONGEST) cut();
    piece.push(line);
    size += line.length + 1;
    const match = FENCE.exec(line);
    if (fence && match?.[1].startsWith(fence.mark) && !match[2].trim()) fence = null;
    else if (!fence && match) fence = { mark: match[1].slice(0, 20), opening: line.slice(0, 80) };
    if (!fence && !line.trim() && size > PIECE_LONGEST / 2) cut();
  }
  cut();
  return pieces;
}

function* shortLines(text) {
  for (const line of text.split("\n"))
    for (let at = 0; at === 0 || at < line.length; at += PIECE_LONGEST) yield line.slice(at, at + PIECE_LONGEST);
}

function markdownHtml(text) {
  try {
    return parser.parse(text);
  } catch {
    // Endless nesting is an attack or an accident; the text itself is always worth showing.
    return `<pre>${escapeHtml(text)}</pre>`;
  }
}

/** A fragment of harmless elements. */
export function markdownFragment(text) {
  const shown = clean(text).replace(DEEP_QUOTE, "> ".repeat(DEEPEST_QUOTE));
  const made =
    shown.length > MARKDOWN_LONGEST
      ? `<pre>${escapeHtml(shown)}</pre>`
      : markdownPieces(shown).map(markdownHtml).join("");
  const fragment = purifier.sanitize(made, sanitised);
  for (const link of fragment.querySelectorAll("a")) {
    link.rel = "noopener noreferrer nofollow";
    link.target = "_blank";
  }
  for (const picture of fragment.querySelectorAll("img")) {
    if (!isPicture(picture.getAttribute("src") ?? "")) picture.remove();
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = document.createElement("div");
    frame.className = "wide";
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const code of fragment.querySelectorAll("pre code")) paintCode(code, code.dataset.language ?? "");
  return fragment;
}
