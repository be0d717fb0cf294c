"""Collects rollouts from Python: ``collect`` in a script or a notebook, ``acollect`` in async code.

Both take the same path as the command: one configuration, one Gym, one store. ``collect`` runs on an event loop in a
thread of its own, so that it also works where a loop is already running. Ctrl-C, or a notebook's interrupt, stops new
rollouts and waits for those that run; a second one stops these too. Whatever was saved can be resumed.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from omegaconf import DictConfig

from nemo_gym.api.checked import as_arguments, check_request_parameters, checked_options, in_python
from nemo_gym.api.choices import (
    AgentSource,
    Choice,
    EnvironmentSource,
    TaskSource,
    choose_agent,
    choose_environment,
    choose_model,
    function_choice,
    program_choice,
    program_name,
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
from nemo_gym.api.runs import OwnedFolder, Run
from nemo_gym.config.addresses import server_names
from nemo_gym.config.instances import read_instances
from nemo_gym.config.keys import CONFIG_PATHS, RESPONSES_API_AGENTS
from nemo_gym.config.locate import find_env_file
from nemo_gym.config.parse import ParsedConfig, parse_config, unknown_keys
from nemo_gym.errors import ConfigError, RolloutError, UnfinishedRunError, nearest
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
OPTIONS: Final = frozenset(RolloutCollectionConfig.model_fields)


class CollectionInterrupted(KeyboardInterrupt):
    """The collection was interrupted; ``run`` holds what was saved, and is None if nothing was."""

    def __init__(self, run: Run | None) -> None:
        saved = f"{len(run)} rollouts are in {run.path}, and resume=True continues" if run else "nothing was saved"
        super().__init__(f"interrupted; {saved}")
        self.run = run


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that was checked before the first call: the configuration, the parameters, the classes."""

    config: DictConfig
    parameters: RolloutCollectionConfig
    classes: Mapping[str, type]
    owned: OwnedFolder | None  # a temporary folder for the output

    def keep(self) -> None:
        """Leave a temporary folder behind, because something in it is worth a look."""
        if self.owned is not None:
            self.owned.keep()


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
    named = {"output_jsonl_fpath": output, "resume_from_cache": resume, "num_repeats": repeats}
    parameters = request_and_options({"agent_name": agent, "input_jsonl_fpath": tasks, **named, **options})
    agent, output, given = (parameters[name] for name in ("agent_name", "output_jsonl_fpath", "input_jsonl_fpath"))
    if output is None and parameters["resume_from_cache"]:
        raise ConfigError("resume=True continues an earlier run, but there is no output", hint="name it: output=…")
    folders = given if environment is None and isinstance(given, str | Path) and names_task_folders(given) else None
    choice = choose_task_folders(agent) if folders is not None else choose_environment(_named(environment))
    if folders is None or agent not in WITHOUT_MODEL:
        choice.add(choose_model(model, base_url=base_url, api_key=api_key, settings=model_settings))
    choice.values |= settings or {}
    config, name = _with_agent(choice, agent or (None if folders is None else DEFAULT_AGENT), settings or {})
    owned = OwnedFolder() if output is None else None
    folder = owned.path if owned is not None else user_cache(os.environ) / "tasks"
    output = output if owned is None else folder / "rollouts.jsonl"
    source = _rows(
        given, choice, config, name, are_folders=folders is not None, limit=parameters.get("limit"), to=folder
    )
    parameters |= {"agent_name": name, "input_jsonl_fpath": str(source), "output_jsonl_fpath": str(output)}
    checked = checked_options(RolloutCollectionConfig, parameters)
    return Prepared(config, checked, classes_here(choice.classes, config, checked), owned)


def _rows(
    tasks: Any, choice: Choice, config: DictConfig, agent: str, *, are_folders: bool, limit: int | None, to: Path
) -> Path:
    """The file with the tasks; those that are not in a file are written to one in the folder ``to``."""
    if are_folders:
        return task_folder_rows(tasks, config, folder=to, limit=limit)
    return task_file(tasks, environment=choice.environment, config=config, agent=agent, folder=to, limit=limit)


def _named(environment: EnvironmentSource | None) -> EnvironmentSource:
    if environment is None:
        raise ConfigError(
            "neither an environment nor a folder of tasks is given",
            hint="name an environment, or give tasks= the path of a folder with a task.toml in it or below",
        )
    return environment


def _with_agent(choice: Choice, agent: AgentSource | None, settings: Iterable[str]) -> tuple[DictConfig, str]:
    """The configuration with the agent that was asked for, and the agent's name."""
    name = f"{agent.__name__}_agent" if callable(agent) else program_name(agent)
    if name is None:
        config = compose(choice, settings)
        return config, choose_agent(agent, config)
    # Settings of an agent that is not there yet can only be read afterwards.
    own = {key: choice.values.pop(key) for key in [*choice.values] if key.startswith(f"{name}.")}
    config = compose(choice)
    if name not in server_names(config, RESPONSES_API_AGENTS):
        added = function_choice(agent, config) if callable(agent) else program_choice(str(agent), name, config)
        choice.add(added)
    choice.values |= own
    config = compose(choice, settings)
    return config, choose_agent(name, config)


def compose(choice: Choice, settings: Iterable[str] = ()) -> DictConfig:
    """The configuration of what was chosen, which becomes that of this process; ``settings`` are the caller's keys."""
    pairs = {CONFIG_PATHS: choice.config_paths, **choice.values}
    parsed = parse_config(pairs=pairs, env_path=find_env_file())
    _refuse_unknown(settings, parsed)
    set_global_config_dict(parsed.config)
    return parsed.config


def _refuse_unknown(settings: Iterable[str], parsed: ParsedConfig) -> None:
    for name, near in unknown_keys(settings, config=parsed.config, declared=parsed.declared).items():
        raise ConfigError(
            f"settings: the configuration has no key {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
            hint="settings={'a.b': value} sets what a.b: value does in a file; a server begins with its own name",
        )


def classes_here(
    classes: Mapping[str, type], config: DictConfig, parameters: RolloutCollectionConfig
) -> dict[str, type]:
    """The server classes that this process hosts itself.

    With workers, whole Gyms run in other processes. A server that runs in another process is loaded there from its
    file. One that has no file can't be.
    """
    elsewhere = parameters.executor != "local" or parameters.workers not in (None, 1)
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


def request_and_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the collection, with those of the model request among them; unknown ones are refused."""
    unknown = [name for name in given if name not in SAMPLING and name not in OPTIONS]
    if unknown:
        near = nearest(unknown[0], SAMPLING | OPTIONS)
        raise ConfigError(
            f"collect has no option {unknown[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
            hint="options are those of ng_collect_rollouts and of the model request; other keys of the configuration "
            "go into settings={'a.b': value}",
        )
    options = {name: value for name, value in given.items() if name in OPTIONS}
    sampling = {name: value for name, value in given.items() if name not in OPTIONS}
    request = {**options.get("responses_create_params", {}), **sampling}
    check_request_parameters(request)
    return {**options, "responses_create_params": request}


def finished(summary: Summary, prepared: Prepared) -> Run:
    """The run, or an error if there is nothing to show for it."""
    logger.info("%s", summary.text())
    nothing = not summary.files.rollouts.is_file() or not summary.completed
    if nothing and summary.tally.ending is not Ending.INTERRUPTED:
        prepared.keep()
        raise RolloutError(f"no rollout was completed\n\n{as_arguments(summary.text())}")
    run = None if nothing else Run(summary.files.rollouts, owned=prepared.owned)
    if run is None or summary.tally.ending is Ending.INTERRUPTED:
        raise CollectionInterrupted(run)
    return run


@contextmanager
def keeping(prepared: Prepared) -> Iterator[None]:
    """Keep the rollouts that were saved before an error ended the run."""
    with in_python():
        try:
            yield
        except UnfinishedRunError:
            prepared.keep()
            raise


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
    ``agent``           the name of an agent or of a program ("codex"), or an async function:
                        ``agent(task, model, tools)``, or ``agent(task, session)`` with a client of its own.
    ``output``          the rollout file; without it, a temporary folder that lives as long as the run.
    ``resume``          continue an earlier run with the same output.
    ``repeats``         rollouts of each task.
    ``settings``        other keys of the configuration, dotted; ``model_settings``, those of the model server.

    All other options are those of the command and of the model request by their own names: ``temperature=0.7``,
    ``max_output_tokens=100``, ``limit=10``, ``num_samples_in_parallel=64``, ``workers=4``.
    """
    with in_python():
        prepared = prepare(
            environment, model=model, tasks=tasks, agent=agent, output=output, resume=resume, repeats=repeats,
            base_url=base_url, api_key=api_key, settings=settings, model_settings=model_settings, **options,
        )  # fmt: skip
    stop = StopSwitch(drain_s=prepared.parameters.drain_timeout_s)
    work = collect_in_gym(prepared.config, prepared.parameters, stop=stop, classes=prepared.classes)
    with keeping(prepared):
        return finished(run_in_thread(work, stop), prepared)


async def acollect(environment: EnvironmentSource | None = None, **options: Any) -> Run:
    """Collect rollouts in async code; takes everything that ``collect`` takes. Cancelling it stops at once."""
    with in_python():
        prepared = prepare(environment, **options)
    stop = StopSwitch(drain_s=prepared.parameters.drain_timeout_s)
    with keeping(prepared):
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
