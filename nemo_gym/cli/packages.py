"""``ng_pip_list``: the packages that a server runs with."""

import subprocess
from collections.abc import Sequence

from nemo_gym.cli.environments import interpreter_of
from nemo_gym.cli.folders import find_server
from nemo_gym.cli.parameters import PipListConfig
from nemo_gym.cli.settings import read_parameters
from nemo_gym.errors import ConfigError


def pip_list(overrides: Sequence[str]) -> int:
    """List the packages with pip, whose exit code is the command's."""
    config = read_parameters(PipListConfig, overrides)
    server = find_server(config.entrypoint)
    python = interpreter_of(server, config.environments)
    if python is None:
        raise ConfigError(
            f"{server} needs a virtual environment of its own, which was not built yet",
            hint=f"ng_test +entrypoint={server} or ng_run with its configuration builds it",
        )
    outdated = ["--outdated"] if config.outdated else []
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "list", f"--format={config.format}", *outdated]
    return subprocess.run(command, check=False).returncode
