/* Numbers and times as text. What is missing is a dash, never "null". */

import { SHARED } from "./shared.js";

export const DASH = "–";
const integers = new Intl.NumberFormat("en-US");
// Characters that reverse what follows them, or that are invisible.
const UNSEEN = new RegExp(SHARED.control, "gu");

/** Text that is safe to show: uniform line ends, invisible control characters replaced. */
export function clean(text) {
  return String(text).replaceAll("\r\n", "\n").replace(UNSEEN, "\ufffd");
}

/** Text as a literal of the filter language. */
export function quoteText(text) {
  return `"${text.replace(/[\\"]/g, "\\$&")}"`;
}

const PLAIN_NAME = /^[A-Za-z_][\w.]*$/;
const RESERVED = new Set([...SHARED.filter.words, ...Object.keys(SHARED.filter.constants)]);

/** A column's name as filters write it. */
export function quoteName(name) {
  return PLAIN_NAME.test(name) && !RESERVED.has(name.toLowerCase()) ? name : `\`${name}\``;
}

/** The filter that compares a column with a value. */
export function valueFilter(name, value, operator = "==") {
  const text = typeof value === "string" ? quoteText(value) : String(value);
  return `${quoteName(name)} ${operator} ${text}`;
}

/** A change, with its sign. */
export function signed(value, places = 3) {
  if (typeof value !== "number" || !Number.isFinite(value)) return DASH;
  const text = formatScore(Math.abs(value), places);
  return `${Number(text) === 0 ? "±" : value > 0 ? "+" : "−"}${text}`;
}

export function formatNumber(value, digits = 3) {
  if (typeof value === "boolean") return value ? "true" : "false";
  if (typeof value !== "number" || !Number.isFinite(value)) return DASH;
  if (Number.isInteger(value)) return integers.format(value);
  const size = Math.abs(value);
  if (size >= 1000) return integers.format(Math.round(value));
  if (size < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(size < 1 ? digits : digits + 1)));
}

/** A mean or a reward: always the same number of decimals, so that columns line up. */
export function formatScore(value, places = 2) {
  if (typeof value !== "number" || !Number.isFinite(value)) return DASH;
  return Math.abs(value) >= 1000 ? formatNumber(value) : fixed(value, places);
}

/** A number with so many decimals; what rounds to zero has no sign. */
function fixed(value, places) {
  const text = value.toFixed(places);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

export function formatReward(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return DASH;
  if (Number.isInteger(value)) return integers.format(value);
  return Math.abs(value) >= 100 ? formatNumber(value) : fixed(value, 2);
}

export function formatPercent(value) {
  if (typeof value !== "number") return DASH;
  const percent = value * 100;
  return `${percent > 0 && percent < 10 ? percent.toFixed(1) : Math.round(percent)} %`;
}

export function formatDuration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return DASH;
  if (seconds > 0 && seconds < 0.0000995) return `${Number((seconds * 1e6).toPrecision(2))} µs`;
  if (seconds > 0 && seconds < 0.00995) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(seconds < 9.95 ? 2 : 1)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function formatBytes(bytes) {
  if (typeof bytes !== "number") return DASH;
  if (bytes < 1000) return `${bytes} B`;
  const units = ["kB", "MB", "GB", "TB"];
  const step = Math.min(Math.floor(Math.log10(bytes) / 3), units.length);
  const value = bytes / 1000 ** step;
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[step - 1]}`;
}

export function formatCount(count, noun) {
  return `${integers.format(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** A value of the table or of the verification, formatted by its column. */
export function formatField(name, value) {
  if (value === null || value === undefined) return DASH;
  if (name === "bytes") return formatBytes(value);
  if (name === "duration" || name.endsWith("_duration_s")) return formatDuration(value);
  if (typeof value === "number" || typeof value === "boolean") return formatNumber(value);
  return clean(typeof value === "string" ? value : JSON.stringify(value));
}
