"""Blocks that were meant as servers but are not valid ones: reported together, and fatal unless allowed."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from omegaconf import DictConfig
from pydantic import ValidationError

from nemo_gym.config.interpolation import find_unresolved, unresolved_error
from nemo_gym.config.keys import ERROR_ON_ALMOST_SERVERS
from nemo_gym.config.locate import Locator
from nemo_gym.config.server_types import ServerInstanceConfig
from nemo_gym.config.validation import blocks, explain, is_almost_server, maybe_get_server_instance_config
from nemo_gym.errors import AlmostServerError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AlmostServer:
    """A block that names a server type and an entrypoint, and what is wrong with it."""

    name: str
    error: ValidationError

    def describe(self, locator: Locator) -> str:
        """What is wrong, one line per mistake."""
        place = locator.find(self.name)
        title = f"Almost-Server Detected: '{self.name}'" + (f" ({place})" if place else "")
        lines = dict.fromkeys(explain(error) for error in self.error.errors(include_url=False, include_input=False))
        return "\n".join([title, *(f"  {line}" for line in lines), "  This server will NOT be started."])


def read_servers(config: DictConfig, *, locator: Locator, strict: bool) -> list[ServerInstanceConfig]:
    """The valid servers of a configuration. Almost-servers are an error if ``strict``, else a logged warning."""
    servers: list[ServerInstanceConfig] = []
    almost: list[AlmostServer] = []
    for name, block in blocks(config):
        server, error = maybe_get_server_instance_config(name, block)
        if server is not None:
            servers.append(server)
        elif error is not None and is_almost_server(block):
            _check_resolved(name, block, error, locator)
            almost.append(AlmostServer(name, error))
    if almost:
        _report(almost, locator, strict=strict)
    return servers


def _check_resolved(name: str, block: DictConfig, error: ValidationError, locator: Locator) -> None:
    """A value that is wrong only because its ``${...}`` points nowhere deserves an error that says so."""
    wrong = {".".join(map(str, [name, *details["loc"]])) for details in error.errors()}
    problems = [problem for problem in find_unresolved(block, name) if problem.key in wrong]
    if problems:
        raise unresolved_error(problems, locator=locator)


def _report(almost: Sequence[AlmostServer], locator: Locator, *, strict: bool) -> None:
    text = "Configuration Warnings: Almost-Servers Detected\n\n" + "\n\n".join(a.describe(locator) for a in almost)
    if strict:
        raise AlmostServerError(
            text, hint=f"correct these blocks, or pass '++{ERROR_ON_ALMOST_SERVERS}=false' to go on without them"
        )
    logger.warning("%s", text)
