"""Bare words of a command line that name environments: ``ng_run calculator``, ``ng eval run letters.py``.

An environment is named as in Python: the name of a shipped one, a folder, a ``.yaml`` or a ``.py`` file.
"""

from typing import NamedTuple

from nemo_gym.api.choices import Choice, choose_environment
from nemo_gym.cli.command import Arguments, bare_words
from nemo_gym.config.keys import CONFIG_PATHS
from nemo_gym.errors import UsageError


class NamedEnvironments(NamedTuple):
    """The arguments with the configuration of the environments that they name, and what each name stands for."""

    arguments: Arguments
    choices: list[Choice]

    @property
    def only(self) -> Choice | None:
        """The one environment that is named, if any is; several are an error."""
        if len(self.choices) > 1:
            raise UsageError(f"{len(self.choices)} environments are named", hint="name one of them")
        return self.choices[0] if self.choices else None


def named_environments(arguments: Arguments) -> NamedEnvironments:
    """Replace the bare words by the configuration of the environments that they name."""
    words = bare_words(arguments)
    if not words:
        return NamedEnvironments(arguments, [])
    if arguments.sets(CONFIG_PATHS) and CONFIG_PATHS not in arguments.pairs:
        raise UsageError(
            f"configuration files are given both by name ({' '.join(words)}) and by +config_paths",
            hint=f"name the files by flags: {' '.join(words)} --config <file>",
        )
    choices = [choose_environment(word) for word in words]
    values = {key: value for choice in choices for key, value in choice.values.items()}
    files = [path for choice in choices for path in choice.config_paths]
    pairs = {**values, CONFIG_PATHS: [*files, *arguments.pairs.get(CONFIG_PATHS, [])]}
    return NamedEnvironments(arguments.with_pairs(pairs, without=words), choices)
