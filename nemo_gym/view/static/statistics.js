/* The numbers of a selection in a page without a server: plain arithmetic, compared with the server's by a test.

What needs a decision was decided when the page was written: `task` tells the tasks of all files apart, `counted` says
whether a rollout enters statistics. Confidence intervals are the server's alone; a page has those of all its rollouts,
and none for a selection. */

import { SHARED } from "./shared.js";
import { compareText, orderBy, plainValue } from "./sorting.js";

const STATISTICS = SHARED.statistics;

export function meanOf(values) {
  return values.length ? orNull(values.reduce((sum, value) => sum + value, 0) / values.length) : null;
}

/** Infinite values may have no mean and no deviation. */
function orNull(number) {
  return Number.isNaN(number) ? null : number;
}

/** Of a group of `size` rows: a rollout that is alone does not vary, one among others without reward says nothing. */
function deviationOf(values, size) {
  if (values.length < 2) return values.length && size === 1 ? 0 : null;
  const mean = meanOf(values);
  return orNull(Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1)));
}

export function groupRows(rows, keyOf) {
  const groups = new Map();
  for (const row of rows) {
    const key = keyOf(row);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  return groups;
}

/** The rewards of the rows that enter statistics. */
export function rewardsOf(rows) {
  return rows.filter((row) => row.counted && typeof row.values.reward === "number").map((row) => row.values.reward);
}

function histogramOf(rewards) {
  const values = rewards.filter(Number.isFinite);
  if (!values.length) return { edges: [], counts: [] };
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (low >= 0 && high <= 1) [low, high] = [0, 1];
  else if (low === high) [low, high] = [low - 0.5, high + 0.5];
  return binned(values, STATISTICS.bins, low, high);
}

function binned(values, bins, low, high) {
  const exact = Array.from({ length: bins + 1 }, (_, index) => low + ((high - low) * index) / bins);
  let edges = exact.map((edge, index) => (index % bins ? Number(edge.toFixed(STATISTICS.digits)) : index ? high : low));
  if (edges.some((edge, index) => index && edge <= edges[index - 1])) edges = exact;
  const counts = new Array(bins).fill(0);
  for (const value of values) {
    let bin = bins - 1;
    while (bin > 0 && value < edges[bin]) bin -= 1;
    counts[bin] += 1;
  }
  return { edges, counts };
}

/** pass@k and reward@k over the same tasks for every k: those with as many rewards as nine of ten tasks have. */
export function attemptsOf(tasks, threshold) {
  const scored = tasks.filter((rewards) => rewards.length);
  const sizes = scored.map((rewards) => rewards.length).sort((left, right) => right - left);
  const most = Math.min(sizes[Math.ceil(STATISTICS.most_tasks * sizes.length) - 1] ?? 0, STATISTICS.most_k);
  const counted = scored.filter((rewards) => rewards.length >= most);
  const curve = (valueOf) => {
    const sorted = counted.map((rewards) => rewards.map(valueOf).sort((left, right) => left - right));
    const each = sorted.map((values) => bestOfK(values, most));
    const points = Array.from({ length: most }, (_, at) => ({ k: at + 1, value: meanOf(each.map((one) => one[at])) }));
    return points.filter(({ value }) => Number.isFinite(value));
  };
  return {
    pass_threshold: threshold,
    pass_tasks: counted.length,
    pass_tasks_left_out: scored.length - counted.length,
    pass_at_k: curve((reward) => Number(reward >= threshold)),
    reward_at_k: curve((reward) => reward),
  };
}

/** The expected best of k of the values, which ascend, for k = 1, 2, …: the i-th is the best of C(i - 1, k - 1) draws. */
function bestOfK(values, most) {
  const n = values.length;
  const weights = new Array(n).fill(1 / n);
  const results = [];
  for (let k = 1; k <= most; k += 1) {
    let sum = 0;
    for (let index = 0; index < n; index += 1) {
      if (k > 1) weights[index] *= (Math.max(index + 2 - k, 0) * k) / ((k - 1) * (n - k + 1));
      sum += weights[index] * values[index];
    }
    results.push(sum);
  }
  return results;
}

export function solveRatesOf(tasks, threshold) {
  const scored = tasks.filter((rewards) => rewards.length);
  const rates = scored.map((rewards) => meanOf(rewards.map((reward) => Number(reward >= threshold))));
  return binned(rates, STATISTICS.rate_bins, 0, 1);
}

/** The rewards of each task. */
export function tasksOf(rows) {
  const counted = rows.filter((row) => row.counted);
  return [...groupRows(counted, (row) => row.task).values()].map(rewardsOf);
}

/** The overview of a selection, in the server's form. */
export function overviewOf(rows, threshold) {
  const counted = rows.filter((row) => row.counted);
  const tasks = tasksOf(rows);
  const failed = {};
  for (const { failed: isFailed, values } of rows)
    if (isFailed && typeof values.failure === "string") failed[values.failure] = (failed[values.failure] ?? 0) + 1;
  return {
    rollouts: rows.length,
    completed: counted.length,
    failed,
    planned: null,
    completed_of_plan: null,
    coverage: null,
    mean_reward: meanOf(rewardsOf(counted)),
    interval: null,
    histogram: histogramOf(rewardsOf(counted)),
    ...attemptsOf(tasks, threshold),
    solve_rates: solveRatesOf(tasks, threshold),
    agents: agentsOf(counted),
    progress: null,
    metrics: null,
  };
}

function agentsOf(counted) {
  const agents = [...groupRows(counted, (row) => row.values.agent ?? null)].map(([agent, own]) => ({
    agent,
    rollouts: own.length,
    mean_reward: meanOf(rewardsOf(own)),
    interval: null,
  }));
  agents.sort((left, right) => right.rollouts - left.rollouts);
  return agents
    .slice(0, STATISTICS.most_agents)
    .sort(orderBy([{ valueOf: (one) => one.agent, sign: 1 }]));
}

/** The groups of a selection, in the server's form. `apart`: tasks of different files are different tasks. */
export function groupsOf(rows, { by, sort, threshold, apart }) {
  const keyOf = by === "task" ? (row) => row.task : (row) => groupKey(row, by);
  const groups = [...groupRows(rows, keyOf).values()].map((own) => groupOf(own, { by, threshold, apart }));
  groups.sort(by === "task" ? byTask : byName);
  const name = sort.replace(/^-/, "");
  if (name === "key") return (sort === "key" ? groups : groups.reverse()).map(({ order, ...group }) => group);
  const valueOf = { mean: (group) => group.mean, spread: (group) => group.std, count: (group) => group.count }[name];
  groups.sort(orderBy([{ valueOf, sign: sort.startsWith("-") ? -1 : 1 }]));
  return groups.map(({ order, ...group }) => group);
}

function byTask(left, right) {
  return left.order[0] - right.order[0] || left.order[1] - right.order[1];
}

/** Groups without a name come first, then numbers, then text. */
function byName(left, right) {
  const [one, other] = [left.order[0], right.order[0]];
  const kind = (key) => (key === null ? 0 : typeof key === "string" ? 2 : 1);
  if (kind(one) !== kind(other)) return kind(one) - kind(other);
  if (kind(one) === 1) return Number(one) - Number(other);
  return kind(one) ? compareText(one, other) : 0;
}

/** What a row is grouped by: in a column of numbers, true and false are numbers as well. */
function groupKey(row, by) {
  const value = row.values[by] ?? null;
  return Object.is(value, -0) ? 0 : value;
}

function groupOf(rows, { by, threshold, apart }) {
  const [first] = rows;
  const name = by === "task" ? first.values.task : groupKey(first, by);
  const file = by === "task" && apart ? first.values.file : null;
  const rewards = rewardsOf(rows);
  const members = by === "task" ? rows.toSorted(byRunAndRollout).slice(0, SHARED.groups.most_members) : null;
  return {
    order: [name, first.run],
    key: name,
    file,
    question: members?.map((row) => row.values.question).find(Boolean) ?? null,
    count: rows.length,
    failed: rows.filter((row) => row.failed).length,
    mean: meanOf(rewards),
    min: rewards.length ? rewards.reduce((low, value) => Math.min(low, value)) : null,
    max: rewards.length ? rewards.reduce((high, value) => Math.max(high, value)) : null,
    std: deviationOf(rewards, rows.length),
    solve_rate: meanOf(rewards.map((value) => Number(value >= threshold))),
    ...(members ? { rollouts: members.map(chipOf) } : {}),
  };
}

const ROLLOUT_KEY = { valueOf: (row) => row.values.rollout, sign: 1 };
export const byRollout = orderBy([ROLLOUT_KEY]);
const byRunAndRollout = orderBy([{ valueOf: (row) => row.run, sign: 1 }, ROLLOUT_KEY]);

export function chipOf({ id, values }) {
  return { id, rollout: values.rollout, reward: values.reward, failure: values.failure };
}

/** Whether a row went wrong: it failed, or its reward is 0 or less. */
export function wentWrong(row) {
  const reward = plainValue(row.values.reward);
  return row.failed || (typeof reward === "number" && reward <= 0);
}
