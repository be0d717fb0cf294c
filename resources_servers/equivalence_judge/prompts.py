"""What the judge is asked, and how its votes on one question are counted."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from nemo_gym.config_types import ModelServerRef
from nemo_gym.errors import ConfigError
from nemo_gym.judge import JudgeConfig, SwapCheck, Verdict

FOLDER: Final = Path(__file__).parent
YES: Final = "[[YES]]"
NO: Final = "[[NO]]"
MAX_SHOWN: Final = 8_000
# What opens or closes a part of the prompt: an answer that contains it could pretend to be another part.
_TAG: Final = re.compile(r"<\s*(/?)\s*(question|answer_a|answer_b|answer|criterion)\b", re.IGNORECASE)


class Tally(NamedTuple):
    """The outcome of several votes: the share of them that it got, and what each judge said."""

    score: float
    label: str
    agreement: float
    consistent: bool
    evaluations: list[dict[str, Any]]


def read_template(path: str) -> str:
    """A template: an absolute path, or one in the folder of this server."""
    file = FOLDER / path
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}", hint="correct judge_prompt_template_fpath") from error


def equivalence_judge(
    server: ModelServerRef, template: str, *, labels: tuple[str, str], swap: bool, **options: Any
) -> JudgeConfig:
    """A judge that compares two answers, in both orders if asked to."""
    equal, not_equal = labels
    return JudgeConfig(
        model_server=server,
        prompt=template.replace("{equal_label}", equal).replace("{not_equal_label}", not_equal),
        labels={equal: 1.0, not_equal: 0.0},
        swap=SwapCheck(fields=("expected_answer", "generated_answer")) if swap else None,
        **options,
    )


def rubric_judge(server: ModelServerRef, template: str, **options: Any) -> JudgeConfig:
    """A judge that looks at one criterion at a time."""
    return JudgeConfig(model_server=server, prompt=template, labels={YES: 1.0, NO: 0.0}, **options)


def shown(text: str) -> str:
    """Text for the judge: its end, where the answer is, without tags that would close its part of the prompt."""
    text = _TAG.sub(r"<\1 \2", text)
    return text if len(text) <= MAX_SHOWN else f"[…] {text[-MAX_SHOWN:]}"


def tally(verdicts: Sequence[Verdict], *, on_disagreement: float) -> Tally:
    """The majority of the votes; in a tie, the lower score."""
    scores = [verdict.score if verdict.agrees else on_disagreement for verdict in verdicts]
    votes = Counter(scores)
    score = min(votes, key=lambda each: (-votes[each], each))
    label = next(verdict.label for verdict, each in zip(verdicts, scores, strict=True) if each == score)
    evaluations = [
        {
            "verdict_label": verdict.label,
            "score": each,
            "agrees": verdict.agrees,
            "texts": list(verdict.texts),
            "injection": verdict.injection,
        }
        for verdict, each in zip(verdicts, scores, strict=True)
    ]
    consistent = all(verdict.agrees for verdict in verdicts)
    return Tally(score, label, votes[score] / len(scores), consistent, evaluations)
