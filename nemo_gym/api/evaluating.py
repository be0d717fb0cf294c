"""What else Python can do with rollouts: merge them, score them again, and run a published benchmark."""

import logging
import os
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nemo_gym.api.checked import checked_options, in_python
from nemo_gym.api.choices import EnvironmentSource, choose_environment
from nemo_gym.api.collecting import collect, run_in_thread
from nemo_gym.api.functions import ModelFunction
from nemo_gym.api.gyms import reach_gym
from nemo_gym.api.runs import Run
from nemo_gym.api.verifying import ReverifyConfig, reverify_in_gym, select_servers
from nemo_gym.benchmarks import benchmarks_in, prepare_benchmarks
from nemo_gym.config.instances import read_instances
from nemo_gym.config.keys import CONFIG_PATHS, DUMMY_MODEL
from nemo_gym.config.parse import parse_config
from nemo_gym.data.agent_datasets import Mode, datasets_in_scope
from nemo_gym.data.dataset_metrics import read_metrics
from nemo_gym.data.prepare import MissingDatasetError
from nemo_gym.errors import ConfigError
from nemo_gym.exporting.export_report import ExportReport
from nemo_gym.global_config import GlobalConfigDictParserConfig
from nemo_gym.io.files import user_cache
from nemo_gym.rollout_aggregation import Aggregation, RolloutAggregationConfig, RolloutAggregationHelper
from nemo_gym.rollouts.dispatch import DEFAULT_DRAIN_S
from nemo_gym.rollouts.reverify import SavedRollouts
from nemo_gym.rollouts.run import StopSwitch
from nemo_gym.train_data_utils import TrainDataProcessor

logger = logging.getLogger(__name__)

RunSource = Run | str | Path
NO_MODEL = GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT


def path_of(run: RunSource) -> Path:
    """The rollout file of a run."""
    return run.path if isinstance(run, Run) else Path(run)


def export(run: RunSource, format: str, output: str | Path, **rules: Any) -> ExportReport:  # noqa: A002 - as users call it
    """Write training data of a run; the rules are the parameters of ``ng_export``."""
    return Run(path_of(run)).export(format, output, **rules)


@in_python()
def aggregate(
    runs: RunSource | Sequence[RunSource],
    output: str | Path,
    *,
    environment: EnvironmentSource | None = None,
    **options: Any,
) -> Run:
    """Merge rollout files and compute their metrics, as ``ng_aggregate_rollouts`` does.

    With the ``environment`` that scored them, its own metrics are computed too, otherwise the default ones.
    """
    several = [runs] if isinstance(runs, Run | str | Path) else runs
    given = {"input_glob": ",".join(str(path_of(run)) for run in several), "output_jsonl_fpath": str(output), **options}
    wanted = checked_options(RolloutAggregationConfig, given)

    async def work() -> Aggregation:
        helper = RolloutAggregationHelper()
        if environment is None:
            return await helper.aggregate(wanted)
        choice = choose_environment(environment)
        config = parse_config(pairs={CONFIG_PATHS: choice.config_paths, **choice.values}, initial=NO_MODEL).config
        real = {each.name for each in read_instances(config) if each.implementation != DUMMY_MODEL}
        config = select_servers(config, real)
        async with reach_gym(config, serve=True, classes=choice.classes) as client:
            return await helper.aggregate(wanted, client=client)

    return Run(run_in_thread(work(), StopSwitch(drain_s=0)).files.rollouts)


@in_python()
def reverify(run: RunSource, environment: EnvironmentSource, output: str | Path, **options: Any) -> Run:
    """Score the rollouts of a run again with the verifier of an environment, without the model that wrote them."""
    choice = choose_environment(environment)
    config = parse_config(pairs={CONFIG_PATHS: choice.config_paths, **choice.values}, initial=NO_MODEL).config
    given = {"input": str(path_of(run)), "output": str(output), **options}
    wanted = checked_options(ReverifyConfig, given)
    stop = StopSwitch(drain_s=DEFAULT_DRAIN_S)
    with closing(SavedRollouts(Path(wanted.input))) as saved:
        work = reverify_in_gym(config, wanted, saved, stop=stop, classes=choice.classes)
        summary, _ = run_in_thread(work, stop)
    return Run(summary.files.rollouts)


@in_python()
def benchmark(
    name: str, *, model: str | ModelFunction = "local", output: str | Path | None = None, **options: Any
) -> Run:
    """Prepare a published benchmark, and run it as its protocol says; takes the options of ``collect``."""
    choice = choose_environment(name)
    config = parse_config(pairs={CONFIG_PATHS: choice.config_paths}, initial=NO_MODEL).config
    found = next(benchmarks_in(name, Path(), config), None)
    if found is None:
        raise ConfigError(f"{name} is not a benchmark", hint="ng_list_benchmarks lists those that there are")
    prepare_benchmarks(config, use_cached=True)
    folder = user_cache(os.environ) / "benchmarks" / found.dataset.name if output is None else Path(output).parent
    reuse = bool(options.get("resume"))
    tasks = prepared_tasks(config, "benchmark", folder=folder / "preprocessed_datasets", reuse=reuse)
    chosen = {"agent": found.agent_name, **options}
    return collect(name, model=model, output=output, tasks=tasks, **chosen)


def prepared_tasks(config: DictConfig, split: str, *, folder: Path, reuse: bool) -> Path:
    """The task file of a split. It is prepared now, unless an earlier preparation may be reused.

    If the folder holds the same split of another dataset, this one gets a folder of its own inside.
    """
    mode = Mode.example_validation if split == "example" else Mode.train_preparation
    names = [dataset.config.name for dataset in datasets_in_scope(config, mode) if dataset.config.type == split]
    metrics = folder / f"{split}_metrics.json"
    if names and metrics.is_file() and read_metrics(metrics).get("name") != names[0]:
        folder = folder / re.sub(r"\W", "_", names[0])
    tasks = folder / f"{split}.jsonl"
    if reuse and tasks.exists():
        logger.info("using data prepared earlier: %s", tasks)
        return tasks
    preparation = config.copy()  # the collection must not see the parameters of the preparation
    preparation.update({"should_download": True, "mode": mode.value, "output_dirpath": str(folder)})
    TrainDataProcessor().run(preparation)
    if not tasks.exists():
        raise MissingDatasetError(
            f"{tasks}: this file was not prepared, because no configured agent has a {split} dataset",
            hint="choose another split, or list such a dataset under the agent's datasets",
        )
    return tasks
