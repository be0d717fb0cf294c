"""``ng_reverify``: scores saved rollouts again with the current verifiers, and says which rewards changed."""

from contextlib import closing
from pathlib import Path
from typing import Final

from omegaconf import DictConfig

from nemo_gym.api.verifying import ReverifyConfig, reverify_in_gym
from nemo_gym.cli import console
from nemo_gym.cli.collection import report
from nemo_gym.cli.command import Arguments, with_files
from nemo_gym.cli.parameters import build, read_configuration
from nemo_gym.cli.signals import run_async, stopped_by_signals
from nemo_gym.errors import ExitCode
from nemo_gym.judge import JUDGE_FAILED
from nemo_gym.metrics.compare import reward_changes
from nemo_gym.rollouts.dispatch import DEFAULT_DRAIN_S
from nemo_gym.rollouts.reverify import SavedRollouts, ToolReplay
from nemo_gym.rollouts.run import StopSwitch
from nemo_gym.rollouts.store.output import OutputTakenError
from nemo_gym.rollouts.store.shards import Shards
from nemo_gym.rollouts.tally import Summary

_TAKEN: Final = (
    "to continue, add +resume_from_cache=true;\n      or to add what is not yet verified there, add +append=true;\n"
    "      or to start from scratch, add +overwrite=true: the old files are moved to a numbered folder beside it;\n"
    "      or choose another +output"
)


def reverify_rollouts(arguments: Arguments) -> int:
    """Verify saved rollouts again, show their metrics and which rewards changed."""
    arguments = with_files(arguments, "input", as_list=False)
    config = read_configuration(ReverifyConfig, arguments, needs_model=False)
    parameters = build(ReverifyConfig, config)
    inputs = Path(parameters.inputs) if parameters.inputs else None
    failed_as = JUDGE_FAILED if parameters.judge_failed_only else None
    with closing(SavedRollouts(Path(parameters.input), inputs=inputs, failed_as=failed_as)) as saved:
        if failed_as and not len(saved):
            console.note(f"{saved.path}: no judge failed, so there is nothing to verify again")
            return ExitCode.OK
        try:
            summary, tools = run_async(_until_stopped(config, parameters, saved))
        except OutputTakenError as error:
            raise OutputTakenError(error.message, hint=_TAKEN) from None
    code = report(summary)
    if tools is not None:
        console.note(f"{tools.calls} tool calls made again, {tools.different} of them with another result")
    old, new = (Shards([path], strict=False).table() for path in (saved.path, summary.files.rollouts))
    console.emit(reward_changes(old, new).text())
    return code


async def _until_stopped(
    config: DictConfig, parameters: ReverifyConfig, saved: SavedRollouts
) -> tuple[Summary, ToolReplay | None]:
    stop = StopSwitch(drain_s=DEFAULT_DRAIN_S)
    with stopped_by_signals(stop):
        return await reverify_in_gym(config, parameters, saved, stop=stop)
