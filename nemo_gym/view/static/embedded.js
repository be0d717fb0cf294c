/* The data of an exported page: everything is in memory, and filtered, sorted and searched right there.

A row has its `values` by column, the whole `record`, and what the server knew of it (see `statistics.js`). */

import { attemptsOf, byRollout, chipOf, groupsOf, overviewOf, solveRatesOf, tasksOf, wentWrong } from "./statistics.js";
import { compileFilter } from "./filter.js";
import { firstDifference } from "./record.js";
import { SHARED, strip } from "./shared.js";
import { orderBy, sortKeys } from "./sorting.js";
import { searchableText, searchTest, snippetOf, wordsOf } from "./search.js";

export class EmbeddedSource {
  constructor({ state, columns, rollouts, overview, fields, comparisons, timings, audit, marks, apart }) {
    this.live = false;
    this.stateSent = false;
    this.shown = state;
    this.threshold = state.threshold;
    this.described = columns;
    this.names = columns.map((column) => column.name);
    this.rows = rollouts;
    this.byId = new Map(rollouts.map((row) => [row.id, row]));
    this.whole = overview;
    this.byField = fields;
    this.comparisons = comparisons;
    this.timings = timings;
    this.audited = audit;
    this.marked = marks;
    this.apart = apart;
    this.words = new Map();
    this.last = { key: null, rows: rollouts };
  }

  async state() {
    if (this.stateSent) return null;
    this.stateSent = true;
    return this.shown;
  }

  async columns() {
    return this.described;
  }

  select({ filter = "", search = "", sort = "" }) {
    const key = JSON.stringify([filter, search, sort]);
    if (this.last.key !== key) {
      const passes = compileFilter(filter, this.names);
      const finds = searchTest(search);
      const rows = this.rows.filter((row) => passes(row.values) && (!search || finds(this.wordsOf(row))));
      this.last = { key, rows: rows.toSorted(orderBy(sortKeys(sort, this.names, sortValue))) };
    }
    return this.last.rows;
  }

  wordsOf(row) {
    if (!this.words.has(row.id)) this.words.set(row.id, ` ${wordsOf(searchableText(row.record)).join(" ")} `);
    return this.words.get(row.id);
  }

  async rollouts(query) {
    const rows = this.select(query);
    const { offset = 0, limit = SHARED.page_rows, search } = query;
    const shown = rows.slice(offset, offset + limit).map(({ id, values, record }) => {
      return search ? { id, values, snippet: snippetOf(searchableText(record), search) } : { id, values };
    });
    return { version: 0, total: rows.length, offset, rows: shown };
  }

  async groups({ by = SHARED.groups.by[0], sort = "key", offset = 0, limit = SHARED.page_rows, filter, search, threshold }) {
    const rows = this.select({ filter, search });
    const groups = groupsOf(rows, { by, sort, threshold: Number(threshold ?? this.threshold), apart: this.apart });
    return { version: 0, total: groups.length, groups: groups.slice(offset, offset + limit) };
  }

  async rollout(id, selection = {}) {
    const row = this.byId.get(id);
    if (!row) throw new Error("this page does not hold that rollout");
    const rows = this.select(selection);
    const at = rows.indexOf(row);
    return {
      id,
      file: row.values.file,
      line: row.line,
      record: row.record,
      previous: rows[at - 1]?.id ?? null,
      next: at < 0 ? null : (rows[at + 1]?.id ?? null),
      previous_failure: rows.slice(0, Math.max(at, 0)).findLast(wentWrong)?.id ?? null,
      next_failure: at < 0 ? null : (rows.slice(at + 1).find(wentWrong)?.id ?? null),
      group: this.rows
        .filter((other) => other.values.task === row.values.task && other.run === row.run)
        .sort(byRollout)
        .slice(0, SHARED.groups.most_in_one)
        .map(chipOf),
      continuity: row.continuity,
      timing: row.timing,
    };
  }

  async overview({ filter = "", search = "", threshold }) {
    const wanted = Number(threshold ?? this.threshold);
    const rows = this.select({ filter, search });
    if (strip(filter) || strip(search)) return overviewOf(rows, wanted);
    if (wanted === this.whole.pass_threshold) return this.whole;
    const tasks = tasksOf(rows);
    return { ...this.whole, ...attemptsOf(tasks, wanted), solve_rates: solveRatesOf(tasks, wanted) };
  }

  async scatter({ x, y, filter, search }) {
    for (const name of [x, y]) if (!this.names.includes(name)) throw new Error(`no column '${name}'`);
    const rows = this.select({ filter, search }).filter(
      ({ values }) => Number.isFinite(values[x]) && Number.isFinite(values[y]),
    );
    const length = SHARED.statistics.most_points;
    const sampled = rows.length > length;
    const shown = sampled ? Array.from({ length }, (_, at) => rows[Math.floor((at * rows.length) / length)]) : rows;
    return {
      x: shown.map(({ values }) => values[x]),
      y: shown.map(({ values }) => values[y]),
      ids: shown.map(({ id }) => id),
      sampled,
    };
  }

  /** Where the time went: the server added it up when it wrote the page, for all of its rollouts. */
  async audit() {
    return this.audited;
  }

  /** The labels of all rollouts in the page. */
  async marks({ filter = "", search = "" }) {
    return strip(filter) || strip(search) ? { labels: [], agreement: null } : this.marked;
  }

  async timing({ run = 0, filter = "", search = "" }) {
    const found = this.timings[run];
    if (!found) throw new Error("this page does not hold that file");
    if (!strip(filter) && !strip(search)) return found;
    const note = "An exported page can only add up the times of all its rollouts. ng_viewer can select.";
    return { ...found, attempts: 0, notes: [note] };
  }

  async compare(a, b) {
    const [left, right] = [await this.rollout(a), await this.rollout(b)];
    return { a: left, b: right, first_difference: firstDifference(left.record, right.record) };
  }

  /** What rewards depend on: the server found out when it wrote the page, for all of its rollouts. */
  async fields({ a, b, pair_by: pairBy = SHARED.compare.pairings[0], filter = "", search = "" }) {
    if (strip(filter) || strip(search))
      return { fields: [], note: "An exported page knows this only of all its rollouts. ng_viewer can select." };
    return a === undefined ? this.byField : this.comparisons[`${a}:${b}:${pairBy}`].fields;
  }

  /** Two runs: the server compared them when it wrote the page. */
  async compareRuns({ a, b, filter = "", search = "", sort = SHARED.compare.orders[0], pair_by: pairBy = SHARED.compare.pairings[0], offset = 0, limit = SHARED.page_rows }) {
    const found = this.comparisons[`${a}:${b}:${pairBy}`];
    if (!found) throw new Error("this page does not hold that comparison; ng_viewer shows it");
    if (strip(filter) || strip(search)) throw new Error("an exported page compares only all of its rollouts; ng_viewer can select");
    const keys = [{ valueOf: (task) => task.change, sign: sort.startsWith("-") ? -1 : 1 }];
    const { fields, ...summary } = found;
    return { ...summary, tasks: found.tasks.toSorted(orderBy(keys)).slice(offset, offset + limit) };
  }
}

/** What a row is sorted by: of a preview only the beginning, as in the index. */
function sortValue(row, name) {
  const value = row.values[name];
  const { previews, preview_length: length } = SHARED.sort;
  return previews.includes(name) && typeof value === "string" ? [...value].slice(0, length).join("") : value;
}
