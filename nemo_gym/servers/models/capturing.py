"""The calls that a model server keeps for attempts, and the route by which a collector takes them.

Calls are kept where the caller says so in the mark of the attempt: then its collector takes them in the end. A server
with several worker processes keeps none, because the calls of one attempt are spread over them; neither does one with a
cache, whose completions must not depend on the attempt. Their items carry their tokens, as they do outside an attempt.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from omegaconf import DictConfig
from pydantic import BaseModel

from nemo_gym.capture.calls import AttemptCalls, CallStore
from nemo_gym.config.addresses import server_names, server_settings
from nemo_gym.io.json import encode_json
from nemo_gym.servers.middleware.rollout_scope import captured_mark

TAKE_PATH: Final = "/ng-calls"
MODEL_SERVERS: Final = "responses_api_models"
RECORDS_TOKENS: Final = "return_token_id_information"
# How the tokens of model calls are written, and whether they travel with the items: a parameter of a collection.
TOKEN_IDS_KEY: Final = "token_ids"  # noqa: S105 - the name of a parameter
ADDED_ONLY, FULL, ON_ITEMS = "added", "full", "items"


class TakenCalls(BaseModel):
    """Which attempt has ended, and the calls of which its result already has the items."""

    attempt: str
    delivered: list[str] = []


class Capture:
    """The calls that one model server keeps."""

    def __init__(self, store: CallStore, *, is_on: bool) -> None:
        self.store = store
        self._is_on = is_on

    def attempt(self) -> AttemptCalls | None:
        """The attempt that the current call belongs to, if its calls are kept."""
        mark = captured_mark() if self._is_on else None
        if mark is None:
            return None
        self.store.make_room()
        return self.store.attempt(mark)

    def add_route(self, app: Any) -> None:
        """Add the route for collectors in other processes; the mark of an attempt is known to nobody else."""
        from fastapi import HTTPException, Response  # noqa: PLC0415 - collectors need not load servers

        async def take(body: TakenCalls) -> Response:
            if not self._is_on:
                raise HTTPException(404, "this server keeps no calls")
            calls = self.store.take(body.attempt, body.delivered)
            return Response(encode_json(calls), media_type="application/json")

        app.post(TAKE_PATH)(take)


def capture_of(client: object, settings: BaseModel) -> Capture:
    """What a server with these settings keeps; all servers of a process share one store."""
    store = getattr(client, "calls", None)
    config = getattr(client, "global_config_dict", None)
    is_cached = isinstance(config, DictConfig) and bool(config.get("cache"))
    is_on = can_capture(settings.__dict__) and not is_cached
    return Capture(store if isinstance(store, CallStore) else CallStore(), is_on=is_on)


def can_capture(settings: Mapping[str, Any]) -> bool:
    """Whether a model server with these settings can keep its calls."""
    return bool(settings.get(RECORDS_TOKENS)) and int(settings.get("num_workers") or 1) <= 1


def capturing_servers(config: Any) -> list[str]:
    """The model servers of a Gym that keep the calls of attempts."""
    if not isinstance(config, DictConfig) or config.get("cache") or config.get(TOKEN_IDS_KEY) == ON_ITEMS:
        return []
    return [name for name, settings in _model_settings(config) if can_capture(settings)]


def _model_settings(config: DictConfig) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in server_names(config, MODEL_SERVERS):
        yield name, server_settings(config, name)
