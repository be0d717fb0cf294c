"""``ng_e2e_collect_rollouts``: prepare the configured datasets, host the Gym, collect, aggregate, stop; in one process.

The preparation lies beside the output, in ``preprocessed_datasets``. Whatever else can be asked of a collection can be
asked here, too.
"""

import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from omegaconf import DictConfig
from pydantic import create_model

from nemo_gym.cli import console
from nemo_gym.cli.collect import CollectRolloutsConfig, collect, report
from nemo_gym.cli.gyms import crashes_explained
from nemo_gym.cli.loop import run_async
from nemo_gym.cli.outcome import Exit
from nemo_gym.cli.prompts import check_prompt
from nemo_gym.cli.run_helper import RunHelper
from nemo_gym.cli.settings import build, read_configuration
from nemo_gym.config.instances import require_instances
from nemo_gym.config.interpolation import plain
from nemo_gym.data.prepare import MissingDatasetError
from nemo_gym.data.scope import Mode
from nemo_gym.errors import ConfigError
from nemo_gym.rollout_collection import E2ERolloutCollectionConfig, RolloutCollectionConfig
from nemo_gym.rollouts.store.files import RunFiles
from nemo_gym.servers.http import close_http_client
from nemo_gym.train_data_utils import TrainDataProcessor, TrainDataProcessorConfig

Driver = Callable[[RolloutCollectionConfig, dict[str, Any]], Awaitable[Any]]

_OF_COLLECTION: Final = set(RolloutCollectionConfig.model_fields) - {"input_jsonl_fpath"}
_OF_PREPARATION: Final = {"data_source", "overwrite_metrics_conflicts", "skip_invalid"}


def _fields(model: Any, names: set[str]) -> dict[str, Any]:
    return {
        name: (field.annotation, field)
        for name, field in model.model_fields.items()
        if name in names and name not in E2ERolloutCollectionConfig.model_fields
    }


# Parameters of the command: those of the collection, but for the task file, and those of the preparation.
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
    drive = load_driver(wanted.rollout_collection_driver) if wanted.rollout_collection_driver else None
    config["input_jsonl_fpath"] = str(prepared_tasks(config, wanted))
    parameters = build(CollectRolloutsConfig, config)
    parameters.serve = True
    check_prompt(parameters.prompt_config)
    files = RunFiles.of(Path(parameters.output_jsonl_fpath))
    console.note(f"tasks: {parameters.input_jsonl_fpath}\nrollouts: {files.rollouts}\nmetrics: {files.metrics}")
    if drive is None:
        return report(run_async(collect(config, parameters)))
    console.note(f"driver: {wanted.rollout_collection_driver}")
    with crashes_explained("correct the cause and start again"):
        return _drive(config, parameters, drive)


def prepared_tasks(config: DictConfig, wanted: E2ERolloutCollectionConfig) -> Path:
    """The task file of the split, prepared now unless an earlier preparation is to be used."""
    folder = Path(wanted.output_jsonl_fpath).parent / "preprocessed_datasets"
    tasks = folder / f"{wanted.split}.jsonl"
    if wanted.reuse_existing_data_preparation and tasks.exists():
        console.note(f"using the data prepared before: {tasks}")
        return tasks
    mode = Mode.example_validation if wanted.split == "example" else Mode.train_preparation
    settings = {"should_download": True, "mode": mode.value, "output_dirpath": str(folder)}
    console.note(f"preparing the data in {folder}")
    asked = config.copy()
    asked.update(settings)
    TrainDataProcessor().run(asked)
    if not tasks.exists():
        raise MissingDatasetError(
            f"{tasks}: the preparation made no such file, because no configured agent has a {wanted.split} dataset",
            hint="choose another +split=…, or list such a dataset under the agent's datasets",
        )
    return tasks


def load_driver(reference: str) -> Driver:
    """The function that collects in place of the built-in collection."""
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ConfigError(f"rollout_collection_driver={reference} names no function", hint="write module.path:function")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # a console script has no other way to a module of the user's
    try:
        driver: Driver = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"rollout_collection_driver={reference} can't be loaded: {error}", hint="write module.path:function"
        ) from error
    return driver


def _drive(config: DictConfig, parameters: RolloutCollectionConfig, drive: Driver) -> int:
    """Let the driver work with the Gym, which it finds as any other process would: through the head server.

    The Gym has a thread of its own, because asking the head server blocks.
    """
    gym = RunHelper()
    gym.start()
    try:
        run_async(_work(drive(parameters, plain(config))))
        gym.poll()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    finally:
        gym.shutdown()
    return Exit.OK


async def _work(driving: Awaitable[Any]) -> None:
    try:
        await driving
    finally:
        await close_http_client()
