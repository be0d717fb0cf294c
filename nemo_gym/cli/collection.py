"""``ng_collect_rollouts`` and ``ng_e2e_collect_rollouts``: connect to a Gym, collect rollouts, report the result.

Ctrl-C before the first rollout ends the command. During the collection it stops new rollouts and saves those that are
running.

The end-to-end command first prepares the configured datasets in ``preprocessed_datasets`` beside the output, and hosts
the Gym itself. It also takes all other options of a collection.
"""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, redirect_stdout
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from omegaconf import DictConfig
from pydantic import Field, create_model

from nemo_gym.cli import console
from nemo_gym.cli.gyms import crashes_explained, reach_gym, run_async, stopped_by_signals
from nemo_gym.cli.hosting import RunHelper
from nemo_gym.cli.parameters import build, check_prompt, check_request_parameters, read_configuration
from nemo_gym.config.addresses import server_names
from nemo_gym.config.instances import read_instances, require_instances
from nemo_gym.config.interpolation import plain_data
from nemo_gym.config.keys import RESPONSES_API_AGENTS
from nemo_gym.data.agent_datasets import Mode
from nemo_gym.data.prepare import MissingDatasetError
from nemo_gym.errors import ConfigError, ExitCode, UsageError
from nemo_gym.executors.processes import worker_count, worker_pool
from nemo_gym.export.trackers import files_to_keep, off_the_loop
from nemo_gym.io.files import RunFiles
from nemo_gym.io.json import to_json
from nemo_gym.rollout_collection import (
    E2ERolloutCollectionConfig,
    RolloutCollectionConfig,
    RolloutCollectionHelper,
    trackers_of,
)
from nemo_gym.rollouts.dispatch import Attempt
from nemo_gym.rollouts.run import StopSwitch
from nemo_gym.rollouts.run_metrics import RunMetrics
from nemo_gym.rollouts.store.output import check_output
from nemo_gym.rollouts.tally import Summary
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.train_data_utils import TrainDataProcessor, TrainDataProcessorConfig


def show_metrics(metrics: Sequence[RunMetrics]) -> None:
    """Print each agent's key metrics on stdout, and its coverage, intervals and difficulty on stderr."""
    for each in metrics:
        if each.report is not None:
            console.note(f"\n{each.report.text()}\n")
        console.emit(f"Key metrics for {each.agent}:")
        console.emit(json.dumps(json.loads(to_json(each.key_metrics)), indent=4))


SERVE = (
    "Whether to host the servers in this process (true) or to use those of a running ng_run (false). By default they"
    " are hosted if the configuration describes any."
)


class CollectRolloutsConfig(RolloutCollectionConfig):
    """Parameters of ``ng_collect_rollouts``."""

    output_jsonl_fpath: str = Field(
        default="",
        description="File for the rollouts; the other files of the run go beside it. Default: "
        "results/<agent>/<time>.jsonl.",
    )
    limit: int | None = Field(
        default=None, ge=0, description="Use only this many tasks, the first ones; null or 0: all."
    )
    num_samples_in_parallel: Annotated[int, Field(ge=0)] | Literal["auto"] | None = Field(
        default=None,
        description="Maximum rollouts at once; auto: adapt to the endpoint; null or 0: at most max_in_flight.",
    )
    serve: bool | None = Field(default=None, description=SERVE)


def collect_rollouts(overrides: Sequence[str]) -> int:
    """Collect rollouts and show their metrics. The exit code says whether all of them succeeded.

    If a split is named instead of a task file, the split is prepared first.
    """
    if any(re.match(r"\+*split=", override) for override in overrides):
        return e2e_collect_rollouts(overrides)
    config = read_configuration(CollectRolloutsConfig, overrides)
    parameters = build(CollectRolloutsConfig, config)
    check_request_parameters(parameters.responses_create_params)
    check_prompt(parameters.prompt_config)
    if not parameters.output_jsonl_fpath:
        parameters.output_jsonl_fpath = str(default_output(parameters, config))
        console.note(f"rollouts: {parameters.output_jsonl_fpath}")
    return report(run_async(collect(config, parameters)))


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


async def collect(config: DictConfig, parameters: CollectRolloutsConfig) -> Summary:
    """Collect in the Gym of this process or in one that runs elsewhere, and log the metrics to the trackers."""
    stop = StopSwitch(drain_s=parameters.drain_timeout_s)
    async with (
        reach_gym(config, serve=parameters.serve, on_crash=stop.press) as client,
        _workers(config, parameters) as attempt,
    ):
        with stopped_by_signals(stop):
            async with off_the_loop(trackers_of(parameters)) as trackers:
                summary = await RolloutCollectionHelper().collect(
                    parameters, client=client, attempt=attempt, stop=stop, listener=trackers.listener
                )
                rollouts = uploaded(summary.files.rollouts, parameters)
                kept = files_to_keep(summary.files, content=bool(rollouts))
                trackers.log(summary.metrics, rollouts=rollouts, files=kept)
            return summary


def uploaded(rollouts: Path, parameters: RolloutCollectionConfig) -> Path | None:
    """The rollout file that trackers upload, if any."""
    return rollouts if parameters.upload_rollouts_to_wandb else None


@asynccontextmanager
async def _workers(config: DictConfig, parameters: CollectRolloutsConfig) -> AsyncIterator[Attempt | None]:
    """The requested workers, or None to run rollouts in this process."""
    on_cluster = parameters.executor == "ray"
    number = 0 if on_cluster else worker_count(parameters.workers)
    if number == 1:  # a single worker would gain nothing, and cost the messages to it
        yield None
        return
    if parameters.serve is False or not read_instances(config):
        raise UsageError(
            "workers host the servers themselves, but the configuration describes no servers",
            hint="give +config_paths=[…], or leave out +workers and +executor to use the servers of ng_run",
        )
    timeout_s = parameters.rollout_timeout_s
    recording: dict[str, Any] = {"steps": parameters.steps, "trace_run": parameters.trace_run}
    if on_cluster:
        parameters.ray_address = parameters.ray_address or config.get("ray_head_node_address")
        ray_gyms = await asyncio.to_thread(_ray_gyms)
        with redirect_stdout(sys.stderr):  # Ray prints what went wrong to stdout, which carries data
            async with ray_gyms(config, parameters, timeout_s=timeout_s, **recording) as gyms:
                yield gyms
    else:
        window = parameters.worker_window
        async with worker_pool(config, number, timeout_s=timeout_s, window=window, **recording) as pool:
            yield pool


def _ray_gyms() -> Any:
    """The function that hosts Gyms on a Ray cluster, imported only on demand, because Ray is large."""
    try:
        return import_module("nemo_gym.executors.ray_cluster").ray_gyms
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("executor=ray needs Ray", hint="pip install 'rollout-gym[ray]'") from None


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
    __doc__="Parameters of ``ng_e2e_collect_rollouts``.",
    **_fields(RolloutCollectionConfig, _OF_COLLECTION),
    **_fields(TrainDataProcessorConfig, _OF_PREPARATION),
)


def e2e_collect_rollouts(overrides: Sequence[str]) -> int:
    """Prepare, host, collect, aggregate, stop."""
    config = read_configuration(EndToEndConfig, overrides)
    wanted = build(EndToEndConfig, config)
    require_instances(config)
    check_output(RunFiles.of(wanted.output))  # before anything is prepared
    drive = load_driver(wanted.rollout_collection_driver) if wanted.rollout_collection_driver else None
    config["input_jsonl_fpath"] = str(prepared_tasks(config, wanted))
    parameters = build(CollectRolloutsConfig, config)
    check_request_parameters(parameters.responses_create_params)
    parameters.serve = True
    check_prompt(parameters.prompt_config)
    files = RunFiles.of(parameters.output)
    console.note(f"tasks: {parameters.input_jsonl_fpath}\nrollouts: {files.rollouts}\nmetrics: {files.metrics}")
    if drive is None:
        return report(run_async(collect(config, parameters)))
    console.note(f"driver: {wanted.rollout_collection_driver}")
    with crashes_explained("correct the cause and start again"):
        return _drive(config, parameters, drive)


def prepared_tasks(config: DictConfig, wanted: E2ERolloutCollectionConfig) -> Path:
    """The task file of the split. It is prepared now unless an earlier preparation may be reused."""
    folder = Path(wanted.output_jsonl_fpath).parent / "preprocessed_datasets"
    tasks = folder / f"{wanted.split}.jsonl"
    if wanted.reuse_existing_data_preparation and tasks.exists():
        console.note(f"using data prepared earlier: {tasks}")
        return tasks
    mode = Mode.example_validation if wanted.split == "example" else Mode.train_preparation
    settings = {"should_download": True, "mode": mode.value, "output_dirpath": str(folder)}
    console.note(f"preparing the data in {folder}")
    asked = config.copy()  # the collection must not see the parameters of the preparation
    asked.update(settings)
    TrainDataProcessor().run(asked)
    if not tasks.exists():
        raise MissingDatasetError(
            f"{tasks}: this file was not prepared, because no configured agent has a {wanted.split} dataset",
            hint="choose another +split=…, or list such a dataset under the agent's datasets",
        )
    return tasks


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
