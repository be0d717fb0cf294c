"""pass@k, averages and majority votes over a matrix of scores: one row per task, one column per rollout.

A missing score is NaN. Everything is computed for all tasks at once and for k = 1, 2, … in turn. Results are per k, as
fractions; None where no task contributes.
"""

from collections.abc import Iterator

import numpy as np

from nemo_gym.metrics.table import Floats, Ints

Scores = Floats  # tasks x rollouts
PerK = list[float | None]


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
