"""Opens and closes the attempts of programs at a model server, in this process or another one.

    attempt = await open_attempt(client, "policy_model")
    ...  # a program that is given attempt.base_url and attempt.api_key runs
    report = await attempt.close()

Close before verifying: then nothing that the program does can still change what is verified.
"""

from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from nemo_gym.capture.calls import CallStore
from nemo_gym.capture.gateway import AttemptReport, Gateway, GatewayAttempt
from nemo_gym.config.addresses import base_url, server_settings
from nemo_gym.errors import ConfigError
from nemo_gym.servers.middleware.rollout_scope import PATH_PREFIX, current_mark, current_rollout_id, mark_program

OPEN_PATH: Final = "/ng-attempts"
CLOSE_PATH: Final = "/ng-attempts/close"
REPORT_PATH: Final = "/ng-attempts/report"


class AttemptRequest(BaseModel):
    """How to open an attempt."""

    name: str = ""
    patience_s: float = 600.0  # how long calls are held while the endpoint is down


class AttemptKey(BaseModel):
    """What an attempt is opened with."""

    id: str
    api_key: str


@dataclass(frozen=True)
class OpenedAttempt:
    """An attempt that a program may call a model for."""

    id: str
    root_url: str  # for clients that add the version of the protocol themselves
    api_key: str = field(repr=False)
    _client: Any = field(repr=False)
    _server: str = field(repr=False)

    @property
    def base_url(self) -> str:
        """The address as OpenAI's clients want it."""
        return f"{self.root_url}/v1"

    async def report(self) -> AttemptReport:
        """What the program has asked so far."""
        return await self._post(REPORT_PATH)

    async def close(self) -> AttemptReport:
        """End the running calls, refuse further ones, and return what was asked; again, to learn of late calls."""
        return await self._post(CLOSE_PATH)

    async def _post(self, path: str) -> AttemptReport:
        body = {"id": self.id, "api_key": self.api_key}
        return AttemptReport.model_validate_json(await _content(self._client, self._server, path, body))


async def open_attempt(client: Any, server: str, *, name: str = "", patience_s: float = 600.0) -> OpenedAttempt:
    """Open the current attempt at a model server."""
    request = {"name": name or current_rollout_id() or "", "patience_s": patience_s}
    given = AttemptKey.model_validate_json(await _content(client, server, OPEN_PATH, request))
    address = base_url(server_settings(client.global_config_dict, server))
    return OpenedAttempt(given.id, f"{address}{PATH_PREFIX}{given.id}", given.api_key, client, server)


async def _content(client: Any, server: str, path: str, body: dict[str, Any]) -> bytes:
    reply = await client.post(server_name=server, url_path=path, json=body)
    content: bytes = await reply.read()
    if reply.status in (404, 405):
        raise ConfigError(
            f"{server} has no gateway for programs (status {reply.status} from {path})",
            hint="name a model server of this Gym, with num_workers: 1 (the calls of an attempt stay in one process)",
        )
    if reply.status >= 400:
        raise RuntimeError(f"{server} did not open or close an attempt: {content.decode(errors='replace')[:500]}")
    return content


def add_attempt_routes(app: Any, gateway: Gateway, store: CallStore, server: str) -> None:
    """Add the routes by which agents open and close attempts at a model server."""
    from fastapi import HTTPException  # noqa: PLC0415 - agents need not load servers

    def find(body: AttemptKey) -> GatewayAttempt:
        found = gateway.find(body.id)
        if found is None or found.key != body.api_key:
            raise HTTPException(410, f"there is no attempt {body.id} here: was the model server restarted?")
        return found

    async def open_(body: AttemptRequest) -> AttemptKey:
        context = copy_context()
        mark = context.run(mark_program)
        calls = store.attempt(mark)
        if calls is None:
            raise HTTPException(410, "this attempt has ended")
        attempt = gateway.open(server, calls, mark=mark, name=body.name, context=context, patience_s=body.patience_s)
        attempt.is_collected = bool(current_mark())
        return AttemptKey(id=attempt.id, api_key=attempt.key)

    async def close(body: AttemptKey) -> AttemptReport:
        attempt = find(body)
        report = gateway.close(attempt)
        if not attempt.is_collected:
            store.forget(attempt.mark)
        return report

    async def report(body: AttemptKey) -> AttemptReport:
        return find(body).summary()

    app.post(OPEN_PATH)(open_)
    app.post(CLOSE_PATH)(close)
    app.post(REPORT_PATH)(report)
