"""Runs a verifier on cases whose rewards are known, and says where it decides otherwise. For authors' tests.

A file of cases has one JSON object a line: ``name``, ``kind``, ``request``, and ``expected_reward`` or, for malformed
requests, ``expected_error``. Each case gets a new server. Answers that deserve the best and the worst reward, and a
malformed one, must be among the cases; so must one that shows that the verifier is deterministic, if it claims to be.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ValidationError

from nemo_gym.io.files import replacing
from nemo_gym.io.json import to_json
from nemo_gym.schemas.record import Record, read_records

FULL, ZERO, MALFORMED, DETERMINISM = "full_reward", "zero_reward", "malformed", "determinism"
REQUIRED: Final = (FULL, ZERO, MALFORMED)
Determinism = Literal["seeded", "stochastic", "unknown"]


class VerifierFixtureError(ValueError):
    """A verifier that does not decide as its cases say, or cases that say too little."""


@dataclass(frozen=True)
class VerifierFixture:
    """How to build a server, what it verifies, and where its cases are."""

    server_factory: Callable[[], Any]
    request_model: type[BaseModel]
    cases_path: str | Path
    invoke: Callable[[Any, Any], Awaitable[Any]] | None = None
    reseed: Callable[[Any], Any] | None = None


class ExercisedCase(NamedTuple):
    """A case and the rewards that it got."""

    name: str
    kind: str
    observed_rewards: tuple[float, ...]


async def exercise_verifier_fixture(
    fixture: VerifierFixture,
    *,
    reward_range: tuple[float, float],
    higher_is_better: bool = True,
    determinism: Determinism = "unknown",
    update_expected: bool = False,
) -> tuple[ExercisedCase, ...]:
    """Run all cases; a ``VerifierFixtureError`` names the first that fails.

    ``update_expected`` writes the rewards that were seen into the file, instead of comparing them.
    """
    cases = [line.record.fields for line in read_records(Path(fixture.cases_path))]
    kinds = {str(case.get("kind")) for case in cases}
    needed = {*REQUIRED, *((DETERMINISM,) if determinism == "seeded" else ())}
    if missing := sorted(needed - kinds):
        raise VerifierFixtureError(f"{fixture.cases_path} has no case of the kind {', '.join(missing)}")
    low, high = reward_range if higher_is_better else (reward_range[1], reward_range[0])
    exercised = []
    for case in cases:
        rewards = await _rewards(fixture, case)
        if update_expected and rewards:
            case["expected_reward"] = rewards[0]
        _check(case, rewards, {FULL: high, ZERO: low})
        exercised.append(ExercisedCase(str(case["name"]), str(case["kind"]), rewards))
    if update_expected:
        with replacing(Path(fixture.cases_path)) as file:
            file.writelines(to_json(case) + b"\n" for case in cases)
    return tuple(exercised)


async def _rewards(fixture: VerifierFixture, case: Mapping[str, Any]) -> tuple[float, ...]:
    """The rewards of a case: one, two for determinism, none for a malformed request that was refused as expected."""
    server = fixture.server_factory()
    found = []
    for _ in range(2 if case["kind"] == DETERMINISM else 1):
        if case["kind"] == DETERMINISM and fixture.reseed is not None:
            seeded = fixture.reseed(server)
            _ = await seeded if inspect.isawaitable(seeded) else seeded
        try:
            body = fixture.request_model.model_validate(case["request"])
            verdict = await (fixture.invoke(server, body) if fixture.invoke else server.verify(body))
        except Exception as error:
            if case["kind"] != MALFORMED:
                raise VerifierFixtureError(f"{case['name']}: {type(error).__name__}: {error}") from error
            _check_error(case, error)
            return ()
        found.append(_reward_of(verdict))
    return tuple(found)


def _reward_of(verdict: Any) -> float:
    fields = verdict.model_dump() if isinstance(verdict, BaseModel) else verdict
    reward = Record(fields).reward
    if reward is None:
        raise VerifierFixtureError("the verdict has no reward")
    return reward


def _check_error(case: Mapping[str, Any], error: Exception) -> None:
    text = f"{type(error).__name__}: {error}"
    expected = str(case.get("expected_error", ""))
    if expected not in text:
        kind = "is not valid" if isinstance(error, ValidationError) else "failed"
        raise VerifierFixtureError(f"{case['name']}: {kind} with {text!r}, which does not say {expected!r}") from error


def _check(case: Mapping[str, Any], rewards: tuple[float, ...], ends: Mapping[str, float]) -> None:
    name, kind = case["name"], case["kind"]
    if kind == MALFORMED and "expected_error" in case and rewards:
        raise VerifierFixtureError(f"{name}: the request was accepted, with a reward of {rewards[0]:g}")
    if len(set(rewards)) > 1:
        raise VerifierFixtureError(f"{name}: two runs got different rewards, {rewards[0]:g} and {rewards[1]:g}")
    expected = {case.get("expected_reward", ends.get(kind)), ends.get(kind, case.get("expected_reward"))} - {None}
    if rewards and expected and expected != {rewards[0]}:
        raise VerifierFixtureError(f"{name}: the reward is {rewards[0]:g}, not {' or '.join(map(str, expected))}")
