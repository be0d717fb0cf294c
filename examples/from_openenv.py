"""An OpenEnv server as an environment in a file: every rollout has a session there, and its steps are a tool.

Needs ``pip install openenv``. The server below is a small one; the address of any other goes into OPENENV_URL, with
the names of its actions and observations in ``guess``. ``ng eval run examples/from_openenv.py --model local`` uses a
running server; this file starts its own.
"""

# mypy: disable-error-code="misc, untyped-decorator"
import os
import threading
import time
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient

import nemo_gym

URL = os.environ.get("OPENENV_URL", "http://127.0.0.1:8765")


# ---- the environment, as OpenEnv writes it ---------------------------------------------------------------------------
class Guess(Action):
    """A number that is tried."""

    number: int


class Hint(Observation):
    """What is known about the hidden number."""

    text: str = ""


class HigherLower(Environment[Guess, Hint, State]):
    """Find a number from 1 to 100 in seven steps."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state, self._hidden = State(step_count=0), 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Hint:
        """Hide a number."""
        self._state, self._hidden = State(episode_id=episode_id, step_count=0), (seed or 0) * 37 % 100 + 1
        return Hint(text="a number from 1 to 100", done=False, reward=0.0)

    def step(self, action: Guess, **_: Any) -> Hint:
        """Compare a guess with the number."""
        self._state.step_count += 1
        found = action.number == self._hidden
        text = "found" if found else "higher" if action.number < self._hidden else "lower"
        return Hint(text=text, done=found or self._state.step_count >= 7, reward=float(found))

    @property
    def state(self) -> State:
        """The number of steps."""
        return self._state


# ---- the same for a Gym ----------------------------------------------------------------------------------------------
environment = nemo_gym.Environment(
    name="higher_lower",
    tasks=[{"prompt": "Find the number from 1 to 100 by guessing.", "seed": seed} for seed in range(1, 5)],
    max_steps=10,
)


@environment.setup
async def begin(task: dict[str, Any]) -> dict[str, Any]:
    """A session at the server."""
    client = GenericEnvClient(base_url=URL)
    await client.connect()
    await client.reset(seed=task["seed"])
    return {"client": client, "reward": 0.0, "done": False}


@environment.tool
async def guess(number: int, state: dict[str, Any]) -> str:
    """Guess the number; says whether it is higher or lower."""
    if state["done"]:
        return "the game is over"
    result = await state["client"].step({"number": number})
    state["reward"], state["done"] = float(result.reward or 0.0), bool(result.done)
    return str(result.observation["text"])


@environment.verify
async def score(_: dict[str, Any], response: Any, state: dict[str, Any]) -> dict[str, Any]:
    """The reward of the last step."""
    await state["client"].close()
    return {"reward": state["reward"], "guesses": len(response.tool_calls)}


def halves(request: Any) -> Any:
    """A model that halves what is left."""
    low, high = 1, 100
    for item in request["input"]:
        if item.get("type") == "function_call_output" and item["output"] in ("higher", "lower"):
            middle = (low + high) // 2
            low, high = (middle + 1, high) if item["output"] == "higher" else (low, middle - 1)
        elif item.get("type") == "function_call_output":
            return "Found."
    arguments = f'{{"number": {(low + high) // 2}}}'
    return {"type": "function_call", "name": "guess", "call_id": f"c{low}-{high}", "arguments": arguments}


if __name__ == "__main__":
    app = create_fastapi_app(HigherLower, Guess, Hint, max_concurrent_envs=16)
    server = uvicorn.Server(uvicorn.Config(app, port=8765, log_level="critical"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    run = nemo_gym.collect(environment, model=halves)
    print(f"mean reward {run.mean_reward}: {[rollout.fields['guesses'] for rollout in run]} guesses")
    server.should_exit = True
