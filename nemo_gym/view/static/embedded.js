/* The data of an exported page: everything is in memory, and filtered, sorted and searched right there.

A row has its `values` by column, the whole `record`, and what the server knew of it (see `statistics.js`). */

import { attemptsOf, byRollout, chipOf, groupsOf, overviewOf, solveRatesOf, tasksOf, wentWrong } from "./statistics.js";
import { compileFilter } from "./filter.js";
import { firstDifference } from "./record.js";
import { orderBy, sortKeys } from "./sorting.js";
import { searchableText, searchTest, snippetOf, wordsOf } from "./search.js";

const SCATTER_MOST = 5000;
const GROUP_MOST = 256;
const SORTED_BY = 60; // characters of a preview
const PREVIEWS = new Set(["question", "answer"]);

export class EmbeddedSource {
  constructor({ state, columns, rollouts, overview, comparisons, timings, apart }) {
    this.live = false;
    this.stateSent = false;
    this.shown = state;
    this.threshold = state.threshold;
    this.fields = columns;
    this.names = columns.map((column) => column.name);
    this.rows = rollouts;
    this.byId = new Map(rollouts.map((row) => [row.id, row]));
    this.whole = overview;
    this.comparisons = comparisons;
    this.timings = timings;
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
    return this.fields;
  }

  select({ filter = "", search = "", sort = "" }) {
    const key = JSON.stringify([filter, search, sort]);
    if (this.last.key !== key) {
      const passes = compileFilter(filter, this.names);
      const finds = searchTest(search);
      const rows = this.rows.filter((row) => passes(row.values) && (!search || finds(this.wordsOf(row))));
      this.last = { key, rows: sort ? rows.toSorted(orderBy(sortKeys(sort, sortValue))) : rows };
    }
    return this.last.rows;
  }

  wordsOf(row) {
    if (!this.words.has(row.id)) this.words.set(row.id, ` ${wordsOf(searchableText(row.record)).join(" ")} `);
    return this.words.get(row.id);
  }

  async rollouts(query) {
    const rows = this.select(query);
    const { offset = 0, limit = 100, search } = query;
    const shown = rows.slice(offset, offset + limit).map(({ id, values, record }) => {
      return search ? { id, values, snippet: snippetOf(searchableText(record), search) } : { id, values };
    });
    return { version: 0, total: rows.length, offset, rows: shown };
  }

  async groups({ by = "task", sort = "key", offset = 0, limit = 100, filter, search, threshold }) {
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
        .slice(0, GROUP_MOST)
        .map(chipOf),
      continuity: row.continuity,
      timing: row.timing,
    };
  }

  async overview({ filter = "", search = "", threshold }) {
    const wanted = Number(threshold ?? this.threshold);
    const rows = this.select({ filter, search });
    if (filter.trim() || search.trim()) return overviewOf(rows, wanted);
    if (wanted === this.whole.pass_threshold) return this.whole;
    const tasks = tasksOf(rows);
    return { ...this.whole, ...attemptsOf(tasks, wanted), solve_rates: solveRatesOf(tasks, wanted) };
  }

  async scatter({ x, y, filter, search }) {
    const rows = this.select({ filter, search }).filter(
      ({ values }) => Number.isFinite(values[x]) && Number.isFinite(values[y]),
    );
    const sampled = rows.length > SCATTER_MOST;
    const kept = sampled
      ? Array.from({ length: SCATTER_MOST }, (_, index) => rows[Math.floor((index * rows.length) / SCATTER_MOST)])
      : rows;
    return {
      x: kept.map(({ values }) => values[x]),
      y: kept.map(({ values }) => values[y]),
      ids: kept.map(({ id }) => id),
      sampled,
    };
  }

  /** Where the time went: the server added it up when it wrote the page, for all of its rollouts. */
  async timing({ run = 0, filter = "", search = "" }) {
    const found = this.timings[run];
    if (!found) throw new Error("this page does not hold that file");
    if (!filter.trim() && !search.trim()) return found;
    const note = "An exported page can only add up the times of all its rollouts. ng_viewer can select.";
    return { ...found, attempts: 0, notes: [note] };
  }

  async compare(a, b) {
    const [left, right] = [await this.rollout(a), await this.rollout(b)];
    return { a: left, b: right, first_difference: { item: firstDifference(left.record, right.record) } };
  }

  /** Two runs: the server compared them when it wrote the page. */
  async compareRuns({ a, b, sort = "change", pair_by: pairBy = "content", offset = 0, limit = 100 }) {
    const found = this.comparisons[`${a}:${b}:${pairBy}`];
    if (!found) throw new Error("this page does not hold that comparison; ng_viewer shows it");
    const keys = [{ valueOf: (task) => task.change, sign: sort.startsWith("-") ? -1 : 1 }];
    return { ...found, tasks: found.tasks.toSorted(orderBy(keys)).slice(offset, offset + limit) };
  }
}

/** What a row is sorted by: of a preview only the beginning, as in the index. */
function sortValue(row, name) {
  const value = row.values[name];
  return PREVIEWS.has(name) && typeof value === "string" ? [...value].slice(0, SORTED_BY).join("") : value;
}
