import asyncio
import json
import os
import socket
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from fastapi import FastAPI
from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.addresses import ServerNotFoundError
from nemo_gym.errors import ConfigError, NoServerInstancesError
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers import loader
from nemo_gym.servers.direct.replies import DirectReply
from nemo_gym.servers.gym import Gym, host_gym
from nemo_gym.servers.http.connections import get_global_aiohttp_client
from nemo_gym.servers.server_client import TOKEN_HEADER, GymClient, HeadServerUnreachableError, read_run_token
from nemo_gym.servers.supervision import ServerCrashedError
from tests.forked_commands import ForkedCommands

Build = Callable[..., DictConfig]


async def greet(client: GymClient, server: str, path: str = "/greet") -> str:
    answer = await client.post(server_name=server, url_path=path, json={"name": "Ada"})
    return str((await answer.json())["text"])


def port_of(config: DictConfig, name: str) -> int:
    return int(config[name].resources_servers.toy_for_tests.port)


async def test_a_server_in_the_same_process_is_called_directly_and_also_listens(gym_config: Build) -> None:
    config = gym_config(toy={})
    async with host_gym(config) as gym:
        direct = await gym.client.post(server_name="toy", url_path="/greet", json={"name": "Ada"})
        assert isinstance(direct, DirectReply)
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{port_of(config, 'toy')}"
            async with session.post(f"{url}/greet", json={"name": "Ada"}) as real:
                assert await real.read() == await direct.read() == b'{"text":"hello, Ada"}'
            async with session.get(url) as alive:
                assert await alive.json() == {"status": "ok"}


async def test_servers_near_and_far_behave_alike(gym_config: Build, tmp_path: Path) -> None:
    """One Gym for all of it, because a server in another process takes a second to start."""
    config = gym_config(
        near={"other": "far", "greeting": "hi"}, far={"other": "near", "greeting": "hey", "isolation": "process"}
    )
    config["nemo_gym_log_dir"] = str(tmp_path / "logs")
    async with host_gym(config) as gym:
        await check_calls(gym)
        await check_sessions(gym.client)
        await check_timeouts(gym.client)
    assert "POST" not in (tmp_path / "logs" / "far.log").read_text(), "requests are logged on request only"


async def check_calls(gym: Gym) -> None:
    assert await greet(gym.client, "far") == "hey, Ada"
    assert await greet(gym.client, "near", "/ask_other") == "hey, Ada"
    assert await greet(gym.client, "far", "/ask_other") == "hi, Ada"
    pids = [json.loads(await (await gym.client.post(n, "/whoami")).read())["pid"] for n in ("near", "far")]
    assert pids[0] == os.getpid() != pids[1]
    assert [server.pid for server in gym.describe()] == pids


async def check_sessions(client: GymClient) -> None:
    for name in ("near", "far"):
        first = await client.post(name, "/whoami")
        second = await client.post(name, "/whoami", cookies=first.cookies)
        third = await client.post(name, "/whoami")
        ids = [json.loads(await reply.read())["session"] for reply in (first, second, third)]
        assert ids[0] == ids[1] != ids[2]


async def check_timeouts(client: GymClient) -> None:
    for name in ("near", "far"):
        with pytest.raises(TimeoutError, match=r"POST http://.*/slow: no reply within 0\.05 s") as error:
            await client.post(name, "/slow", timeout=0.05)
        assert isinstance(error.value, aiohttp.ClientError)


async def test_connection_limits_of_the_configuration_take_effect(gym_config: Build) -> None:
    config = gym_config(near={})
    config["global_aiohttp_connector_limit"], config["global_aiohttp_connector_limit_per_host"] = 7, 3
    async with host_gym(config):
        connector = get_global_aiohttp_client().connector
        assert connector is not None
        assert (connector.limit, connector.limit_per_host) == (7, 3)
    config["global_aiohttp_connector_limit"] = "many"
    with pytest.raises(ConfigError, match="global_aiohttp_connector_limit is 'many'"):
        async with host_gym(config):
            pass


async def test_workers_share_port_and_sessions_and_log_requests_if_asked(gym_config: Build, tmp_path: Path) -> None:
    config = gym_config(far={"num_workers": 2, "isolation": "process"})
    config["nemo_gym_log_dir"] = str(tmp_path / "logs")
    config["uvicorn_logging_show_200_ok"] = True
    async with host_gym(config) as gym:
        url = gym.describe()[0].url
        pids: set[int] = set()
        sessions: set[str] = set()
        cookies = {name: cookie.value for name, cookie in (await gym.client.post("far", "/whoami")).cookies.items()}

        async def ask() -> None:
            async with (
                aiohttp.ClientSession(cookies=cookies, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
                session.post(f"{url}/whoami") as reply,
            ):
                answer = await reply.json()
            pids.add(answer["pid"])
            sessions.add(answer["session"])

        for _ in range(100):  # which worker takes a connection is up to the system
            await asyncio.gather(*(ask() for _ in range(16)))
            if len(pids) == 2:
                break
        assert len(pids) == 2
        assert len(sessions) == 1
    assert '"POST /whoami HTTP/1.1" 200' in (tmp_path / "logs" / "far.log").read_text()


async def test_a_process_that_can_not_start_is_reported_and_the_others_are_stopped(
    gym_config: Build, project: Path
) -> None:
    (project / "app.py").write_text("raise ImportError('no such thing')")
    with pytest.raises(ServerCrashedError, match="no such thing"):
        async with host_gym(gym_config(far={"isolation": "process"})):
            pytest.fail("the Gym must not open")


PARENT = """
import asyncio, sys
from omegaconf import OmegaConf
from nemo_gym.servers.gym import host_gym


async def main():
    async with host_gym(OmegaConf.create(sys.argv[1])) as gym:
        print("children", *(each.pid for each in gym.supervisors[0].processes), "are ready", flush=True)
        await asyncio.sleep(60)


asyncio.run(main())
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_no_server_process_outlives_a_killed_parent(
    workers: int, gym_config: Build, project: Path, commands: ForkedCommands
) -> None:
    (project / "parent.py").write_text(PARENT)
    config = OmegaConf.to_yaml(gym_config(far={"isolation": "process", "num_workers": workers}))
    with commands.start("python", str(project / "parent.py"), config) as parent:
        children = [int(word) for word in parent.read_until("are ready").split() if word.isdigit()]
        assert len(children) == workers
        parent.kill()
        assert all(map(wait_for_end, children))


def wait_for_end(pid: int) -> bool:
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


async def test_a_port_in_use_names_the_server_and_the_port(gym_config: Build) -> None:
    config = gym_config(toy={})
    with socket.socket() as other:
        other.bind(("127.0.0.1", port_of(config, "toy")))
        other.listen()
        with pytest.raises(ConfigError, match=rf"toy: can't listen on 127.0.0.1:{port_of(config, 'toy')}"):
            async with host_gym(config):
                pytest.fail("the Gym must not open")


async def test_a_module_that_fails_to_import_is_named_with_its_reason(gym_config: Build, project: Path) -> None:
    (project / "broken.py").write_text("import not_a_package_at_all")
    config = gym_config(toy={"entrypoint": "broken.py"})
    with pytest.raises(ConfigError, match=r"toy cannot be imported: .*broken.py:1: .*not_a_package_at_all"):
        async with host_gym(config):
            pytest.fail("the Gym must not open")


async def test_an_entrypoint_that_does_not_exist_is_named(gym_config: Build) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*nowhere\.py"):
        async with host_gym(gym_config(toy={"entrypoint": "nowhere.py"})):
            pytest.fail("the Gym must not open")


async def test_settings_that_do_not_fit_are_named_without_their_values(gym_config: Build) -> None:
    with pytest.raises(ConfigError) as caught:
        async with host_gym(gym_config(toy={"greeting": {"api_key": "sk-secret"}})):
            pytest.fail("the Gym must not open")
    assert "greeting: Input should be a valid string" in str(caught.value)
    assert "sk-secret" not in str(caught.value)


async def test_an_empty_configuration_is_refused() -> None:
    with pytest.raises(NoServerInstancesError):
        async with host_gym(OmegaConf.create({"head_server": {"host": "127.0.0.1", "port": 1}})):
            pytest.fail("the Gym must not open")


async def test_an_unknown_server_name_gets_the_nearest_one(gym_config: Build) -> None:
    async with host_gym(gym_config(greeter={})) as gym:
        with pytest.raises(ServerNotFoundError) as caught:
            await gym.client.post("greeterr", "/greet", json={})
    assert caught.value.hint == "Did you mean: 'greeter'?"


async def test_other_processes_find_the_servers_through_the_head_server(gym_config: Build) -> None:
    config = gym_config(toy={"openai_api_key": "sk-very-secret"})
    async with host_gym(config, head=True) as gym:
        head = gym.client.head_server_config
        client = await asyncio.to_thread(ServerClient.load_from_global_config, head)
        assert await greet(client, "toy") == "hello, Ada"
        assert await asyncio.to_thread(client.poll_for_status, "toy") == "success"
        assert await asyncio.to_thread(client.poll_for_status, "head_server") == "success"
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{head.port}"
            async with session.get(f"{url}/server_instances") as reply:
                [described] = await reply.json()
            async with session.get(f"{url}/global_config_dict_yaml") as reply:
                for_strangers = await reply.json()
            mine = {TOKEN_HEADER: read_run_token(head.port) or ""}
            async with session.get(f"{url}/global_config_dict_yaml", headers=mine) as reply:
                for_me = await reply.json()
    assert (described["process_name"], described["name"], described["port"]) == (
        "toy",
        "toy_for_tests",
        port_of(config, "toy"),
    )
    assert "sk-very-secret" not in for_strangers
    assert "sk-very-secret" in for_me


def test_a_head_server_that_does_not_run_says_what_to_start() -> None:
    from nemo_gym.schemas.refs import BaseServerConfig

    with pytest.raises(HeadServerUnreachableError, match="Could not connect to the head server at") as caught:
        ServerClient.load_from_global_config(BaseServerConfig(host="127.0.0.1", port=9))
    assert "ng_run" in (caught.value.hint or "")


async def test_a_server_with_packages_of_its_own_gets_an_environment_and_a_process(
    gym_config: Build, project: Path, tmp_path: Path
) -> None:
    wheel = tmp_path / "tiny_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_package.py", 'WORD = "tiny"')
        archive.writestr(
            "tiny_package-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n"
        )
        archive.writestr(
            "tiny_package-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_package-1.0.dist-info/RECORD", "")
    (project / "requirements.txt").write_text(f"-e nemo-gym[dev] @ ../../\ntiny-package @ file://{wheel}\n")
    (project / "own.py").write_text("import tiny_package\n" + (project / "app.py").read_text().replace("hello", "x"))
    config = gym_config(far={"entrypoint": "own.py"})
    config["uv_venv_dir"] = str(tmp_path / "venvs")
    async with host_gym(config) as gym:
        answer = await gym.client.post("far", "/whoami")
        assert json.loads(await answer.read())["pid"] != os.getpid()


def test_a_server_that_waits_in_setup_webserver_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Waiting:
        def get_session_middleware_key(self) -> str:
            return "Waiting___mine"

        def setup_webserver(self) -> FastAPI:
            time.sleep(0.3)
            return FastAPI()

        def setup_liveness(self, app: FastAPI) -> None: ...

        def setup_exception_middleware(self, app: FastAPI) -> None: ...

    monkeypatch.setattr(loader, "SLOW_SETUP_S", 0.05)
    loader.build_app(Waiting())
    assert "Waiting___mine has been in setup_webserver for 0.05 s" in caplog.text
    assert "isolation: process" in caplog.text
