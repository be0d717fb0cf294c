"""Commands that prepare what a configuration needs: ``ng_prepare_data``, ``ng_prepare_benchmark``, ``ng_prefetch``."""

import os
from pathlib import Path

from nemo_gym.benchmarks import benchmarks_in, prepare_benchmarks
from nemo_gym.cli import console
from nemo_gym.cli.command import Arguments, bare_words
from nemo_gym.cli.named_environments import named_environments
from nemo_gym.cli.parameters import PrefetchConfig, PrepareBenchmarkConfig, build, read_configuration
from nemo_gym.cli.signals import run_async
from nemo_gym.config.instances import require_instances
from nemo_gym.config.keys import DUMMY_MODEL, PROGRAM_AGENT
from nemo_gym.config.locate import find_readable
from nemo_gym.data.agent_datasets import Mode, backend_of, datasets_in_scope, download
from nemo_gym.data.prepare import Preparation
from nemo_gym.errors import ExitCode
from nemo_gym.io.files import user_cache
from nemo_gym.programs.installation import Installation
from nemo_gym.programs.program import Program, ready_made_programs
from nemo_gym.servers.venvs import ensure_venv, read_requirements, unmet
from nemo_gym.train_data_utils import TrainDataProcessor, TrainDataProcessorConfig


def prepare_data(arguments: Arguments) -> int:
    """Prepare the data and list the files."""
    config = read_configuration(TrainDataProcessorConfig, arguments, needs_model=False)
    parameters = build(TrainDataProcessorConfig, config)
    prepared = TrainDataProcessor().run(config)
    if prepared.files:
        console.emit(preparation_text(prepared))
    else:
        console.warn(f"no configured agent has a dataset for mode={parameters.mode}, so nothing was written")
    if prepared.skipped:
        console.warn(f"{len(prepared.skipped)} invalid samples were left out")
    return ExitCode.OK


def preparation_text(prepared: Preparation) -> str:
    """List the files that were written."""
    rows = [(kind, str(files.rows), str(files.tasks), str(files.metrics)) for kind, files in prepared.files.items()]
    return console.table(("Type", "Rows", "Tasks", "Metrics"), rows)


def prepare_benchmark(arguments: Arguments) -> int:
    """Prepare the configured benchmarks and list the files."""
    config = read_configuration(PrepareBenchmarkConfig, arguments, needs_model=False)
    parameters = build(PrepareBenchmarkConfig, config)
    prepared = prepare_benchmarks(
        config,
        use_cached=parameters.use_cached_prepared_benchmarks,
        processes=parameters.num_prepare_benchmark_processes,
    )
    console.emit(console.table(("Agent", "Tasks"), [(agent, str(path)) for agent, path in prepared.items()]))
    return ExitCode.OK


def prefetch(arguments: Arguments) -> int:
    """Download in advance what a run needs: packages of servers, datasets, data of benchmarks."""
    words = bare_words(arguments)
    programs = [word for word in words if word in ready_made_programs()]
    for name in programs:
        _install(Program(program=name))
    if programs and words == programs and not arguments.pairs:
        return ExitCode.OK
    arguments = arguments.with_pairs({}, without=programs)
    config = read_configuration(PrefetchConfig, named_environments(arguments).arguments, needs_model=False)
    parameters = build(PrefetchConfig, config)
    for instance in require_instances(config):
        if instance.implementation == PROGRAM_AGENT:
            known = {name: value for name, value in instance.settings.items() if name in Program.model_fields}
            _install(Program.model_validate(known))
        requirements = [] if instance.implementation == DUMMY_MODEL else read_requirements(instance.directory)
        if missing := unmet(requirements):
            console.note(f"installing the packages of {instance.name}: {', '.join(missing)}")
            console.emit(
                str(run_async(ensure_venv(instance.name, instance.directory, requirements, parameters.environments)))
            )
    for dataset in datasets_in_scope(config, Mode.train_preparation):
        source = backend_of(dataset, "huggingface")
        if source is not None and find_readable(str(dataset.path)) is None:
            console.note(f"fetching the {dataset}")
            download(dataset, source, token=parameters.hf_token)
            console.emit(str(dataset.path))
    if any(benchmarks_in("", Path(), config)):
        for path in prepare_benchmarks(config, use_cached=True).values():
            console.emit(str(path))
    return ExitCode.OK


def _install(program: Program) -> None:
    """Install the packages of a program into a folder of its own, and show the folder."""
    installation = Installation.of(program.title, program.install, user_cache(os.environ))
    if not installation.is_complete:
        console.note(f"installing {program.title}: {', '.join(program.install)}")
        installation.install()
    if program.install:
        console.emit(str(installation.folder))
