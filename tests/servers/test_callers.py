"""Who may call the servers of a Gym: nobody by a foreign name, everybody of the same user, others with a proof."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
from starlette.datastructures import Headers

from nemo_gym.config.parse import parse_config
from nemo_gym.errors import ConfigError
from nemo_gym.io.loopback_peer import knows_users, user_of_peer
from nemo_gym.servers.callers import asks_for_token, callers_of
from nemo_gym.servers.gym import Gym, host_gym
from nemo_gym.servers.listen import bind, listening
from nemo_gym.servers.middleware.host_names import foreign_name, host_names, is_allowed
from nemo_gym.servers.server_client import TOKEN_HEADER, GymClient
from tests.conftest import MockModel
from tests.ports import free_port

CONFIGS = (
    "resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml,"
    "responses_api_models/openai_model/configs/openai_model.yaml"
)
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
CALL = """
import os, sys, json, urllib.request, urllib.error
"".encode("idna")  # imported now: the interpreter's own files may be closed to others
os.setuid(int(sys.argv[1]))
headers = {"Content-Type": "application/json", **json.loads(sys.argv[3])}
request = urllib.request.Request(sys.argv[2], data=sys.argv[4].encode(), headers=headers)
try:
    print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


@pytest_asyncio.fixture
async def gym(mock_model: MockModel) -> AsyncIterator[Gym]:
    policy = [f"+policy_base_url={mock_model.base_url}", "+policy_api_key=none", "+policy_model_name=mock"]
    head = f"+head_server={{host: 127.0.0.1, port: {free_port()}}}"
    async with host_gym(parse_config([f"+config_paths=[{CONFIGS}]", *policy, head]).config, head=True) as hosted:
        yield hosted


def url_of(gym: Gym, name: str = "policy_model") -> str:
    return gym.client._address_of(name)


async def call(url: str, headers: Mapping[str, str], body: Any = None) -> tuple[int, str]:
    body = body or {"input": "hi"}
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as reply:
        return reply.status, await reply.text()


async def call_as(user: int, url: str, headers: Mapping[str, str] | None = None, body: Any = None) -> str:
    sent = json.dumps(headers or {}), json.dumps({"input": "hi"} if body is None else body)
    command = [sys.executable, "-c", CALL, str(user), url, *sent]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    return (await process.communicate())[0].decode().strip()


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Host": "evil.example:80"}, {"Origin": "http://evil.example"}, {"Origin": "null"}],
)
async def test_no_port_answers_a_foreign_name(headers: dict[str, str], gym: Gym, mock_model: MockModel) -> None:
    head = gym.client.head_server_config
    addresses = [f"{url_of(gym, i.name)}/v1/responses" for i in gym.instances]
    for address in [*addresses, f"http://127.0.0.1:{head.port}/global_config_dict_yaml"]:
        status, body = await call(address, {**headers, TOKEN_HEADER: gym.client.token or ""})
        assert status == 421
        assert "allowed_hosts" in body
    assert mock_model.stats()["model_calls"] == 0


async def test_programs_of_the_same_user_call_as_ever(gym: Gym) -> None:
    for headers in ({}, {"Host": "localhost"}, {"Origin": "http://localhost:3000"}):
        assert (await call(f"{url_of(gym)}/v1/responses", headers))[0] == 200
    async with openai.AsyncOpenAI(base_url=f"{url_of(gym)}/v1", api_key="dummy") as client:
        assert (await client.responses.create(model="m", input="hi")).output
    async with openai.AsyncOpenAI(base_url=f"{url_of(gym)}/ng-rollout/0-0/v1", api_key="dummy") as client:
        assert (await client.responses.create(model="m", input="hi")).output


@needs_root
async def test_another_user_needs_the_token(gym: Gym, mock_model: MockModel) -> None:
    os.environ.pop("NEMO_GYM_RUN_TOKEN", None)
    url = f"{url_of(gym)}/v1/responses"
    for headers in ({}, {TOKEN_HEADER: "wrong"}, {"Authorization": "Bearer wrong"}):
        refused = await call_as(NOBODY, url, headers)
        assert refused.startswith("401 ")
        assert "serve_token=off" in refused
    assert (await call_as(NOBODY, f"{url_of(gym)}/ng-rollout/0-0/v1/responses")).startswith("401 ")
    assert mock_model.stats()["model_calls"] == 0
    token = gym.client.token or ""
    assert await call_as(NOBODY, url, {TOKEN_HEADER: token}) == "200"
    assert await call_as(NOBODY, url, {"Authorization": f"Bearer {token}"}) == "200"
    assert await call_as(0, url) == "200"


@needs_root
async def test_a_session_cookie_of_the_server_is_enough(gym: Gym) -> None:
    name = "example_session_state_mgmt_resources_server"
    seeded = await gym.client.post(name, "/seed_session", json={"initial_count": 3})
    cookie = "; ".join(f"{key}={value}" for key, value in seeded.cookies.items())
    url = f"{url_of(gym, name)}/get_counter_value"
    assert await call_as(NOBODY, url, {"Cookie": cookie}, {}) == "200"
    assert (await call_as(NOBODY, url, {"Cookie": cookie[:-4] + "beef"}, {})).startswith("401 ")
    # It is of no use at another server.
    assert (await call_as(NOBODY, f"{url_of(gym)}/v1/responses", {"Cookie": cookie})).startswith("401 ")


@needs_root
async def test_the_head_server_shows_others_where_servers_are_but_no_secrets(gym: Gym) -> None:
    url = f"http://127.0.0.1:{gym.client.head_server_config.port}/global_config_dict_yaml"
    assert (await call_as(NOBODY, url)).startswith("405 ")  # for a POST: it was let in


async def test_our_own_client_finds_the_token_by_itself(gym: Gym) -> None:
    client = await asyncio.to_thread(GymClient.load_from_head, gym.client.head_server_config)
    assert client.token == gym.client.token
    assert (await client.post("policy_model", "/v1/responses", json={"input": "hi"})).status == 200
    assert (await client.get("policy_model", "/v1/models")).status == 200


@needs_root
async def test_without_the_token_everybody_may_call_by_a_name_of_ours(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    config = {"head_server": {"host": "127.0.0.1", "port": 1}, "serve_token": "off", "allowed_hosts": ["gym.internal"]}
    listener = bind("127.0.0.1", 0, owner="test")
    port = listener.getsockname()[1]
    async with listening({port: app}, [listener], callers_of(config, [])):
        url = f"http://127.0.0.1:{port}/"
        assert await call_as(NOBODY, url) == "200"
        assert await call_as(NOBODY, url, {"Host": "gym.internal:1234"}) == "200"
        assert (await call_as(NOBODY, url, {"Host": "evil.example"})).startswith("421 ")


@pytest.mark.parametrize(("given", "asked"), [(None, True), (True, True), ("on", True), (False, False), ("off", False)])
def test_the_token_can_be_switched_off(given: Any, asked: bool) -> None:
    assert asks_for_token({"serve_token": given}) is asked


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="serve_token is 'maybe'"):
        asks_for_token({"serve_token": "maybe"})
    with pytest.raises(ConfigError, match="allowed_hosts is 'name'"):
        callers_of({"allowed_hosts": "name", "head_server": {"host": "127.0.0.1"}}, [])


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:", "[::1]", "[::1]:8080"])
def test_a_host_may_be_given_with_its_port(host: str) -> None:
    assert foreign_name(Headers({"host": host}), host_names(["127.0.0.1"])) is None


@pytest.mark.parametrize(
    "sent",
    [
        [],
        [("host", "")],
        [("host", "localhost"), ("host", "evil.example")],
        [("host", "[::1].evil.example")],
        [("host", "localhost:80.evil.example")],
        [("host", "localhost.evil.example")],
        [("host", "evil.example@localhost")],
        [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://evil.example")],
    ],
)
def test_a_host_that_is_ours_only_in_part_is_foreign(sent: list[tuple[str, str]]) -> None:
    raw = [(name.encode(), value.encode()) for name, value in sent]
    assert foreign_name(Headers(raw=raw), host_names(["127.0.0.1"])) is not None


def test_names_of_this_machine_count_only_where_it_can_be_reached() -> None:
    near, far = host_names(["127.0.0.1"]), host_names(["0.0.0.0"])
    assert is_allowed("localhost:1", near)
    assert is_allowed("[::1]:1", near)
    assert not is_allowed("10.0.0.1:1", near)
    assert is_allowed("10.0.0.1:1", far)
    assert not is_allowed("evil.example", far)
    assert not is_allowed("", near)
    assert is_allowed("gym.internal", host_names(["gym.internal"]))


def test_the_kernel_knows_whose_connection_it_is_until_it_is_closed() -> None:
    if not knows_users():
        pytest.skip("this kernel does not tell")
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as server, socket.socket(family) as client:
            try:
                server.bind((host, 0))
            except OSError:
                continue  # no IPv6 here
            server.listen()
            own = server.getsockname()[:2]
            client.connect(own)
            peer = client.getsockname()[:2]
            assert user_of_peer(peer, own) == os.geteuid()
            client.close()
            assert user_of_peer(peer, own) is None  # and not 0, as the kernel has it
    assert user_of_peer(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
    assert user_of_peer(("not an address", 1), ("127.0.0.1", 2)) is None
