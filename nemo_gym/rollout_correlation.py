"""Front door: the id of the rollout that a request belongs to. See ``nemo_gym.servers.middleware.rollout_scope``."""

from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.schemas.record import Record
from nemo_gym.schemas.rows import (
    ATTEMPT_INDEX_KEY_NAME,
    ROLLOUT_ID_KEY_NAME,
    ROLLOUT_ID_PATTERN,
)
from nemo_gym.servers.middleware.rollout_scope import (
    adopt_path_prefix,
    current_rollout_id,
    rollout_context,
    rollout_id_of,
)

__all__ = [
    "ROLLOUT_ID_PATTERN",
    "RolloutContextMiddleware",
    "current_rollout_id",
    "maybe_rollout_id_from_run_body",
    "rollout_context",
]


def maybe_rollout_id_from_run_body(body: Any) -> str | None:
    """The id in a body of ``/run``, or the one that follows from its indices; None if it has neither."""
    given = _fields(body)
    explicit = given.get(ROLLOUT_ID_KEY_NAME, given.get("capture_rollout_id"))
    if explicit is not None:
        if not isinstance(explicit, str) or not ROLLOUT_ID_PATTERN.match(explicit):
            raise ValueError(
                f"{ROLLOUT_ID_KEY_NAME} {explicit!r} is not an id: letters, digits, '.', '_' and '-', "
                "with a letter or a digit first"
            )
        return explicit
    key = Record(given).key
    return None if key is None else rollout_id_of(*key, int(given.get(ATTEMPT_INDEX_KEY_NAME) or 0))


def _fields(body: Any) -> Mapping[str, Any]:
    if isinstance(body, Mapping):
        return body
    # Undeclared fields exist only if the model allows extra ones.
    return {**(getattr(body, "__dict__", None) or {}), **(getattr(body, "model_extra", None) or {})}


class RolloutContextMiddleware:
    """Removes the prefix ``/ng-rollout/<id>`` from the path and makes the request belong to that rollout.

    Servers hosted by this package handle the prefix without this middleware.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            with rollout_context(current_rollout_id()):  # restores the previous id after this request
                await self.app(adopt_path_prefix(scope), receive, send)
        else:
            await self.app(scope, receive, send)
