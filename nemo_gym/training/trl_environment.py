"""Makes any environment of a Gym usable by TRL's ``GRPOTrainer``.

    with TRLEnvironment(config, tasks, agent="my_agent", publish=gguf_publisher(like, folder), token=token) as gym:
        GRPOTrainer(model, gym.reward, args=…, train_dataset=gym.dataset(), rollout_func=gym.rollout).train()

The Gym runs in this process, in its own thread, for the duration of the context. The trainer's prompts only name tasks:
the Gym's agents, tools and verifiers perform the rollouts, and the trainer gets the sampled tokens, with everything
else masked. Before each round of rollouts, the model server gets new weights. A failed rollout never counts as a reward
of 0: it gets the mean reward of its group, and all its tokens are masked, so that nothing is learnt from it.
"""

import asyncio
import copy
import logging
import statistics
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from omegaconf import DictConfig

from nemo_gym.errors import ConfigError
from nemo_gym.servers.gym import Gym, host_gym
from nemo_gym.training.gguf import write_gguf
from nemo_gym.training.live import PolicyControl, token_groups
from nemo_gym.training.sequences import TokenSequence

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]
# Takes the trainer and returns the body for the model server's ``POST /weights``.
Publish = Callable[[Any], Mapping[str, Any]]
T = TypeVar("T")
TASK_NAME: Final = "task-"
DEFAULT_LIMIT: Final = 64
KEPT_FILES: Final = 2


class TRLEnvironment:
    """Tasks and a Gym, as the arguments of a ``GRPOTrainer``.

    After each step of the trainer, ``publish`` gives ``model_server`` the new weights, which needs the server's
    ``weights_token`` as ``token``; without ``publish``, the weights stay. At most ``limit`` rollouts run at once.
    """

    def __init__(
        self,
        config: DictConfig,
        tasks: Sequence[Row],
        *,
        agent: str,
        model_server: str = "policy_model",
        publish: Publish | None = None,
        token: str = "",
        limit: int = DEFAULT_LIMIT,
    ) -> None:
        if publish is not None and not token:
            raise ConfigError("new weights need the weights_token of the model server", hint="pass it as token=…")
        self._config = config
        self._tasks = list(tasks)
        self._agent = agent
        self._model_server = model_server
        self._publish = publish
        self._token = token
        self._limit = limit
        self._published = 0
        self._host = _GymThread(config)
        self._policy: PolicyControl | None = None

    def __enter__(self) -> Self:
        gym = self._host.start()
        self._policy = PolicyControl(gym.client, self._model_server, self._token)
        return self

    def __exit__(self, *_: object) -> None:
        self._host.stop()

    def dataset(self) -> Any:
        """The tasks as a dataset with the column ``prompt``; the last message of each carries the task's name."""
        from datasets import Dataset  # noqa: PLC0415 - an extra that only this needs

        return Dataset.from_list([{"prompt": _prompt(task, number)} for number, task in enumerate(self._tasks)])

    def rollout(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """TRL's ``rollout_func``: one rollout for each prompt."""
        self._send_weights(trainer)
        numbers = [_task_number(prompt) for prompt in prompts]
        taken = {task: iter(found) for task, found in self._host.run(self._collect(Counter(numbers))).items()}
        columns: dict[str, list[Any]] = defaultdict(list)
        for number in numbers:
            for name, value in next(taken[number]).items():
                columns[name].append(value)
        return dict(columns)

    def reward(self, completions: Sequence[Any], gym_reward: Sequence[float], **_: Any) -> list[float]:
        """TRL's reward function: returns the rewards that the environment gave."""
        assert len(completions) == len(gym_reward)
        return list(gym_reward)

    def _send_weights(self, trainer: Any) -> None:
        step = trainer.state.global_step
        if self._publish is None or step == self._published:
            return
        assert self._policy is not None
        version = self._host.run(self._policy.update(self._publish(trainer)))
        self._published = step
        logger.info("the policy is at version %d (step %d)", version, step)

    async def _collect(self, wanted: Mapping[int, int]) -> dict[int, list[dict[str, Any]]]:
        """The requested number of completions for every task."""
        found: dict[int, list[dict[str, Any]]] = {}
        for repeats in sorted(set(wanted.values())):
            numbers = [number for number, count in wanted.items() if count == repeats]
            # Equal rows would count as one task; the added field keeps them apart.
            rows = [{**self._tasks[number], "trl_task": number} for number in numbers]
            groups = token_groups(rows, self._host.gym.client, agent=self._agent, repeats=repeats, limit=self._limit)
            async for live in groups:
                if live.failures:
                    logger.warning("%d of %d rollouts failed: %s", len(live.failures), repeats, _reason(live.failures))
                found[numbers[live.group.task]] = list(completions(live.group.sequences, repeats))
        return found


def completions(sequences: Sequence[TokenSequence], wanted: int) -> Iterator[dict[str, Any]]:
    """The fields that TRL expects of each rollout; failed ones are replaced by placeholders that change nothing."""
    for sequence in sequences:
        start = sequence.start
        yield {
            "prompt_ids": sequence.ids[:start],
            "completion_ids": sequence.ids[start:],
            "logprobs": sequence.log_probs[start:],
            "env_mask": sequence.mask[start:],
            "gym_reward": sequence.reward,
        }
    prompt = sequences[0].ids[: sequences[0].start] if sequences else [0]
    mean = statistics.fmean(sequence.reward for sequence in sequences) if sequences else 0.0
    for _ in range(wanted - len(sequences)):
        yield {
            "prompt_ids": prompt,
            "completion_ids": prompt[-1:],  # any token will do, since it is masked; TRL refuses an empty completion
            "logprobs": [0.0],
            "env_mask": [0],
            "gym_reward": mean,
        }


def gguf_publisher(like: Path, folder: Path) -> Publish:
    """Writes the trainer's model for ``local_model``; keeps the last two files, because running turns may use them."""

    def publish(trainer: Any) -> Mapping[str, Any]:
        model = trainer.accelerator.unwrap_model(trainer.model)
        if hasattr(model, "merge_and_unload"):  # on a copy, because merging ends the training of adapters
            model = copy.deepcopy(model).merge_and_unload()
        path = write_gguf(model, folder / f"step-{trainer.state.global_step:06d}.gguf", like=like)
        for old in sorted(folder.glob("step-*.gguf"))[:-KEPT_FILES]:
            old.unlink()
        return {"model_path": str(path.resolve())}

    return publish


def _prompt(task: Row, number: int) -> list[dict[str, str]]:
    """The input of a task as plain messages, so that the trainer's logs are readable."""
    given = task["responses_create_params"]["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages = [{"role": item["role"], "content": _text(item["content"])} for item in items if "role" in item]
    return [*messages[:-1], {**messages[-1], "name": f"{TASK_NAME}{number}"}]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _task_number(prompt: Any) -> int:
    name = prompt[-1].get("name") if isinstance(prompt, Sequence) and isinstance(prompt[-1], Mapping) else None
    if not isinstance(name, str) or not name.startswith(TASK_NAME):
        raise ConfigError("a prompt does not name a task", hint="train on the environment's own dataset()")
    return int(name.removeprefix(TASK_NAME))


def _reason(failures: Sequence[Any]) -> str:
    failure = failures[0].failure
    return f"{failure.kind}, {failure.message}"


class _GymThread:
    """A Gym in its own event loop and thread, because trainers are not asynchronous."""

    def __init__(self, config: DictConfig) -> None:
        self._config = config
        self._loop = asyncio.new_event_loop()
        self._ready: Future[Gym] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="gym", daemon=True)
        self.gym: Gym

    def start(self) -> Gym:
        """Host the Gym and wait until it is ready."""
        self._thread.start()
        self.gym = self._ready.result()
        return self.gym

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the Gym's event loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._host())

    async def _host(self) -> None:
        try:
            async with host_gym(self._config) as gym:
                self._ready.set_result(gym)
                await self._stop.wait()
        except Exception as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)
