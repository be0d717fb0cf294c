"""The pass@k family as environments use it: scored rollouts per task in, named percentages out."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from nemo_gym.metrics.fields import REWARD, as_float, as_number
from nemo_gym.metrics.pass_at_k import (
    PerK,
    Scores,
    majority_of_first_k,
    mean_of_first_k,
    pass_at_k,
    per_rollout_mean,
    sample_deviation_of_first_k,
)
from nemo_gym.metrics.table import Ints, Mask

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
    """pass@k, pass@1[avg-of-k], majority@k (with an answer key) and their spread across runs, in percent."""
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
    """The entries of a family such as ``pass@{k}`` at its largest k, without the measures of spread."""
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
