"""What a task's tests say: a number in ``reward.txt``, or named numbers in ``reward.json``."""

import json
import math
from collections.abc import Mapping
from typing import Final

from nemo_gym.sandbox import SandboxError, World, WorldFileError

TEXT: Final = "/logs/verifier/reward.txt"
NAMED: Final = "/logs/verifier/reward.json"


async def read_rewards(world: World) -> dict[str, float]:
    """The rewards by name; a lone number is named ``reward``. Tests that leave none failed, which is no reward of 0."""
    named = await _content(world, NAMED)
    if named is not None:
        try:
            found = json.loads(named)
        except ValueError:
            raise SandboxError(f"{NAMED} is not JSON: {named[:100]!r}") from None
        values = found if isinstance(found, dict) else {"reward": found}
        return {str(name): _number(value, NAMED) for name, value in values.items()}
    text = await _content(world, TEXT)
    if text is None:
        raise SandboxError(f"the tests of the task wrote neither {TEXT} nor {NAMED}")
    return {"reward": _number(text.strip(), TEXT)}


def main_reward(rewards: Mapping[str, float]) -> float:
    """The one that counts: ``reward``, or the mean of all if none has that name."""
    if "reward" in rewards:
        return rewards["reward"]
    return sum(rewards.values()) / len(rewards) if rewards else 0.0


def _number(value: object, place: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise SandboxError(f"{place} holds {value!r:.100}, which is not a number")
    return number


async def _content(world: World, path: str) -> str | None:
    try:
        return (await world.read(path)).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except WorldFileError as error:
        raise SandboxError(f"{path} can't be read: {error}") from None
