"""References between servers: every ``{type: ..., name: ...}`` in a server's settings must name an existing server."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nemo_gym.config.keys import INHERIT_FROM
from nemo_gym.config.locate import Locator
from nemo_gym.config.server_types import ServerInstanceConfig
from nemo_gym.config.suggest import did_you_mean
from nemo_gym.config.validation import is_server_ref
from nemo_gym.errors import ServerRefNotFoundError
from nemo_gym.schemas.refs import ServerRef


def check_references(
    servers: Sequence[ServerInstanceConfig], *, moved: Mapping[str, list[str]], locator: Locator
) -> None:
    """Refuse references to servers that are not there. One error lists all of them."""
    names: dict[str, list[str]] = {}
    for server in servers:
        names.setdefault(server.SERVER_TYPE, []).append(server.name)
    problems = []
    for server in servers:
        root = f"{server.name}.{server.SERVER_TYPE}.{server.implementation}"
        for field, ref in find_references(server.get_inner_run_server_config_dict()):
            if ref.name not in names.get(ref.type, []):
                problem = f"server '{server.name}', field '{field}': {ref.type}/'{ref.name}' is not defined. "
                known = _advice(ref, names.get(ref.type, []), moved)
                problems.append(locator.at(f"{root}.{field}") + problem + known)
    if problems:
        raise ServerRefNotFoundError(
            "\n".join(problems), hint="correct the name, or add the file that defines the server to config_paths"
        )


def find_references(value: Any, field: str = "") -> Iterator[tuple[str, ServerRef]]:
    """All references below a value, each with the dotted field in which it stands."""
    if isinstance(value, dict):
        if ref := is_server_ref(value):
            yield field, ref
            return
        for name, child in value.items():
            yield from find_references(child, f"{field}.{name}" if field else str(name))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from find_references(child, f"{field}[{index}]")


def _advice(ref: ServerRef, known: list[str], moved: Mapping[str, list[str]]) -> str:
    if targets := moved.get(ref.name):
        return f"'{INHERIT_FROM}' moved it to {' and '.join(map(repr, targets))}; refer to that name."
    return did_you_mean(ref.name, known, available=f"Available {ref.type}")
