"""``ng_dump_config`` and ``ng_validate``: look at a configuration without starting anything."""

from collections.abc import Sequence

from omegaconf import OmegaConf

from nemo_gym.cli import console
from nemo_gym.cli.outcome import Exit
from nemo_gym.cli.parameters import RunConfig
from nemo_gym.cli.settings import read_configuration
from nemo_gym.config.instances import read_instances
from nemo_gym.config.interpolation import plain
from nemo_gym.config.keys import DUMMY_MODEL
from nemo_gym.config.secrets import mask_secrets


def dump_config(overrides: Sequence[str]) -> int:
    """Print the configuration as the servers would see it. Keys of any command may be in it."""
    config = read_configuration(None, overrides)
    console.emit(OmegaConf.to_yaml(OmegaConf.create(mask_secrets(plain(config)))).rstrip("\n"))
    return Exit.OK


def validate(overrides: Sequence[str]) -> int:
    """Check everything that can be checked before a server starts."""
    config = read_configuration(RunConfig, overrides, needs_model=False)
    names = [server.name for server in read_instances(config) if server.implementation != DUMMY_MODEL]
    console.emit("✓ Config is valid.")
    console.note(f"servers: {', '.join(names) or '(none)'}")
    return Exit.OK
