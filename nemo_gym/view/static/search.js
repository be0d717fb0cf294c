/* Full-text search of a page without a server, and the places of a match in any text. The rules are those of
`nemo_gym/view/index/search.py`, and a test compares them: which strings of a record are text, what a letter is compared as,
how a query is read, and where it matches. */

import { BLANK, SHARED, plainText } from "./shared.js";
import { outputOf } from "./record.js";

const NOT_TEXT = new Set(SHARED.search.not_text);
const ACCENT = "[\\u0300-\\u036f]";
const PART_OF_WORD = `[\\p{L}\\p{N}]|${ACCENT}`;

/** All text of a rollout, in order. */
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
  const text = strings.join("\n");
  return plainText(text.length > SHARED.search.longest ? [...text].slice(0, SHARED.search.longest).join("") : text);
}

/** Text as it is compared: without accents and capitals. */
function fold(text) {
  const plain = text.normalize("NFKD").replace(new RegExp(ACCENT, "g"), "").normalize("NFC");
  return plain.toLowerCase().replaceAll("ς", "σ");
}

export function wordsOf(text) {
  return fold(text).match(/[\p{L}\p{N}]+/gu) ?? [];
}

/** The phrases that all must occur: `{ words, exact }`; the last word of one that is not exact may go on. */
function parseSearch(text) {
  return [...text.matchAll(new RegExp(`"([^"]*)"?|([^"${SHARED.blanks}]+)`, "g"))]
    .map(([, quoted, word]) => ({ words: wordsOf(quoted ?? word), exact: quoted !== undefined }))
    .filter(({ words }) => words.length)
    .slice(0, SHARED.search.most_phrases);
}

/** A test of the words of a rollout, given as one text with a blank before and after each. */
export function searchTest(search) {
  const wanted = parseSearch(search).map(({ words, exact }) => ` ${words.join(" ")}${exact ? " " : ""}`);
  return (words) => wanted.every((phrase) => words.includes(phrase));
}

/** A function that returns where a search matches a text, phrase by phrase: an array of matches for each. */
export function searchPlaces(search) {
  const patterns = parseSearch(search).map(({ words, exact }) => {
    const spelt = words.map((word) => [...word].map((letter) => `${letter}${ACCENT}*`).join(""));
    const end = exact ? `(?!${PART_OF_WORD})` : "";
    return new RegExp(`(?<!${PART_OF_WORD})${spelt.join(`(?!${ACCENT})[^\\p{L}\\p{N}]+`)}${end}`, "gu");
  });
  return (text) => {
    const letters = letterByLetter(text);
    return patterns.map((pattern) => letters.matchAll(pattern));
  };
}

const letterFolds = new Map();

/** Text of the same length in which each letter is folded that stays one letter. */
function letterByLetter(text) {
  return text.replace(/[A-Z\u0080-\uffff]/g, (letter) => {
    if (!letterFolds.has(letter)) {
      const folded = fold(letter);
      letterFolds.set(letter, folded.length === 1 ? folded : letter);
    }
    return letterFolds.get(letter);
  });
}

/** The surroundings of the first match, on one line; null if a ligature hides it. */
export function snippetOf(text, search) {
  for (const matches of searchPlaces(search)(text)) {
    const { value: match } = matches.next();
    if (!match) continue;
    const { around } = SHARED.search;
    const end = match.index + match[0].length;
    // A character has at most two halves.
    const before = [...text.slice(Math.max(0, match.index - 2 * around), match.index)].slice(-around).join("");
    const after = [...text.slice(end, end + 2 * around)].slice(0, around).join("");
    const shown = before + text.slice(match.index, end) + after;
    const words = shown.split(new RegExp(`${BLANK}+`)).filter(Boolean).join(" ");
    return `${before.length < match.index ? "…" : ""}${words}${end + after.length < text.length ? "…" : ""}`;
  }
  return null;
}
