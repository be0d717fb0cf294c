/* The numbers of an exported page when a filter is on. Without one, the numbers come with the file. */

const PASS_CURVE_POINTS = 64;

export function meanOf(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}

function deviationOf(values) {
  if (values.length < 2) return null;
  const mean = meanOf(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1));
}

/** The mean of the groups' means, give or take 1.96 standard errors: repeats of a task are not independent. */
function intervalOf(groups) {
  const means = groups.filter((values) => values.length).map(meanOf);
  if (means.length < 2) return null;
  const half = (1.96 * deviationOf(means)) / Math.sqrt(means.length);
  return [meanOf(means) - half, meanOf(means) + half];
}

function histogramOf(values, bins = 20) {
  if (!values.length) return { edges: [], counts: [] };
  let low = values[0];
  let high = values[0];
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low >= 0 && high <= 1) [low, high] = [0, 1];
  if (low === high) high = low + 1;
  const edges = Array.from({ length: bins + 1 }, (_, index) => low + ((high - low) * index) / bins);
  const counts = new Array(bins).fill(0);
  for (const value of values) counts[Math.min(bins - 1, Math.floor(((value - low) / (high - low)) * bins))] += 1;
  return { edges, counts };
}

/** The unbiased estimate over tasks that have at least k rollouts; a reward of 1 or more is a pass. */
function passAtK(groups) {
  const fewest = Math.min(...groups.map((values) => values.length), PASS_CURVE_POINTS);
  const points = [];
  for (let k = 1; groups.length && k <= fewest; k += 1) {
    points.push({ k, value: meanOf(groups.map((values) => passOf(values, k))) });
  }
  return points;
}

function passOf(values, k) {
  const wrong = values.filter((value) => value < 1).length;
  if (wrong < k) return 1;
  let missed = 1;
  for (let index = 0; index < k; index += 1) missed *= (wrong - index) / (values.length - index);
  return 1 - missed;
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

export function rewardsOf(rows) {
  return rows.filter((row) => !row.failure && typeof row.reward === "number").map((row) => row.reward);
}

/** The overview of a selection, in the server's form. */
export function overviewOf(rows) {
  const done = rows.filter((row) => !row.failure);
  const tasks = [...groupRows(done, (row) => row.task).values()].map(rewardsOf).filter((values) => values.length);
  const failed = {};
  for (const row of rows) if (row.failure) failed[row.failure] = (failed[row.failure] ?? 0) + 1;
  return {
    rollouts: rows.length,
    completed: done.length,
    failed,
    planned: null,
    coverage: null,
    mean_reward: meanOf(rewardsOf(done)),
    interval: intervalOf(tasks),
    histogram: histogramOf(rewardsOf(done)),
    pass_at_k: passAtK(tasks),
    solve_rates: histogramOf(
      tasks.map((values) => meanOf(values.map((value) => Number(value >= 1)))),
      10,
    ),
    agents: [...groupRows(done, (row) => row.agent)].map(([agent, own]) => ({
      agent,
      rollouts: own.length,
      mean_reward: meanOf(rewardsOf(own)),
      interval: null,
    })),
    progress: null,
    metrics: null,
  };
}

/** One group of rollouts, in the server's form. */
export function groupOf(key, rows, by) {
  const rewards = rewardsOf(rows);
  const ordered = [...rewards].sort((left, right) => left - right);
  return {
    key,
    label: by === "task" ? `task ${key}` : String(key ?? "completed"),
    question: by === "task" ? rows[0].question : null,
    count: rows.length,
    failed: rows.filter((row) => row.failure).length,
    mean: meanOf(rewards),
    min: ordered[0] ?? null,
    max: ordered.at(-1) ?? null,
    std: deviationOf(rewards),
    solve_rate: meanOf(rewards.map((value) => Number(value >= 1))),
    rollouts:
      by === "task"
        ? rows
            .toSorted((left, right) => left.rollout - right.rollout)
            .slice(0, 64)
            .map(chipOf)
        : undefined,
  };
}

export function chipOf({ id, rollout, reward, failure }) {
  return { id, rollout, reward, failure };
}
