"""pass@k, reward@k, averages and majority votes over the repeats of tasks.

Two families. ``attempts`` gives the numbers of the viewer and the details file: a threshold decides what passes, every
k uses the same tasks, and both estimators are unbiased. ``compute_pass_majority_metrics`` gives those that environments
ask for by the interface's names: scored rollouts per task in, named percentages out. Its parts work on a matrix with
one row per task and one column per rollout, NaN where a score is missing, and their results are fractions per k, None
where no task contributes.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from nemo_gym.metrics.table import Floats, Ints, Mask, RolloutTable
from nemo_gym.schemas.record import PASS_THRESHOLD, REWARD, as_float, as_number

Scores = Floats  # tasks x rollouts
PerK = list[float | None]
MOST_K: Final = 256
MOST_TASKS: Final = 0.9


class RepeatedTasks(NamedTuple):
    """The results of k attempts at a task, for k = 1, 2, …; over the same tasks for every k."""

    threshold: float
    tasks: int
    left_out: int  # tasks with rewards, but fewer than the largest k
    pass_at_k: list[float]  # chance that at least one of k rollouts reaches the threshold
    reward_at_k: list[float]  # expected best reward of k rollouts


def attempts(table: RolloutTable, threshold: float = PASS_THRESHOLD) -> RepeatedTasks:
    """pass@k and reward@k up to the number of rewards that nine of ten tasks have.

    Tasks with fewer rewards than the largest k count for no k: otherwise each k would be about other tasks, and the
    curve could fall. The cut at nine of ten keeps a few unfinished tasks from shortening the curve of all others.
    """
    reward = table.top.get(REWARD)
    known = reward.known if reward is not None else np.zeros(len(table), np.bool_)
    if reward is None or not known.any():
        return RepeatedTasks(threshold, 0, 0, [], [])
    task, values = table.task[known], reward.values[known]
    order = np.lexsort((values, task))
    task, values = task[order], values[order]
    _, sizes = np.unique(task, return_counts=True)
    most = min(int(np.sort(sizes)[::-1][math.ceil(MOST_TASKS * len(sizes)) - 1]), MOST_K)
    long_enough = sizes >= most
    rows, sizes = np.repeat(long_enough, sizes), sizes[long_enough]
    best = best_of_k(np.stack([values[rows] >= threshold, values[rows]]).astype(np.float64), sizes, most)
    return RepeatedTasks(threshold, len(sizes), int((~long_enough).sum()), best[:, 0].tolist(), best[:, 1].tolist())


def best_of_k(values: Floats, sizes: Ints, most: int) -> Floats:
    """The expected best of k values drawn without replacement, averaged over tasks: a row per k, a column per series.

    ``values`` has a row per series; in each, the values of a task are neighbours and ascend. The i-th smallest of n is
    the best of C(i - 1, k - 1) of the C(n, k) possible draws.
    """
    starts = np.r_[0, np.cumsum(sizes)[:-1]]
    n = np.repeat(sizes, sizes)
    place = np.arange(len(n)) - np.repeat(starts, sizes) + 1
    weight = 1.0 / n
    results = []
    for k in range(1, most + 1):
        if k > 1:
            # From C(i - 1, k - 2) / C(n, k - 1) to the next k by one factor: the binomials themselves would overflow.
            weight = weight * np.maximum(place - k + 1, 0) * k / ((k - 1) * (n - k + 1))
        with np.errstate(all="ignore"):  # infinite rewards
            results.append(np.where(weight > 0, weight * values, 0.0).sum(axis=1) / len(sizes))
    return np.array(results)


def pass_at_k(scores: Scores) -> PerK:
    """The chance that at least one of k rollouts passes; for graded scores the best of the first k.

    A task counts for k if it has at least k scores. Where all scores of a task are 0 or 1 the chance is over all
    subsets of k rollouts: 1 - C(zeros, k) / C(n, k).
    """
    values = _compact(scores)
    known = ~np.isnan(values)
    count = known.sum(axis=1)
    zeros = (values == 0).sum(axis=1)
    binary = ((values == 0) | (values == 1) | ~known).all(axis=1)
    all_fail = np.ones(len(values))
    best = np.full(len(values), -np.inf)
    results: PerK = []
    for k in range(1, values.shape[1] + 1):
        with np.errstate(all="ignore"):
            all_fail = all_fail * np.maximum(zeros - k + 1, 0) / (count - k + 1)
        best = np.fmax(best, values[:, k - 1])
        counted = count >= k
        results.append(_mean(np.where(binary, 1 - all_fail, best)[counted]))
    return results


def mean_of_first_k(scores: Scores) -> PerK:
    """The mean over tasks of the mean score among the first k rollouts; shorter tasks use what they have."""
    total, count = np.zeros(len(scores)), np.zeros(len(scores))
    results: PerK = []
    for column, known in _columns(scores):
        total = total + np.where(known, column, 0)
        count = count + known
        counted = count > 0
        results.append(_mean(total[counted] / count[counted]))
    return results


def majority_of_first_k(scores: Scores, answers: Ints) -> list[float]:
    """The mean over tasks of the score of the most frequent answer among the first k rollouts.

    ``answers`` numbers the distinct answers, -1 for none. The same answer with two scores counts as two candidates;
    tied candidates share the result; a task without an answer scores 0.
    """
    seen = _occurrence(scores, answers)  # how often this rollout's candidate has occurred so far, 0 if it has none
    most, score, tied = (np.zeros(len(scores)) for _ in range(3))
    results = []
    for k in range(scores.shape[1]):
        now, column = seen[:, k], scores[:, k]
        # A candidate reaches each count once, so those that reached the highest one are exactly the tied ones.
        leads, joins = now > most, (now == most) & (now > 0)
        score = np.where(leads, column, np.where(joins, score + column, score))
        tied = np.where(leads, 1, np.where(joins, tied + 1, tied))
        most = np.maximum(most, now)
        results.append(float(np.mean(np.where(tied > 0, score / np.maximum(tied, 1), 0))))
    return results


def sample_deviation_of_first_k(scores: Scores) -> PerK:
    """The mean over tasks with two or more scores among the first k of their sample standard deviation."""
    count, mean, squares = (np.zeros(len(scores)) for _ in range(3))
    results: PerK = []
    for column, known in _columns(scores):
        count = count + known
        with np.errstate(all="ignore"):
            step = np.where(known, column - mean, 0)
            mean = mean + step / np.maximum(count, 1)
            squares = squares + np.where(known, step * (column - mean), 0)
        counted = count > 1
        results.append(_mean(np.sqrt(squares[counted] / (count[counted] - 1))))
    return results


def per_rollout_mean(scores: Scores) -> list[float]:
    """The mean over tasks of their first, second, … rollout; positions without any score are left out."""
    return [float(np.mean(column[known])) for column, known in _columns(scores) if known.any()]


def _columns(scores: Scores) -> Iterator[tuple[Floats, np.ndarray[tuple[int], np.dtype[np.bool_]]]]:
    for column in scores.T:
        yield column, ~np.isnan(column)


def _mean(values: Floats) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _compact(scores: Scores) -> Scores:
    """The same scores with gaps closed: those of a task first, in order, then NaN."""
    gaps = np.isnan(scores)
    if not gaps.any():
        return scores
    order = np.argsort(gaps, axis=1, kind="stable")
    return np.take_along_axis(scores, order, axis=1)


def _occurrence(scores: Scores, answers: Ints) -> Ints:
    """For each rollout, how many up to it in its task have the same answer and score; 0 without answer or score."""
    _, graded = np.unique(scores, return_inverse=True)
    candidate = answers * (int(graded.max(initial=0)) + 1) + graded.reshape(scores.shape)
    valid = (answers >= 0) & ~np.isnan(scores)
    candidate = np.where(valid, candidate, -1)
    order = np.argsort(candidate, axis=1, kind="stable")
    ordered = np.take_along_axis(candidate, order, axis=1)
    places = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    first = np.ones(scores.shape, np.bool_)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    start = np.maximum.accumulate(np.where(first, places, 0), axis=1)
    seen = np.empty(scores.shape, np.int64)
    np.put_along_axis(seen, order, places - start + 1, axis=1)
    return np.where(valid, seen, 0)


Tasks = Sequence[Sequence[Mapping[str, Any]]]
ScoreDict = dict[str, Any]
ScoreFn = Callable[[Any], Mapping[str, Any]]

NO_ANSWER: Final = "no_answer"
PER_SAMPLE: Final = "per_sample_aggregate"
_PLAIN: Final = {float, type(None)}  # what an array takes as it is; a large integer might not fit
_SPREADS: Final = ("std_dev_across_runs", "std_err_across_runs", "avg_sample_std_dev")


class PassMajority(NamedTuple):
    """What ``compute_pass_majority_metrics`` returns."""

    metrics: dict[str, Any]
    all_score_dicts: list[list[ScoreDict]]
    score_names: list[str]
    max_k: int


def compute_pass_majority_metrics(
    tasks: Tasks, score_fn: ScoreFn | None = None, answer_key: str | None = None
) -> PassMajority:
    """pass@k, pass@1[avg-of-k], majority@k and their spread across runs, in percent.

    ``score_fn`` gives the scores of a rollout by name; without it, its reward is its ``accuracy``. ``answer_key`` names
    the field with the answer of a rollout, for the majority.
    """
    if not tasks:
        return PassMajority({}, [], [], 0)
    all_score_dicts = _score_dicts(tasks, score_fn, answer_key)
    names = sorted({name for task in all_score_dicts for scores in task for name in scores})
    max_k = max(map(len, all_score_dicts))
    matrices = {name: _matrix(all_score_dicts, name, max_k) for name in names}
    answers = None if answer_key is None else _answers(tasks, answer_key, max_k)
    families = {name: _families(matrices[name], answers) for name in names}
    metrics: dict[str, Any] = {}
    for k in range(1, max_k + 1):
        for name in names:
            for pattern, values in families[name].items():
                _put(metrics, f"{pattern.format(k=k)}/{name}", values[k - 1], 100.0)
    runs = {name: [100.0 * mean for mean in per_rollout_mean(matrices[name])] for name in names}
    metrics[PER_SAMPLE] = {name: means for name, means in runs.items() if means}
    for k in range(2, max_k + 1):
        for name, means in metrics[PER_SAMPLE].items():
            metrics |= _spread_across_runs(f"pass@1[avg-of-{k}]/{name}", means[:k])
    return PassMajority(metrics, all_score_dicts, names, max_k)


def add_avg_sample_std_dev(
    metrics: dict[str, Any], all_score_dicts: Sequence[Sequence[ScoreDict]], score_names: Iterable[str], max_k: int
) -> None:
    """Add how much the scores of one task vary on average, in the unit of the scores."""
    for name in score_names if max_k > 1 else ():
        deviations = sample_deviation_of_first_k(_matrix(all_score_dicts, name, max_k))
        for k in range(2, max_k + 1):
            _put(metrics, f"pass@1[avg-of-{k}]/{name}/avg_sample_std_dev", deviations[k - 1], 1.0)


def compute_subset_metrics(
    tasks: Tasks, subset_key: str, score_fn: ScoreFn | None = None, answer_key: str | None = None
) -> dict[str, Any]:
    """The same metrics for each value that the first rollout of a task has in this field; empty values are left out."""
    subsets: dict[str, list[Sequence[Mapping[str, Any]]]] = {}
    for task in tasks:
        value = task[0].get(subset_key) if task else None
        if value:
            subsets.setdefault(str(value), []).append(task)
    metrics: dict[str, Any] = {}
    for subset, members in subsets.items():
        found = compute_pass_majority_metrics(members, score_fn, answer_key).metrics
        metrics |= {f"{subset}/{name}": value for name, value in found.items() if name != PER_SAMPLE}
    return metrics


def highest_k_metrics(
    agent_metrics: Mapping[str, Any],
    pattern: str,
    score_names: Iterable[str] | None = None,
    exclude_names: Iterable[str] | None = None,
) -> dict[str, Any]:
    """The entries of a family such as ``pass@{k}`` at its largest k, without the measures of spread.

    ``score_names`` are the only scores that count, if given; ``exclude_names`` are those that never do.
    """
    before, _, after = pattern.partition("{k}")
    form = re.compile(rf"{re.escape(before)}(\d+){re.escape(after)}/(.+)", re.DOTALL)
    wanted = None if score_names is None else set(score_names)
    excluded = set(exclude_names or ())
    by_k: dict[int, dict[str, Any]] = {}
    for key, value in agent_metrics.items():
        match = form.fullmatch(key)
        if match is None or match[2].endswith(_SPREADS) or match[2] in excluded:
            continue
        if wanted is None or match[2] in wanted:
            by_k.setdefault(int(match[1]), {})[key] = value
    return by_k[max(by_k)] if by_k else {}


def _score_dicts(tasks: Tasks, score_fn: ScoreFn | None, answer_key: str | None) -> list[list[ScoreDict]]:
    if score_fn is None:
        everything = [[{"accuracy": record[REWARD]} for record in task] for task in tasks]
    else:
        everything = [[dict(score_fn(record)) for record in task] for task in tasks]
    if answer_key is not None:
        for scored, task in zip(everything, tasks, strict=True):
            for scores, record in zip(scored, task, strict=True):
                scores[NO_ANSWER] = int(record.get(answer_key) is None)
    return everything


def _matrix(all_score_dicts: Sequence[Sequence[ScoreDict]], name: str, width: int) -> Scores:
    """The scores of this name; NaN where it is missing or not a number. Booleans become 0 and 1 in the dicts too."""
    values: list[Any] = [scores.get(name) for task in all_score_dicts for scores in task]
    kinds = set(map(type, values))
    if bool in kinds:
        for task in all_score_dicts:
            for scores in task:
                if isinstance(scores.get(name), bool):
                    scores[name] = int(scores[name])
    if not kinds <= _PLAIN:
        values = [None if number is None else as_float(number) for number in map(as_number, values)]
    matrix = np.full((len(all_score_dicts), width), np.nan)
    matrix[_filled(all_score_dicts, width)] = np.array(values, np.float64)  # None becomes NaN
    return matrix


def _answers(tasks: Tasks, answer_key: str, width: int) -> Ints:
    """Distinct answers numbered from 0; -1 where there is none."""
    numbers: dict[Any, int] = {None: -1}
    answers = [_hashable(record.get(answer_key)) for task in tasks for record in task]
    matrix = np.full((len(tasks), width), -1, np.int64)
    matrix[_filled(tasks, width)] = [numbers.setdefault(answer, len(numbers) - 1) for answer in answers]
    return matrix


def _filled(tasks: Sequence[Sequence[Any]], width: int) -> Mask:
    """Which places of a matrix with a row per task are taken."""
    length = np.fromiter(map(len, tasks), np.int64, len(tasks))
    return np.arange(width) < length[:, None]


def _hashable(answer: Any) -> Any:
    try:
        hash(answer)
    except TypeError:
        return orjson.dumps(answer, default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return answer


def _families(scores: Scores, answers: Ints | None) -> dict[str, Sequence[float | None] | PerK]:
    families: dict[str, Sequence[float | None] | PerK] = {
        "pass@{k}": pass_at_k(scores),
        "pass@1[avg-of-{k}]": mean_of_first_k(scores),
    }
    return families if answers is None else families | {"majority@{k}": majority_of_first_k(scores, answers)}


def _put(metrics: dict[str, Any], key: str, value: float | None, scale: float) -> None:
    if value is not None:
        metrics[key] = scale * value


def _spread_across_runs(key: str, means: Sequence[float]) -> dict[str, float]:
    if len(means) < 2:
        return {}
    with np.errstate(all="ignore"):
        deviation = float(np.std(means, ddof=1))
    return {
        f"{key}/std_dev_across_runs": deviation,
        f"{key}/std_err_across_runs": deviation / len(means) ** 0.5,
    }
