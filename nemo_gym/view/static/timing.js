/* Steps with a beginning and an end, wherever a record has them: a list `timing` of the record or of its response, or
times on the output items. In seconds from the first start. */

import { outputOf } from "./record.js";

const STARTS = ["start", "started_at", "start_s", "start_time"];
const ENDS = ["end", "ended_at", "end_s", "end_time", "completed_at"];
const LENGTHS = ["duration", "duration_s", "seconds", "elapsed_s"];

export function stepsOf(record) {
  const listed = [record.timing, record._ng_timing, record.response?.timing].find(Array.isArray);
  const steps = (listed ?? outputOf(record)).map(stepOf).filter(Boolean);
  const first = Math.min(...steps.map((step) => step.start));
  return steps.map((step) => ({ ...step, start: step.start - first, end: step.end - first }));
}

function stepOf(entry, index) {
  const start = secondsOf(entry, STARTS);
  if (start === null) return null;
  const length = secondsOf(entry, LENGTHS);
  const end = secondsOf(entry, ENDS) ?? (length === null ? null : start + length);
  if (end === null || end < start) return null;
  const label = [entry.name, entry.step, entry.label, entry.role, entry.type].find((name) => typeof name === "string");
  const kind = String(entry.kind ?? entry.type ?? "");
  return { label: label ?? `step ${index + 1}`, start, end, tool: /tool|call_output|resource/.test(kind), index };
}

function secondsOf(entry, names) {
  for (const name of names) {
    const value = entry?.[name];
    if (typeof value === "number" && Number.isFinite(value)) return value;
    if (typeof value === "string" && !Number.isNaN(Date.parse(value))) return Date.parse(value) / 1000;
  }
  return null;
}
