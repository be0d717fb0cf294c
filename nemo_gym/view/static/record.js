/* A record as a person reads it: entries in order, calls with their results, turns counted, fields of the verification.

Pure: what a rollout file holds goes in, plain objects come out. Whatever the record holds gets an entry; an item of an
unknown kind is kept as JSON. */

import { SHARED } from "./shared.js";

// Those that are shown elsewhere on the page.
const SHOWN_ELSEWHERE = new Set([...SHARED.record.not_fields, "output", "traces", "timing", "error_message"]);
const INCIDENTAL = new Set(SHARED.record.incidental);
const THOUGHT = /^\s*<think>([\s\S]*?)<\/think>\s*/;
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** What the model produced: `response.output`, or a top-level `output` as older files have it. */
export function outputOf(record) {
  if (Array.isArray(record?.response?.output)) return record.response.output;
  return Array.isArray(record?.output) ? record.output : [];
}

export function givenOf(record) {
  const given = record?.responses_create_params;
  if (!isObject(given)) return [];
  const system = given.instructions ? [{ role: "system", content: given.instructions }] : [];
  const input = typeof given.input === "string" ? [{ role: "user", content: given.input }] : given.input;
  return [...system, ...(Array.isArray(input) ? input : [])];
}

/** All entries of a rollout; `made` is false for what the model was given. */
export function readEntries(record) {
  return [...entriesOf(givenOf(record), false), ...entriesOf(outputOf(record), true)];
}

/** The chains of model calls beside the response, such as those of sub-agents: what each is, and its entries. */
export function tracesOf(record) {
  const traces = Array.isArray(record?.traces) ? record.traces : [];
  const others = traces.map((trace, number) => [trace, number]).filter(([trace]) => Array.isArray(trace?.output));
  return others.map(([trace, number]) => {
    const parts = [...entriesOf(Array.isArray(trace.input) ? trace.input : [], false), ...entriesOf(trace.output, true)];
    return { title: titleOfTrace(trace, number), entries: parts.map((one) => ({ ...one, key: `t${number}${one.key}` })) };
  });
}

function titleOfTrace(trace, number) {
  const parent = trace.parent ? `trace ${trace.parent}` : "the response";
  const origin = trace.reason ? String(trace.reason).replaceAll("_", " ") : `goes on from ${parent}`;
  const calls = trace.auxiliary ? "beside the work" : trace.thread && String(trace.thread);
  const use = trace.trained === false && !trace.auxiliary ? "repeated, not used" : null;
  return [`trace ${number}`, calls, origin, use].filter(Boolean).join(" · ");
}

export function entriesOf(items, made) {
  const entries = [];
  const calls = new Map();
  let turn = 0;
  let speaking = false;
  items.forEach((item, index) => {
    const own = entriesOfItem(isObject(item) ? item : { type: "?", value: item });
    const byModel = made && own.every((entry) => entry.byModel);
    if (byModel && !speaking) turn += 1;
    speaking = byModel;
    for (const entry of own) {
      const call = entry.kind === "result" && calls.get(entry.callId);
      if (call && !call.result) {
        call.result = { ...entry, index };
        continue;
      }
      entries.push({ ...entry, item, index, made, turn, key: `${made ? "o" : "i"}${index}.${entries.length}` });
      if (entry.kind === "call" && entry.callId) calls.set(entry.callId, entries.at(-1));
    }
  });
  return entries;
}

function entriesOfItem(item) {
  const { type, role } = item;
  if (type === "function_call" || type === "custom_tool_call")
    return [callOf(item.name, item.arguments ?? item.input, item.call_id)];
  if (type === "function_call_output" || type === "custom_tool_call_output")
    return [resultOf(item.output, item.call_id)];
  if (role === "tool") return [resultOf(item.content, item.tool_call_id)];
  if (type === "reasoning") {
    const parts = [...partsOf(item.summary), ...partsOf(item.content)];
    const hidden = item.encrypted_content ? [{ kind: "text", text: "(encrypted)" }] : [];
    return [{ kind: "reasoning", label: "reasoning", byModel: true, parts: parts.length ? parts : hidden }];
  }
  if (typeof role === "string") return messageOf(item, role);
  const byModel = !String(type ?? "").endsWith("_output");
  const call = byModel && String(type ?? "").endsWith("_call");
  return [
    {
      kind: call ? "call" : "other",
      label: String(type ?? "?"),
      name: String(type ?? "?"),
      byModel,
      args: item,
      parts: [{ kind: "json", value: item }],
    },
  ];
}

function messageOf(item, role) {
  const byModel = role === "assistant";
  const entries = [];
  let parts = partsOf(item.content);
  const thought = item.reasoning_content ?? item.reasoning;
  if (byModel && typeof thought === "string" && thought) entries.push(reasoningOf(thought));
  const inText = byModel && parts[0]?.kind === "text" && THOUGHT.exec(parts[0].text);
  if (inText) {
    entries.push(reasoningOf(inText[1]));
    parts = [{ kind: "text", text: parts[0].text.slice(inText[0].length) }, ...parts.slice(1)].filter(
      (part) => part.text !== "",
    );
  }
  const calls = Array.isArray(item.tool_calls) ? item.tool_calls : [];
  if (parts.length || (!calls.length && !entries.length))
    entries.push({ kind: "message", label: role, role, byModel, parts });
  for (const call of calls)
    entries.push(callOf(call?.function?.name ?? "?", call?.function?.arguments ?? call, call?.id));
  return entries;
}

function reasoningOf(text) {
  return { kind: "reasoning", label: "reasoning", byModel: true, parts: [{ kind: "text", text: text.trim() }] };
}

function callOf(name, args, callId) {
  return {
    kind: "call",
    label: "call",
    name: String(name ?? "?"),
    byModel: true,
    args: parsedJson(args),
    callId,
    parts: [],
  };
}

function resultOf(output, callId) {
  return { kind: "result", label: "result", byModel: false, callId, parts: partsOf(output) };
}

/** JSON text as a value; anything else as it is. */
export function parsedJson(value) {
  if (typeof value !== "string" || !/^\s*[[{]/.test(value)) return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

function partsOf(content) {
  if (content === null || content === undefined || content === "") return [];
  if (typeof content === "string") return [{ kind: "text", text: content }];
  return Array.isArray(content) ? content.map(partOf) : [{ kind: "json", value: content }];
}

function partOf(part) {
  if (typeof part === "string") return { kind: "text", text: part };
  if (!isObject(part)) return { kind: "json", value: part };
  if (typeof part.text === "string") return { kind: "text", text: part.text };
  if (typeof part.refusal === "string") return { kind: "text", text: part.refusal, refusal: true };
  const url = part.image_url?.url ?? part.image_url;
  if (typeof url === "string") return { kind: "image", url };
  return { kind: "json", value: part };
}

export function textOfEntry(entry) {
  const own = entry.parts
    .map((part) => part.text ?? (part.kind === "json" ? JSON.stringify(part.value) : ""))
    .join("\n");
  if (entry.kind !== "call") return own;
  return `${entry.name} ${typeof entry.args === "string" ? entry.args : JSON.stringify(entry.args)}`;
}

/** The text of an entry and, of a call, of its result. */
export function wholeText(entry) {
  return entry.result ? `${textOfEntry(entry)}\n→ ${textOfEntry(entry.result)}` : textOfEntry(entry);
}

/** One line that says what an entry is about. */
export function summaryOf(entry, room = 60) {
  const text =
    entry.kind === "call"
      ? entry.name
      : textOfEntry(entry)
          .slice(0, 4 * room)
          .replace(/\s+/g, " ")
          .trim();
  return text.length > room ? `${text.slice(0, room - 1)}…` : text;
}

/** The index of the first item in which two prompts and two outputs differ, ids and tokens aside; null for none. */
export function firstDifference(left, right) {
  return {
    prompt: differingItem(givenOf(left), givenOf(right)),
    item: differingItem(outputOf(left), outputOf(right)),
  };
}

function differingItem(one, other) {
  const shorter = Math.min(one.length, other.length);
  for (let index = 0; index < shorter; index += 1) if (!isEqual(one[index], other[index])) return index;
  return one.length === other.length ? null : shorter;
}

function isEqual(one, other) {
  if (Array.isArray(one) && Array.isArray(other))
    return one.length === other.length && one.every((value, index) => isEqual(value, other[index]));
  if (!isObject(one) || !isObject(other)) return one === other;
  const names = (value) => Object.keys(value).filter((name) => !INCIDENTAL.has(name));
  const mine = names(one);
  return (
    mine.length === names(other).length &&
    mine.every((name) => Object.hasOwn(other, name) && isEqual(one[name], other[name]))
  );
}

/** The fields of the verification: scalars by name (one level of nesting as `a.b`), and whatever is larger. */
export function fieldsOf(record) {
  const short = [];
  const long = [];
  const sort = (name, value) => {
    if (value === null || value === undefined) return;
    if (typeof value === "object" || String(value).length > SHARED.record.longest_field) long.push([name, value]);
    else short.push([name, value]);
  };
  sort("HTTP body", record._ng_http_body);
  for (const [name, value] of Object.entries(record)) {
    if (SHOWN_ELSEWHERE.has(name) || name.startsWith(SHARED.record.bookkeeping)) continue;
    if (isObject(value) && Object.values(value).every((inner) => inner === null || typeof inner !== "object")) {
      for (const [inner, scalar] of Object.entries(value)) sort(`${name}.${inner}`, scalar);
    } else sort(name, value);
  }
  return { short, long };
}

/** The facts that the run recorded of a rollout. */
export function factsOf(record) {
  const usage = record.response?.usage ?? {};
  const facts = [
    ["model", record.response?.model],
    ["input tokens", usage.input_tokens],
    ["output tokens", usage.output_tokens],
    ["reasoning tokens", usage.output_tokens_details?.reasoning_tokens || null],
    ["temperature", record.responses_create_params?.temperature],
    ["attempt", record._ng_attempt],
    ["duration", record._ng_duration_s],
    ["HTTP status", record._ng_http_status],
    ["cut off", record.response?.incomplete_details?.reason],
  ];
  return facts.filter(([, value]) => value !== null && value !== undefined && typeof value !== "object");
}
