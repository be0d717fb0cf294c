/* Full-text search of a page without a server. The rules are those of `nemo_gym/view/search.py`, and a test compares
them: which strings of a record are text, what a letter is compared as, and how a query is read. */

import { outputOf } from "./record.js";

const NOT_TEXT = new Set([
  "call_id",
  "encrypted_content",
  "file_data",
  "id",
  "image_url",
  "logprobs",
  "role",
  "status",
  "tool_call_id",
  "type",
]);
const LONGEST_TEXT = 2_000_000;
const MOST_PHRASES = 20;
const AROUND = 60;

/** All that was said in a rollout, in order. */
export function searchableText(record) {
  const { instructions, input } = record.responses_create_params ?? {};
  const details = record.response?.incomplete_details;
  const waiting = [record._ng_http_body, record.error_message, details, outputOf(record), input, instructions];
  const strings = [];
  while (waiting.length) {
    const value = waiting.pop();
    if (typeof value === "string") strings.push(value);
    else if (Array.isArray(value)) for (let at = value.length - 1; at >= 0; at -= 1) waiting.push(value[at]);
    else if (value && typeof value === "object")
      for (const name of Object.keys(value).reverse()) if (!NOT_TEXT.has(name)) waiting.push(value[name]);
  }
  return strings.join("\n").slice(0, LONGEST_TEXT);
}

/** The words of text as they are compared: without accents and capitals. */
export function wordsOf(text) {
  const plain = text
    .normalize("NFKD")
    .replace(/[\u0300-\u036f]/g, "")
    .normalize("NFC")
    .toLowerCase()
    .replaceAll("ς", "σ");
  return plain.match(/[\p{L}\p{N}]+/gu) ?? [];
}

/** The phrases that all must occur: `{ words, exact }`; the last word of one that is not exact may go on. */
function parseSearch(text) {
  return [...text.matchAll(/"([^"]*)"?|([^\s"]+)/g)]
    .map(([, quoted, word]) => ({ words: wordsOf(quoted ?? word), exact: quoted !== undefined }))
    .filter(({ words }) => words.length)
    .slice(0, MOST_PHRASES);
}

/** A test of the words of a rollout, given as one text with a blank before and after each. */
export function searchTest(search) {
  const wanted = parseSearch(search).map(({ words, exact }) => ` ${words.join(" ")}${exact ? " " : ""}`);
  return (words) => wanted.every((phrase) => words.includes(phrase));
}

/** The surroundings of the first match, on one line; null if accents hide it. */
export function snippetOf(text, search) {
  for (const { words } of parseSearch(search)) {
    const match = new RegExp(`(?<![\\p{L}\\p{N}])${words.join("[^\\p{L}\\p{N}]+")}`, "iu").exec(text);
    if (!match) continue;
    const [start, stop] = [Math.max(0, match.index - AROUND), match.index + match[0].length + AROUND];
    const shown = text.slice(start, stop).split(/\s+/).filter(Boolean).join(" ");
    return `${start ? "…" : ""}${shown}${stop < text.length ? "…" : ""}`;
  }
  return null;
}
