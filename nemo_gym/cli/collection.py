"""``ng_collect_rollouts`` and ``ng_e2e_collect_rollouts``: connect to a Gym, collect rollouts, report the result.

Ctrl-C before the first rollout ends the command. During the collection it stops new rollouts and saves those that are
running.

The end-to-end command first prepares the configured datasets in ``preprocessed_datasets`` beside the output, and hosts
the Gym itself. It also takes all other options of a collection.
"""

import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

from omegaconf import DictConfig
from pydantic import Field, create_model, field_validator

from nemo_gym.api.checked import check_request_parameters
from nemo_gym.api.choices import Choice, choose_agent, program_choice, program_name, task_file
from nemo_gym.api.evaluating import prepared_tasks
from nemo_gym.api.folder_tasks import DEFAULT_AGENT, choose_task_folders, names_task_folders, task_folder_rows
from nemo_gym.api.gyms import SERVE, collect_in_gym, crashes_explained
from nemo_gym.cli import console
from nemo_gym.cli.command import Arguments
from nemo_gym.cli.hosting import RunHelper
from nemo_gym.cli.named_environments import named_environments
from nemo_gym.cli.parameters import build, check_prompt, read_configuration
from nemo_gym.cli.signals import run_async, stopped_by_signals
from nemo_gym.config.addresses import server_names
from nemo_gym.config.instances import require_instances
from nemo_gym.config.interpolation import plain_data
from nemo_gym.config.keys import CONFIG_PATHS, RESPONSES_API_AGENTS
from nemo_gym.config.overrides import parse_overrides
from nemo_gym.errors import ConfigError, ExitCode, UsageError
from nemo_gym.io.files import RunFiles, user_cache
from nemo_gym.io.json import to_json
from nemo_gym.rollout_collection import E2ERolloutCollectionConfig, RolloutCollectionConfig
from nemo_gym.rollout_parameters import OUTPUT_DESCRIPTION
from nemo_gym.rollouts.options import REMOVED
from nemo_gym.rollouts.run import StopSwitch
from nemo_gym.rollouts.store.output import check_output
from nemo_gym.rollouts.tally import AgentMetrics, Summary
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.train_data_utils import TrainDataProcessorConfig


def show_metrics(metrics: Sequence[AgentMetrics]) -> None:
    """Print each agent's key metrics on stdout, and its coverage, intervals and difficulty on stderr.

    A person who sees both on one terminal gets the metrics once.
    """
    for each in metrics:
        if each.report is not None:
            once = sys.stdout.isatty() and sys.stderr.isatty()
            console.note(f"\n{each.report.text(each.key_metrics if once else {})}\n")
            if once:
                continue
        console.emit(f"Key metrics for {each.agent}:")
        console.emit(json.dumps(json.loads(to_json(each.key_metrics)), indent=4))


class CollectRolloutsConfig(RolloutCollectionConfig):
    removed: ClassVar[Mapping[str, str]] = {
        **REMOVED,
        "rollout_collection_driver": "only ng_e2e_collect_rollouts calls one",
    }

    output_jsonl_fpath: str = Field(
        default="", description=f"{OUTPUT_DESCRIPTION} Default: results/<agent>/<time>.jsonl."
    )
    serve: bool | None = Field(default=None, description=SERVE)
    tasks: str | None = Field(default=None, description="Folder of tasks in Harbor's format, in place of a task file.")

    @field_validator("limit", "num_samples_in_parallel")
    @classmethod
    def _not_negative(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, int) and value < 0:
            raise ValueError("must not be negative")
        return value


def collect_rollouts(arguments: Arguments) -> int:
    """Collect rollouts and show their metrics. The exit code says whether all of them succeeded.

    If a split is named instead of a task file, the split is prepared first.
    """
    if arguments.sets("split"):
        if arguments.sets("input_jsonl_fpath"):
            raise UsageError(
                "both split and input_jsonl_fpath are given, and a split is prepared from a server's datasets",
                hint="leave out one of them; ng_e2e_collect_rollouts is the command for a split",
            )
        return e2e_collect_rollouts(arguments)
    folders = arguments.sets("tasks")
    named = named_environments(with_task_folders(arguments) if folders else arguments)
    chosen = named.only
    config = _read_with_program(named.arguments)
    if folders:
        config["input_jsonl_fpath"] = str(_rows_of_folders(config))
    if chosen is not None and not config.get("input_jsonl_fpath"):
        config["input_jsonl_fpath"] = str(own_tasks(chosen, config))
        console.note(f"tasks: {config['input_jsonl_fpath']}")
    parameters = _parameters_of(config)
    check_request_parameters(parameters.responses_create_params, prefix="responses_create_params.")
    check_prompt(parameters.prompt_config)
    if parameters.limit == 0:
        console.note("limit=0 is no limit: all tasks are run")
    if not parameters.output_jsonl_fpath:
        parameters.output_jsonl_fpath = str(default_output(parameters, config))
        console.note(f"rollouts: {parameters.output_jsonl_fpath}")
    return report(run_async(collect_until_stopped(config, parameters)))


def _parameters_of(config: DictConfig) -> CollectRolloutsConfig:
    try:
        return build(CollectRolloutsConfig, config)
    except UsageError as error:
        if not config.get("input_jsonl_fpath"):
            error.reword(f"{error.hint}; or name an environment, which has tasks: ng eval run calculator --model local")
        raise


def _rows_of_folders(config: DictConfig) -> Path:
    return task_folder_rows(config["tasks"], config, folder=user_cache(os.environ) / "tasks", limit=config.get("limit"))


def with_task_folders(arguments: Arguments) -> Arguments:
    """The arguments with the configuration that runs a folder of tasks."""
    given = parse_overrides(arguments.overrides, arguments.pairs)
    if given.get("input_jsonl_fpath"):
        raise UsageError("both tasks and input_jsonl_fpath are given", hint="leave out one of them")
    if not names_task_folders(str(given["tasks"])):
        raise UsageError(
            f"tasks: {given['tasks']} is not a folder with a task.toml in it or below",
            hint="for a file of rows, use +input_jsonl_fpath=<file>",
        )
    agent = given.get("agent_name") or DEFAULT_AGENT
    listed = [*choose_task_folders(agent).config_paths, *(given.get(CONFIG_PATHS) or [])]
    typed = [word for word in arguments.overrides if word.lstrip("+").startswith((f"{CONFIG_PATHS}=", "agent_name="))]
    return arguments.with_pairs({CONFIG_PATHS: listed, "agent_name": agent}, without=typed)


def _read_with_program(arguments: Arguments) -> DictConfig:
    """The configuration, with the program that is named as agent if it is one and not a server."""
    agent = next((word.partition("=")[2] for word in arguments.overrides if word.startswith("+agent_name=")), None)
    name = program_name(arguments.pairs.get("agent_name", agent))
    if name is None:
        return read_configuration(CollectRolloutsConfig, arguments)
    # Settings of an agent that is not there yet can only be read afterwards.
    own = [word for word in arguments.overrides if word.lstrip("+").startswith(f"{name}.")]
    config = read_configuration(CollectRolloutsConfig, arguments.with_pairs({}, without=own))
    if name not in server_names(config, RESPONSES_API_AGENTS):
        choice = program_choice(str(config["agent_name"]), name, config)
        config = read_configuration(CollectRolloutsConfig, arguments.with_pairs(choice.values, without=()))
    config["agent_name"] = name
    return config


def own_tasks(chosen: Choice, config: DictConfig) -> Path:
    """The tasks that an environment brings along: those in its file, or its examples."""
    agent = choose_agent(config.get("agent_name"), config)
    folder = user_cache(os.environ) / "tasks"
    limit = config.get("limit")
    return task_file(None, environment=chosen.environment, config=config, agent=agent, folder=folder, limit=limit)


def default_output(parameters: RolloutCollectionConfig, config: DictConfig) -> Path:
    """The default output path: a new file in a folder named after the agent."""
    if parameters.resume_from_cache:
        raise UsageError(
            "resume_from_cache continues an earlier run, but no run is named",
            hint="add +output_jsonl_fpath=<the rollout file of that run>",
        )
    agents = server_names(config, RESPONSES_API_AGENTS)
    only = agents[0] if len(agents) == 1 else "rollouts"
    started = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    return Path("results") / (parameters.agent_name or only) / f"{started}.jsonl"


def report(summary: Summary) -> int:
    """Show the metrics of a collection and how it went; return the exit code."""
    show_metrics(summary.metrics)
    console.note(summary.text())
    if summary.metrics:
        console.note(f"details:  {summary.files.details}")
    return summary.exit_code


async def collect_until_stopped(config: DictConfig, parameters: CollectRolloutsConfig) -> Summary:
    """Collect; the first signal stops new rollouts, the second one those that run."""
    stop = StopSwitch(drain_s=parameters.drain_timeout_s)
    with stopped_by_signals(stop):
        return await collect_in_gym(config, parameters, stop=stop, serve=parameters.serve)


Driver = Callable[[RolloutCollectionConfig, dict[str, Any]], Awaitable[Any]]

_OF_COLLECTION: Final = set(RolloutCollectionConfig.model_fields) - {"input_jsonl_fpath"}
_OF_PREPARATION: Final = {"data_source", "overwrite_metrics_conflicts", "skip_invalid"}


def _fields(model: Any, names: set[str]) -> dict[str, Any]:
    return {
        name: (field.annotation, field)
        for name, field in model.model_fields.items()
        if name in names and name not in E2ERolloutCollectionConfig.model_fields
    }


# The command takes the parameters of the collection except the task file, and those of the preparation.
EndToEndConfig = create_model(
    "EndToEndConfig",
    __base__=E2ERolloutCollectionConfig,
    **_fields(RolloutCollectionConfig, _OF_COLLECTION),
    **_fields(TrainDataProcessorConfig, _OF_PREPARATION),
)


def e2e_collect_rollouts(arguments: Arguments) -> int:
    """Prepare, host, collect, aggregate, stop."""
    config = read_configuration(EndToEndConfig, named_environments(arguments).arguments)
    wanted = build(EndToEndConfig, config)
    require_instances(config)
    check_output(RunFiles.of(wanted.output))  # before anything is prepared
    drive = load_driver(wanted.rollout_collection_driver) if wanted.rollout_collection_driver else None
    folder, reuse = (
        Path(wanted.output_jsonl_fpath).parent / "preprocessed_datasets",
        wanted.reuse_existing_data_preparation,
    )
    console.note(f"preparing the data in {folder}")
    config["input_jsonl_fpath"] = str(prepared_tasks(config, wanted.split, folder=folder, reuse=reuse))
    parameters = build(CollectRolloutsConfig, config)
    check_request_parameters(parameters.responses_create_params, prefix="responses_create_params.")
    parameters.serve = True
    check_prompt(parameters.prompt_config)
    files = RunFiles.of(parameters.output)
    console.note(f"tasks: {parameters.input_jsonl_fpath}\nrollouts: {files.rollouts}\nmetrics: {files.metrics}")
    if drive is None:
        return report(run_async(collect_until_stopped(config, parameters)))
    console.note(f"driver: {wanted.rollout_collection_driver}")
    with crashes_explained("correct the cause and start again"):
        return _drive(config, parameters, drive)


def load_driver(reference: str) -> Driver:
    """Load the function that replaces the built-in collection."""
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ConfigError(
            f"rollout_collection_driver={reference} does not name a function", hint="write module.path:function"
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # a console script would not find the user's modules otherwise
    try:
        driver: Driver = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"rollout_collection_driver={reference} can't be loaded: {error}", hint="write module.path:function"
        ) from error
    return driver


def _drive(config: DictConfig, parameters: RolloutCollectionConfig, drive: Driver) -> int:
    """Run the driver. It finds the Gym through the head server, as any other process would.

    The Gym runs in a separate thread, because the driver's calls to the head server block.
    """
    gym = RunHelper()
    gym.start()
    try:
        run_async(_work(drive(parameters, plain_data(config))))
        gym.poll()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    finally:
        gym.shutdown()
    return ExitCode.OK


async def _work(driving: Awaitable[Any]) -> None:
    try:
        await driving
    finally:
        await close_http_client()
