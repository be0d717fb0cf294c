"""Collects rollouts from Python: ``collect`` in a script or a notebook, ``acollect`` in async code.

Both take the same path as the command: one configuration, one Gym, one store. ``collect`` runs on an event loop in a
thread of its own, so that it also works where a loop is already running. Ctrl-C, or a notebook's interrupt, stops new
rollouts and waits for those that run; a second one stops these too. Whatever was saved can be resumed.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, TypeVar

from omegaconf import DictConfig

from nemo_gym.api.checked import checked_options
from nemo_gym.api.choices import (
    AgentSource,
    Choice,
    EnvironmentSource,
    TaskSource,
    choose_agent,
    choose_environment,
    choose_model,
    function_choice,
    task_file,
)
from nemo_gym.api.environment_file import refuse_while_loading
from nemo_gym.api.folder_tasks import (
    DEFAULT_AGENT,
    WITHOUT_MODEL,
    choose_task_folders,
    names_task_folders,
    task_folder_rows,
)
from nemo_gym.api.functions import ModelFunction
from nemo_gym.api.gyms import collect_in_gym
from nemo_gym.api.runs import Run
from nemo_gym.config.instances import read_instances
from nemo_gym.config.keys import CONFIG_PATHS
from nemo_gym.config.locate import find_env_file
from nemo_gym.config.parse import parse_config
from nemo_gym.errors import ConfigError, RolloutError, nearest
from nemo_gym.global_config import set_global_config_dict
from nemo_gym.io.files import user_cache
from nemo_gym.rollout_parameters import RolloutCollectionConfig
from nemo_gym.rollouts.run import StopSwitch
from nemo_gym.rollouts.tally import Ending, Summary
from nemo_gym.schemas.responses import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.servers.event_loop import new_event_loop

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# Parameters of the model request that a rollout sets itself.
_OWN_PARAMETERS: Final = {"input", "tools", "stream", "model", "background", "store", "previous_response_id"}
SAMPLING: Final = frozenset(NeMoGymResponseCreateParamsNonStreaming.model_fields) - _OWN_PARAMETERS
_NAMED: Final = {"output_jsonl_fpath", "input_jsonl_fpath", "agent_name", "resume_from_cache", "num_repeats"}
OPTIONS: Final = frozenset(RolloutCollectionConfig.model_fields) - _NAMED


class CollectionInterrupted(KeyboardInterrupt):
    """The collection was interrupted; ``run`` holds what was saved."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"interrupted; {len(run)} rollouts are in {run.path}, and resume=True continues")
        self.run = run


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that was checked before the first call: the configuration, the parameters, the classes."""

    config: DictConfig
    parameters: RolloutCollectionConfig
    classes: Mapping[str, type]
    owned: Path | None  # a temporary folder for the output


def prepare(
    environment: EnvironmentSource | None = None,
    *,
    model: str | ModelFunction = "local",
    tasks: TaskSource | None = None,
    agent: AgentSource | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    repeats: int | Mapping[str, int] = 1,
    base_url: str | None = None,
    api_key: str | None = None,
    settings: Mapping[str, Any] | None = None,
    model_settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Prepared:
    """Turn what ``collect`` was given into a configuration and parameters, and check all of it."""
    refuse_while_loading()
    sampling, parameters = split_options(options)
    folders = tasks if environment is None and isinstance(tasks, str | Path) and names_task_folders(tasks) else None
    choice = choose_task_folders(agent) if folders is not None else choose_environment(_named(environment))
    if folders is None or agent not in WITHOUT_MODEL:
        choice.add(choose_model(model, base_url=base_url, api_key=api_key, settings=model_settings))
    choice.values |= settings or {}
    if callable(agent):
        agent = choice.add(function_choice(agent, compose(choice)))
    config = compose(choice)
    name = choose_agent(agent or (None if folders is None else DEFAULT_AGENT), config)
    owned = Path(mkdtemp(prefix="rollouts-")) if output is None else None
    source = _task_file(tasks, folders, choice, config, name, limit=parameters.get("limit"), owned=owned)
    parameters |= {
        "agent_name": name,
        "input_jsonl_fpath": str(source),
        "output_jsonl_fpath": str(output if owned is None else owned / "rollouts.jsonl"),
        "resume_from_cache": resume,
        "num_repeats": repeats,
        "responses_create_params": {**parameters.get("responses_create_params", {}), **sampling},
    }
    checked = checked_options(RolloutCollectionConfig, parameters)
    elsewhere = checked.executor != "local" or checked.workers not in (None, 1)
    return Prepared(config, checked, classes_here(choice.classes, config, elsewhere=elsewhere), owned)


def _task_file(
    tasks: TaskSource | None,
    folders: str | Path | None,
    choice: Choice,
    config: DictConfig,
    agent: str,
    *,
    limit: int | None,
    owned: Path | None,
) -> Path:
    folder = owned or user_cache(os.environ) / "tasks"
    if folders is not None:
        return task_folder_rows(folders, config, folder=folder, limit=limit)
    return task_file(tasks, environment=choice.environment, config=config, agent=agent, folder=folder, limit=limit)


def _named(environment: EnvironmentSource | None) -> EnvironmentSource:
    if environment is None:
        raise ConfigError(
            "neither an environment nor a folder of tasks is given",
            hint="name an environment, or give tasks= the path of a folder with a task.toml in it or below",
        )
    return environment


def compose(choice: Choice) -> DictConfig:
    """The configuration of what was chosen, which becomes that of this process."""
    pairs = {CONFIG_PATHS: choice.config_paths, **choice.values}
    config = parse_config(pairs=pairs, env_path=find_env_file()).config
    set_global_config_dict(config)
    return config


def classes_here(classes: Mapping[str, type], config: DictConfig, *, elsewhere: bool) -> dict[str, type]:
    """The server classes that this process hosts itself; with ``elsewhere``, whole Gyms run in other processes.

    A server that runs in another process is loaded there from its file. One that has no file can't be.
    """
    here = dict(classes)
    for instance in read_instances(config):
        if instance.name in here and (elsewhere or instance.isolation == "process"):
            if not instance.settings.get("file"):
                raise ConfigError(
                    f"{instance.name} is to run in another process, but it is defined only in this process",
                    hint="save it as a Python file, and give the path of that file instead",
                )
            del here[instance.name]
    return here


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of the model request, and those of the collection; unknown ones are refused."""
    unknown = [name for name in options if name not in SAMPLING and name not in OPTIONS]
    if unknown:
        near = nearest(unknown[0], SAMPLING | OPTIONS)
        raise ConfigError(
            f"collect has no option {unknown[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
            hint="options are those of ng_collect_rollouts and of the model request; other keys of the configuration "
            "go into settings={'a.b': value}",
        )
    sampling = {name: value for name, value in options.items() if name in SAMPLING and name not in OPTIONS}
    return sampling, {name: value for name, value in options.items() if name in OPTIONS}


def finished(summary: Summary, prepared: Prepared) -> Run:
    """The run, or an error if there is nothing to show for it."""
    logger.info("%s", summary.text())
    if not summary.files.rollouts.is_file() or not summary.completed:
        raise RolloutError(f"no rollout was completed. {summary.text()}")
    run = Run(summary.files.rollouts, owned=prepared.owned)
    if summary.tally.ending is Ending.INTERRUPTED:
        raise CollectionInterrupted(run)
    return run


def collect(
    environment: EnvironmentSource | None = None,
    *,
    model: str | ModelFunction = "local",
    tasks: TaskSource | None = None,
    agent: AgentSource | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    repeats: int | Mapping[str, int] = 1,
    base_url: str | None = None,
    api_key: str | None = None,
    settings: Mapping[str, Any] | None = None,
    model_settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Collect rollouts and return them as a run.

    ``environment``     a shipped name, a folder, a ``.yaml`` or ``.py`` file, a server class, or an ``Environment``.
    ``model``           "local", "openai:NAME", "anthropic:NAME", "vllm:NAME", a model server, or an async function.
    ``tasks``           a file, dictionaries, or the name of a dataset of the environment; by default its examples.
                        Without an environment, a folder of tasks in Harbor's format.
    ``agent``           the name of an agent, or ``async def agent(task, model, tools)``.
    ``output``          the rollout file; without it, a temporary folder that lives as long as the run.
    ``resume``          continue an earlier run with the same output.
    ``repeats``         rollouts of each task.
    ``settings``        other keys of the configuration, dotted; ``model_settings``, those of the model server.

    All other options are those of the command and of the model request by their own names: ``temperature=0.7``,
    ``max_output_tokens=100``, ``limit=10``, ``num_samples_in_parallel=64``, ``workers=4``.
    """
    prepared = prepare(
        environment, model=model, tasks=tasks, agent=agent, output=output, resume=resume, repeats=repeats,
        base_url=base_url, api_key=api_key, settings=settings, model_settings=model_settings, **options,
    )  # fmt: skip
    stop = StopSwitch(drain_s=prepared.parameters.drain_timeout_s)
    work = collect_in_gym(prepared.config, prepared.parameters, stop=stop, classes=prepared.classes)
    return finished(run_in_thread(work, stop), prepared)


async def acollect(environment: EnvironmentSource | None = None, **options: Any) -> Run:
    """Collect rollouts in async code; takes everything that ``collect`` takes. Cancelling it stops at once."""
    prepared = prepare(environment, **options)
    stop = StopSwitch(drain_s=prepared.parameters.drain_timeout_s)
    summary = await collect_in_gym(prepared.config, prepared.parameters, stop=stop, classes=prepared.classes)
    return finished(summary, prepared)


def run_in_thread(work: Coroutine[Any, Any, Result], stop: StopSwitch) -> Result:
    """Run on an event loop in another thread. The first interrupt drains, the second cancels, the third leaves."""
    done: Future[Result] = Future()
    loop = new_event_loop()

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                done.set_result(runner.run(work))
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits for it
                done.set_exception(error)

    threading.Thread(target=serve, name="collect", daemon=True).start()
    interrupts = 0
    while True:
        try:
            return done.result()
        except KeyboardInterrupt:
            if done.done() or interrupts == 2:
                raise
            interrupts += 1
            logger.warning(
                "starting no more rollouts; waiting for those that run (interrupt again to stop at once)"
                if interrupts == 1
                else "stopping now"
            )
            loop.call_soon_threadsafe(stop.press)
