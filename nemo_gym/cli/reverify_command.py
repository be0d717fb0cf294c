"""The entry of ``ng_reverify`` in the table of commands."""

from typing import Final

from nemo_gym.cli.command import Command
from nemo_gym.cli.flags import CONFIGURATION, VERBOSE, flag, number

_CONFIG: Final = "resources_servers/example_single_tool_call/configs/example_single_tool_call.yaml"

REVERIFY: Final = Command(
    name="reverify",
    path="eval reverify",
    function="nemo_gym.cli.reverifying:reverify_rollouts",
    parameters="nemo_gym.cli.reverifying:ReverifyConfig",
    summary="Run the verifiers again on saved rollouts, without the model, and show which rewards changed.",
    examples=(
        f'ng_reverify "+config_paths=[{_CONFIG}]" +input=results/rollouts.jsonl +output=results/verified_again.jsonl',
        "ng eval reverify --resources-server example_single_tool_call -i results/rollouts.jsonl -o results/again.jsonl",
    ),
    flags=(
        *CONFIGURATION,
        VERBOSE,
        flag("--input", "-i", sets="input"),
        flag("--output", "-o", sets="output"),
        number("--concurrency", sets="num_samples_in_parallel"),
        flag("--resume", sets="resume_from_cache", constant="true"),
        flag("--no-serve", sets="serve", constant="false"),
    ),
)
