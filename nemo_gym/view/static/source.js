/* The page's only access to data: a server, or what was embedded in an exported page. Both reply the same calls. */

import { EmbeddedSource } from "./embedded.js";

/** The server's refusal: what is wrong, what to do, and for filters at which character. */
class SourceError extends Error {
  constructor(message, { hint = null, position = null, status = 0 } = {}) {
    super(message);
    Object.assign(this, { hint, position, status });
  }
}

class HttpSource {
  constructor() {
    this.live = true;
    this.etag = null;
    this.marking = Promise.resolve();
  }

  async get(path, parameters = {}, signal = undefined, headers = {}) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(parameters)) {
      if (value !== "" && value !== null && value !== undefined) query.set(name, value);
    }
    const text = String(query);
    let reply;
    try {
      reply = await fetch(`api/${path}${text ? `?${text}` : ""}`, { signal, headers, cache: "no-store" });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new SourceError("the viewer's server does not reply", { hint: "is ng_viewer still running?" });
    }
    if (reply.status === 304) return null;
    if (!reply.ok) throw await refusal(reply);
    this.etag = path === "state" ? reply.headers.get("etag") : this.etag;
    return reply.json();
  }

  /** Null when nothing changed since the last call. */
  state(signal) {
    return this.get("state", {}, signal, this.etag ? { "If-None-Match": this.etag } : {});
  }

  columns(signal) {
    return this.get("columns", {}, signal).then((reply) => reply.columns);
  }

  rollouts(query, signal) {
    return this.get("rollouts", query, signal);
  }

  groups(query, signal) {
    return this.get("groups", query, signal);
  }

  rollout(id, selection, signal) {
    return this.get(`rollout/${encodeURIComponent(id)}`, selection, signal);
  }

  overview(selection, signal) {
    const { filter, search, threshold } = selection;
    return this.get("overview", { filter, search, threshold }, signal);
  }

  scatter({ x, y, filter, search }, signal) {
    return this.get("scatter", { x, y, filter, search }, signal);
  }

  audit(signal) {
    return this.get("audit", {}, signal);
  }

  timing({ run, filter, search }, signal) {
    return this.get("timing", { run, filter, search }, signal);
  }

  compare(a, b, signal) {
    return this.get("compare", { a, b }, signal);
  }

  fields(query, signal) {
    return this.get("fields", query, signal);
  }

  compareRuns(query, signal) {
    return this.get("compare_runs", query, signal);
  }

  marks({ filter, search, threshold }, signal) {
    return this.get("marks", { filter, search, threshold }, signal);
  }

  /** Save a label and a note, one after the other: of two marks of a rollout, the later one must come last. */
  mark(id, mark) {
    const saved = this.marking.then(() => this.saveMark(id, mark));
    this.marking = saved.catch(() => null);
    return saved;
  }

  async saveMark(id, mark) {
    const reply = await fetch(`api/rollout/${encodeURIComponent(id)}/mark`, {
      method: "POST",
      keepalive: true, // it arrives even if the page is left at once
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(mark),
    }).catch(() => {
      throw new SourceError("the mark was not saved", { hint: "is ng_viewer still running?" });
    });
    if (!reply.ok) throw await refusal(reply);
    return reply.json();
  }
}

async function refusal(reply) {
  const body = await reply.json().catch(() => ({}));
  return new SourceError(body.error ?? `the server replied ${reply.status}`, { ...body, status: reply.status });
}

export function openSource() {
  const embedded = document.getElementById("rollout-gym-data");
  return embedded ? new EmbeddedSource(JSON.parse(embedded.textContent)) : new HttpSource();
}
