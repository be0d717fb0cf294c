"""Catches misspelt parameters of a command, which would otherwise be taken for free keys and ignored in silence."""

from collections.abc import Collection, Iterable

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.interpolation import interpolated_roots
from nemo_gym.config.keys import GLOBAL_KEYS
from nemo_gym.config.locate import segments
from nemo_gym.config.suggest import nearest
from nemo_gym.config.validation import blocks, is_almost_server
from nemo_gym.errors import ConfigError


def check_parameters(
    given: Iterable[str], *, fields: Collection[str], config: DictConfig, declared: Collection[str] = ()
) -> None:
    """Refuse command-line keys that nothing can mean. One error lists all of them, each with the nearest known key.

    A key has a meaning if it is a field of the command's configuration class, a global key, a server, a key that some
    value refers to as ``${key}``, or one that a configuration file sets too (``declared``).
    """
    servers = {name for name, block in blocks(config) if is_almost_server(block)}
    used = interpolated_roots(OmegaConf.to_container(config, resolve=False))
    known = {*fields, *GLOBAL_KEYS, *servers, *used, *declared}
    unknown = list(dict.fromkeys(root for key in given if (root := segments(key)[0]) not in known))
    if not unknown:
        return
    lines = [_describe(key, known - {"h", "_copy", "_inherit_from", "_delete_key"}) for key in unknown]
    raise ConfigError(
        "\n".join(lines),
        hint=f"this command takes: {', '.join(sorted(fields)) or 'no parameters of its own'}"
        f"; any other key must be used by a config file as ${{{unknown[0]}}}",
    )


def _describe(key: str, known: Collection[str]) -> str:
    near = nearest(key, known)
    return f"command line: unknown parameter '{key}'." + (
        f" Did you mean: {' or '.join(map(repr, near))}?" if near else ""
    )
