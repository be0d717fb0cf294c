"""``ng_prepare_data``: the datasets of the configured agents, collated into one task file per type."""

from collections.abc import Sequence

from nemo_gym.cli import console
from nemo_gym.cli.outcome import Exit
from nemo_gym.cli.settings import build, read_configuration
from nemo_gym.data.prepare import Preparation
from nemo_gym.train_data_utils import TrainDataProcessor, TrainDataProcessorConfig


def prepare_data(overrides: Sequence[str]) -> int:
    """Prepare the data and say where it is."""
    config = read_configuration(TrainDataProcessorConfig, overrides, needs_model=False)
    parameters = build(TrainDataProcessorConfig, config)
    prepared = TrainDataProcessor().run(config)
    if prepared.files:
        console.emit(as_text(prepared))
    else:
        console.warn(f"no configured agent has a dataset for mode={parameters.mode}, so nothing was written")
    if prepared.skipped:
        console.warn(f"{len(prepared.skipped)} invalid samples were left out")
    return Exit.OK


def as_text(prepared: Preparation) -> str:
    """List the files that were written."""
    rows = [(kind, str(files.rows), str(files.tasks), str(files.metrics)) for kind, files in prepared.files.items()]
    return console.table(("Type", "Rows", "Tasks", "Metrics"), rows)
