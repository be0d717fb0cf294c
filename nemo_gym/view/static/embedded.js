/* The data of an exported page: everything is in memory, and filtered, sorted and searched right there. */

import { compileFilter } from "./filter.js";
import { chipOf, groupOf, groupRows, meanOf, overviewOf, rewardsOf } from "./statistics.js";
import { continuityOf } from "./continuity.js";
import { firstDifference, readEntries, wholeText } from "./record.js";

const SCATTER_MOST = 5000;

export class EmbeddedSource {
  constructor({ state, columns, rollouts, overview }) {
    this.live = false;
    this.told = false;
    this.shown = { ...state, files: (state.files ?? []).map((file) => ({ ...file, live: false })) };
    this.fields = Array.isArray(columns) ? columns : columns.columns;
    this.names = this.fields.map((column) => column.name);
    this.rows = rollouts;
    this.byId = new Map(rollouts.map((row) => [row.id, row]));
    this.whole = overview;
    this.texts = new Map();
    this.last = { key: null, rows: rollouts };
  }

  async state() {
    if (this.told) return null;
    this.told = true;
    return this.shown;
  }

  async columns() {
    return this.fields;
  }

  select({ filter = "", search = "", sort = "" }) {
    const key = JSON.stringify([filter, search, sort]);
    if (this.last.key !== key) {
      const passes = compileFilter(filter, this.names);
      const finds = this.finder(search);
      const rows = this.rows.filter((row) => passes(row) && finds(row));
      this.last = { key, rows: sort ? rows.toSorted(orderBy(sort)) : rows };
    }
    return this.last.rows;
  }

  /** Every word or quoted phrase must occur, a word at least as the beginning of one. */
  finder(search) {
    const terms = [...search.matchAll(/"([^"]+)"|(\S+)/g)].map(([, phrase, word]) => (phrase ?? word).toLowerCase());
    return (row) => terms.every((term) => this.textOf(row).includes(term));
  }

  textOf(row) {
    if (!this.texts.has(row.id)) {
      const text = [...readEntries(row.record).map(wholeText), row.record.error_message ?? ""].join(" ");
      this.texts.set(row.id, text.replace(/\s+/g, " ").toLowerCase());
    }
    return this.texts.get(row.id);
  }

  snippetOf(row, search) {
    const word = /[\p{L}\p{N}_]+/u.exec(search)?.[0].toLowerCase();
    const text = this.textOf(row);
    const at = word ? text.indexOf(word) : -1;
    return at < 0 ? null : `…${text.slice(Math.max(0, at - 60), at + word.length + 60)}…`;
  }

  async rollouts(query) {
    const rows = this.select(query);
    const { offset = 0, limit = 100 } = query;
    const shown = rows.slice(offset, offset + limit);
    const found = query.search ? shown.map((row) => ({ ...row, snippet: this.snippetOf(row, query.search) })) : shown;
    return { version: 0, total: rows.length, offset, rows: found };
  }

  async groups({ by, sort = "key", offset = 0, limit = 100, ...selection }) {
    const rows = this.select(selection);
    const groups = [...groupRows(rows, (row) => row[by] ?? null)].map(([key, own]) => groupOf(key, own, by));
    const name = sort.replace(/^-/, "");
    const order = orderBy(sort.replace("spread", "std"));
    if (name !== "key" || by !== "task") groups.sort(order);
    else groups.sort((left, right) => left.key - right.key);
    return { version: 0, total: groups.length, groups: groups.slice(offset, offset + limit) };
  }

  async rollout(id, selection = {}) {
    const row = this.byId.get(id);
    if (!row) throw new Error("this page does not hold that rollout");
    const rows = this.select(selection);
    const at = rows.indexOf(row);
    const failing = (other) => other.failure;
    return {
      id,
      file: row.file,
      line: row.line,
      record: row.record,
      previous: rows[at - 1]?.id ?? null,
      next: rows[at + 1]?.id ?? null,
      previous_failure: rows.slice(0, Math.max(at, 0)).findLast(failing)?.id ?? null,
      next_failure: rows.slice(at + 1).find(failing)?.id ?? null,
      group: this.rows
        .filter((other) => other.task === row.task && other.file === row.file)
        .sort(orderBy("rollout"))
        .map(chipOf),
      continuity: row.continuity ?? continuityOf(row.record),
    };
  }

  async overview(selection) {
    if (!selection.filter && !selection.search && this.whole) return this.whole;
    return overviewOf(this.select(selection));
  }

  async scatter({ x, y, ...selection }) {
    const rows = this.select(selection).filter((row) => Number.isFinite(row[x]) && Number.isFinite(row[y]));
    const step = Math.ceil(rows.length / SCATTER_MOST) || 1;
    const kept = rows.filter((_, index) => index % step === 0);
    return {
      x: kept.map((row) => row[x]),
      y: kept.map((row) => row[y]),
      ids: kept.map((row) => row.id),
      sampled: step > 1,
    };
  }

  async compare(a, b) {
    const [left, right] = [await this.rollout(a), await this.rollout(b)];
    return { a: left, b: right, first_difference: { item: firstDifference(left.record, right.record) } };
  }

  async compareRuns({ a, b, sort = "-change", offset = 0, limit = 100 }) {
    const ofRun = (id) =>
      groupRows(
        this.rows.filter((row) => row.id.startsWith(`${id}.`)),
        (row) => row.task,
      );
    const [left, right] = [ofRun(a), ofRun(b)];
    const tasks = [];
    for (const [key, own] of left) {
      const other = right.get(key);
      if (!other || !rewardsOf(own).length || !rewardsOf(other).length) continue;
      const [before, after] = [meanOf(rewardsOf(own)), meanOf(rewardsOf(other))];
      const ids = (rows) => rows.map((row) => row.id);
      tasks.push({
        key,
        question: own[0].question,
        a_mean: before,
        b_mean: after,
        change: after - before,
        a: ids(own),
        b: ids(other),
      });
    }
    tasks.sort(orderBy(sort));
    const count = (holds) => tasks.filter((task) => holds(task.change)).length;
    return {
      difference: meanOf(tasks.map((task) => task.change)),
      interval: null,
      better: count((change) => change > 0),
      worse: count((change) => change < 0),
      same: count((change) => change === 0),
      total: tasks.length,
      tasks: tasks.slice(offset, offset + limit),
    };
  }
}

/** By the named fields in turn; a minus turns one round; what is missing comes last. */
function orderBy(sort) {
  const keys = sort.split(",").map((part) => ({ name: part.replace(/^-/, ""), sign: part.startsWith("-") ? -1 : 1 }));
  return (left, right) => {
    for (const { name, sign } of keys) {
      const [one, other] = [left[name] ?? null, right[name] ?? null];
      if (one === other) continue;
      if (one === null || other === null) return one === null ? 1 : -1;
      return (one < other ? -1 : 1) * sign;
    }
    return 0;
  };
}
