"""The one table of commands.

Console scripts, the ``ng`` tree, help and the reference in ``docs/commands.md`` all derive from it.

Every command can be typed in three equivalent ways: ``ng_<name>``, ``nemo_gym_<name>``, and ``ng`` or ``gym`` followed
by the name or by its place in the tree (``ng env start``).
"""

from typing import Final

from nemo_gym.cli.command import PREFIXES, ROOTS, Command
from nemo_gym.cli.data_commands import DATA_COMMANDS
from nemo_gym.cli.environment_commands import ENVIRONMENT_COMMANDS
from nemo_gym.cli.flags import JSON
from nemo_gym.cli.rollout_commands import ROLLOUT_COMMANDS

ENTRY_POINT: Final = "nemo_gym.cli.main:main"
GROUPS: Final = {
    "env": "Environments: start, inspect, write and test servers",
    "eval": "Rollouts: collect, aggregate, profile",
    "dataset": "Data: prepare task files",
    "list": "Lists: environments, agents, models, benchmarks",
    "dev": "Development of this project",
    "": "Help",
}

COMMANDS: Final = (
    *ENVIRONMENT_COMMANDS,
    *ROLLOUT_COMMANDS,
    *DATA_COMMANDS,
    Command(
        name="dev_test",
        path="dev test",
        function="nemo_gym.cli.testing:dev_test",
        parameters=None,
        summary="Run the tests of this project itself, with coverage if pytest-cov is installed.",
        examples=("ng_dev_test",),
    ),
    Command(
        name="help",
        path="help",
        function="nemo_gym.cli.information:show_help",
        parameters=None,
        summary="List all commands.",
        examples=("ng_help", "ng_collect_rollouts --help"),
    ),
    Command(
        name="version",
        path="version",
        function="nemo_gym.cli.information:version",
        parameters="nemo_gym.cli.parameters:VersionConfig",
        summary="Show the versions of this program, of Python and of the main dependencies.",
        examples=("ng_version", "ng_version +json=true", "ng --version --json"),
        flags=(JSON,),
    ),
)


def by_name() -> dict[str, Command]:
    """The commands, indexed by name."""
    return {command.name: command for command in COMMANDS}


def scripts() -> dict[str, str]:
    """All console scripts and their entry point, as ``[project.scripts]`` must list them."""
    names = [*ROOTS, *(prefix + command.name for prefix in PREFIXES for command in COMMANDS)]
    return dict.fromkeys(names, ENTRY_POINT)
