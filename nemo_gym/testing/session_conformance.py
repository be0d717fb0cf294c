"""For tests of authors: whether a resources server keeps the contract of sessions (``servers/resources_sessions``)."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.testclient import TestClient

from nemo_gym.servers.resources_sessions import CLOSE_PATH, SEED_PATH, ResourcesSeedSessionRequest

__all__ = ["check_resources_session_contract"]


def check_resources_session_contract(
    app: FastAPI, seed: ResourcesSeedSessionRequest | Any, *, keeps_state: bool
) -> None:
    """Check how an app opens and closes sessions; an ``AssertionError`` says what it does otherwise."""
    body = seed.model_dump(mode="json") if isinstance(seed, BaseModel) else dict(seed)
    name, episode = body["resources_session_id"], body["episode_id"]
    never = {"resources_session_id": f"{name}-never-seeded", "episode_id": episode}
    close = {"resources_session_id": name, "episode_id": episode}
    with TestClient(app) as client:
        for attempt in ("first", "repeated"):
            _expect(client, SEED_PATH, body, f"the {attempt} seed", name)
        for attempt in ("first", "repeated"):
            _expect(client, CLOSE_PATH, close, f"the {attempt} close", name)
        _expect(client, CLOSE_PATH, never, "closing a session that was never opened", never["resources_session_id"])
        if keeps_state:
            status = client.post(SEED_PATH, json=body).status_code
            assert status >= 400, f"a seed after its close was accepted with status {status}"


def _expect(client: TestClient, path: str, body: dict[str, Any], what: str, session: str) -> None:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, f"{what} got status {reply.status_code}: {reply.text[:200]}"
    assert reply.json().get("resources_session_id") == session, f"{what} was answered for another session: {reply.text}"
