/* Steps with a beginning and an end in a record of which no steps were recorded beside it: a list `timing` of the record
or of its response, or times on the output items. As a waterfall, in seconds from the first start. */

import { outputOf } from "./record.js";

const STARTS = ["start", "started_at", "start_s", "start_time"];
const ENDS = ["end", "ended_at", "end_s", "end_time", "completed_at"];
const LENGTHS = ["duration", "duration_s", "seconds", "elapsed_s"];

/** The waterfall of a record's own times; null if it has none. */
export function ownTiming(record) {
  const listed = [record.timing, record._ng_timing, record.response?.timing].find(Array.isArray);
  const steps = (listed ?? outputOf(record)).map(stepOf).filter(Boolean);
  if (!steps.length) return null;
  const first = steps.reduce((low, step) => Math.min(low, step.start), Infinity);
  const last = steps.reduce((high, step) => Math.max(high, step.start + step.duration), -Infinity);
  const shifted = steps.map((step) => ({ ...step, start: step.start - first }));
  return { duration: last - first, end: last - first, shares: [], steps: shifted };
}

function stepOf(entry, index) {
  const start = secondsOf(entry, STARTS);
  if (start === null) return null;
  const length = secondsOf(entry, LENGTHS);
  const end = secondsOf(entry, ENDS) ?? (length === null ? null : start + length);
  if (end === null || end < start) return null;
  const label = [entry.name, entry.step, entry.label, entry.role, entry.type].find((name) => typeof name === "string");
  const kind = /tool|call_output|resource/.test(String(entry.kind ?? entry.type ?? "")) ? "tool" : "model";
  return { label: label ?? `step ${index + 1}`, kind, start, duration: end - start, depth: 0 };
}

function secondsOf(entry, names) {
  for (const name of names) {
    const value = entry?.[name];
    if (typeof value === "number" && Number.isFinite(value)) return value;
    if (typeof value === "string" && !Number.isNaN(Date.parse(value))) return Date.parse(value) / 1000;
  }
  return null;
}
