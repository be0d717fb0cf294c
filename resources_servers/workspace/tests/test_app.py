# ruff: noqa: E501 - programs are easier to read in long lines than in many
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fastapi.testclient import TestClient

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import user_cache
from nemo_gym.sandbox import SandboxError
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.listen import bind, listening
from nemo_gym.servers.loader import build_app
from resources_servers.workspace.app import WorkspaceConfig, WorkspaceServer
from resources_servers.workspace.generate import GENERATOR

FIXED = {"id": "r", "created_at": 0, "model": "m", "object": "response", "tools": []}
RESPONSE = {**FIXED, "parallel_tool_calls": True, "tool_choice": "auto", "output": []}
ADDING = "def test_two():\n    import calc\n    assert calc.add(1, 1) == 2\n\n\ndef test_more():\n    import calc\n    assert calc.add(2, 3) == 5\n"


def make_client(**settings: Any) -> TestClient:
    config = WorkspaceConfig(host="127.0.0.1", port=8080, entrypoint="", name="workspace", **settings)
    return TestClient(WorkspaceServer(config=config, server_client=ServerClient.detached()).setup_webserver())


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with make_client(grading="fraction") as client:
        yield client


def task(start: dict[str, str], **tests: Any) -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": "Do it."}]}
    return {"responses_create_params": params, "world": {"files": start}, "tests": tests}


def begin(client: TestClient, row: dict[str, Any]) -> None:
    reply = client.post("/seed_session", json=row)
    assert reply.status_code == 200, reply.text


def use(client: TestClient, tool: str, **arguments: Any) -> dict[str, Any]:
    reply = client.post(f"/{tool}", json=arguments)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def verify(client: TestClient, row: dict[str, Any], **more: Any) -> dict[str, Any]:
    reply = client.post("/verify", json={**row, "response": RESPONSE, **more})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def attempt(client: TestClient, row: dict[str, Any], *commands: str) -> dict[str, Any]:
    begin(client, row)
    for command in commands:
        use(client, "run", command=command)
    return verify(client, row)


CALC = task({"calc.py": "def add(a, b):\n    return 2\n"}, files={"tests/test_calc.py": ADDING})


@pytest.mark.parametrize("difficulty", [1, 3])
def test_generated_tasks_are_worth_one_when_solved_and_nothing_when_not(client: TestClient, difficulty: int) -> None:
    for row in GENERATOR.generate(10 if difficulty == 1 else 3, seed=9, difficulty=difficulty):
        assert attempt(client, row)["reward"] == 0.0, row["question"]
        begin(client, row)
        for path, content in row["solution"].items():
            assert "error" not in use(client, "write_file", path=path, content=content)
        scored = verify(client, row)
        assert (scored["reward"], scored["reason"]) == (1.0, None), scored["tests_output"]
        assert scored["workspace_diff"]


def test_the_tools_do_what_they_say(client: TestClient) -> None:
    begin(client, CALC)
    assert use(client, "run", command="mkdir -p a/b; cd a; export X=7; echo out; echo err >&2; false") == {
        "output": "out\nerr\n",
        "exit_code": 1,
    }
    assert use(client, "run", command="pwd; echo $X")["output"].endswith("/a\n7\n")
    assert use(client, "write_file", path="a/b/c.txt", content="one\ntwo\nthree\n") == {"written": "a/b/c.txt"}
    assert use(client, "read_file", path="a/b/c.txt", first_line=2, last_line=2) == {"content": "two\n", "lines": 3}
    assert "occurs 0 times" in use(client, "edit_file", path="a/b/c.txt", old_text="four", new_text="x")["error"]
    assert use(client, "edit_file", path="a/b/c.txt", old_text="two", new_text="2") == {"edited": "a/b/c.txt"}
    assert use(client, "list_files")["lines"] == "a/b/c.txt\ncalc.py"
    assert use(client, "search", pattern="t[h]ree|2$")["lines"].splitlines() == [
        "a/b/c.txt:2:2",
        "a/b/c.txt:3:three",
        "calc.py:2:    return 2",
    ]
    assert use(client, "search", pattern="nothing") == {"lines": ""}
    assert "error" in use(client, "search", pattern="(")
    assert "No such file" in use(client, "read_file", path="missing")["error"]
    assert "too long" in use(client, "run", command="sleep 60", timeout_s=0.3)["error"]
    assert "left out" in use(client, "run", command="seq 100000")["output"]


def test_the_share_of_tests_is_the_reward(client: TestClient) -> None:
    scored = attempt(client, CALC)
    assert (scored["reward"], scored["tests_passed"], scored["tests_total"]) == (0.5, 1, 2)
    assert scored["reason"].startswith("tests/test_calc.py::test_more: AssertionError")
    assert "assert calc.add(2, 3) == 5" in scored["tests_output"]


def test_a_guard_that_fails_takes_everything(client: TestClient) -> None:
    tests = {**CALC["tests"], "guards": ["tests/test_calc.py::test_two"]}
    row = {**CALC, "tests": tests}
    assert attempt(client, row)["reward"] == 0.0
    broken = attempt(client, row, "echo 'def add(a, b): return 5' > calc.py")
    assert (broken["reward"], broken["tests_total"]) == (0.0, 1)
    assert "worked before" in broken["reason"]
    assert attempt(client, row, "echo 'def add(a, b): return a + b' > calc.py")["reward"] == 1.0


CHEATS = {
    "ending the process": "echo 'import os; os._exit(0)' > calc.py",
    "ending the process in a function": "printf 'import os\\ndef add(a, b): os._exit(0)\\n' > calc.py",
    "raising what ends programs": "echo 'raise SystemExit(0)' > calc.py",
    "ending all processes": "printf 'import os\\nos.kill(-1, 9)\\n' > calc.py",
    "ending the runner": "printf 'import os, signal\\nos.kill(os.getppid(), 9)\\n' > calc.py",
    "a verdict on the output": "printf 'import os\\nfor fd in (0, 1, 2):\\n try: os.write(fd, b\"{}\")\\n except OSError: pass\\nos._exit(0)\\n' > calc.py",
    "a verdict in the runner's output": "printf 'import os\\ntry: open(f\"/proc/{os.getppid()}/fd/1\", \"w\").write(\"{}\")\\nexcept OSError: pass\\nos._exit(0)\\n' > calc.py",
    "modules of the runner": "for m in json select unittest traceback sitecustomize usercustomize; do echo 'import os; os._exit(0)' > $m.py; done",
    "tests of one's own": "mkdir -p tests; echo 'def test_two(): pass' > tests/test_calc.py; echo 'import os; os._exit(0)' > tests/__init__.py",
    "a link instead of the tests": "ln -s /tmp tests; mkdir /tmp/keep",
    "a file instead of the tests": "echo > tests",
    "a folder instead of a test": "mkdir -p tests/test_calc.py/deep",
    "a shell of one's own": "echo 'exit 0' > sh; chmod +x sh; export PATH=$PWD:$PATH",
    "variables for the interpreter": "export PYTHONSTARTUP=$PWD/x.py PYTHONPATH=$PWD PYTHONINSPECT=1",
    "a process that waits for the tests": "(while sleep 0.1; do echo 'def add(a, b): return a + b' > calc.py; [ -d tests ] && cp -r tests /tmp/seen; done) & sleep 0.2; echo 'def add(a, b): return 2' > calc.py; kill %1",
}  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS.keys())
def test_cheats_are_worth_no_more_than_the_work(client: TestClient, cheat: str) -> None:
    assert attempt(client, CALC, cheat)["reward"] <= 0.5


def test_hidden_tests_are_nowhere_while_the_agent_works(client: TestClient) -> None:
    row = task({"calc.py": ""}, files={"tests/test_calc.py": f"SECRET = 'zebra-17'\n{ADDING}"})
    begin(client, row)
    looked = "grep -rlsI 'zebra-[1]7' / --exclude-dir=proc --exclude-dir=sys; env; cat /proc/*/cmdline"
    assert "zebra-17" not in use(client, "run", command=looked)["output"]
    verify(client, row)


def test_a_command_can_test_and_score(client: TestClient) -> None:
    row = task({"a": "1"}, kind="command", command="grep -q 2 a")
    assert attempt(client, row)["reason"] == "exit code 1"
    assert attempt(client, row, "echo 2 > a")["reward"] == 1.0
    scoring = task({"a": "1"}, kind="command", command="echo 0.25 > score.txt; echo told", score_file="score.txt")
    scored = attempt(client, scoring)
    assert (scored["reward"], scored["tests_output"]) == (0.25, "told\n")
    silent = task({"a": "1"}, kind="command", command="true", score_file="score.txt")
    assert attempt(client, silent, "echo 1 > score.txt")["reward"] == 0.0
    slow = task({"a": "1"}, kind="command", command="sleep 60", timeout_s=0.3)
    assert attempt(client, slow)["reason"] == "the tests took too long"


def test_programs_bring_their_changes_with_them(client: TestClient) -> None:
    seeded = client.post("/seed_session", json=CALC)
    assert seeded.json()["workspace_files"] == CALC["world"]["files"]
    changes = {"files": {"calc.py": "def add(a, b):\n    return a + b\n"}, "removed": [], "diff": "…"}
    assert verify(client, CALC, workspace=changes)["reward"] == 1.0


def test_a_folder_and_a_setup_prepare_the_workspace(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    row = {**CALC, "world": {"folder": str(tmp_path), "setup": "touch ready"}}
    begin(client, row)
    assert use(client, "list_files")["lines"] == "calc.py\nready"
    assert verify(client, row)["reward"] == 1.0
    failing = {**CALC, "world": {"setup": "echo no >&2; exit 3"}}
    with pytest.raises(SandboxError, match="exit code 3: no"):
        client.post("/seed_session", json=failing)


def test_a_package_of_the_index_is_checked_and_unpacked(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NEMO_GYM_CACHE", raising=False)
    archive = user_cache(os.environ) / "sources" / "calc-1.0.tar.gz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as package:
        text = b"def add(a, b):\n    return a + b\n"
        member = tarfile.TarInfo("calc-1.0/calc.py")
        member.size = len(text)
        package.addfile(member, io.BytesIO(text))
    pinned = {"name": "calc", "version": "1.0", "sha256": hashlib.sha256(archive.read_bytes()).hexdigest()}
    assert attempt(client, {**CALC, "world": {"package": pinned}})["reward"] == 1.0
    with pytest.raises(ConfigError, match="SHA-256"):
        client.post("/seed_session", json={**CALC, "world": {"package": {**pinned, "sha256": "0" * 64}}})


async def test_the_tools_are_offered_over_mcp() -> None:
    pytest.importorskip("mcp", reason="needs the extra mcp")
    from mcp import ClientSession
    from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

    config = WorkspaceConfig(
        host="127.0.0.1", port=8080, entrypoint="", name="workspace", grading="fraction", expose_tools_over_mcp=True
    )
    app = build_app(WorkspaceServer(config=config, server_client=ServerClient.detached()))
    cookies = aiohttp.CookieJar(unsafe=True)
    listener = bind("127.0.0.1", 0, owner="test")
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    local = LocalServer(app, label="workspace", base_url=url)
    async with (
        listening({listener.getsockname()[1]: local}, [listener]),
        aiohttp.ClientSession(cookie_jar=cookies) as http,
    ):
        async with http.post(f"{url}/seed_session", json=CALC) as reply:
            metadata = (await reply.json())["mcp"]
        async with (
            create_mcp_http_client(headers=metadata["headers"]) as mcp_http,
            streamable_http_client(f"{url}/mcp", http_client=mcp_http) as streams,
            ClientSession(streams[0], streams[1]) as session,
        ):
            await session.initialize()
            names = {tool.name for tool in (await session.list_tools()).tools}
            assert names == {"run", "read_file", "write_file", "edit_file", "list_files", "search"}
            change = {"path": "calc.py", "old_text": "return 2", "new_text": "return a + b"}
            await session.call_tool("edit_file", change)
        async with http.post(f"{url}/verify", json={**CALC, "response": RESPONSE}) as reply:
            assert (await reply.json())["reward"] == 1.0


def test_a_world_that_is_gone_is_a_failure_and_not_a_reward(client: TestClient) -> None:
    assert attempt(client, CALC)["reward"] == 0.5
    with pytest.raises(SandboxError, match="is gone"):
        verify(client, CALC)


@pytest.mark.parametrize(
    "change",
    [
        {"world": {}},
        {"tests": {"files": {}}},
        {"tests": {"files": {"../x.py": ADDING}}},
        {"tests": {"kind": "command"}},
    ],
)
def test_invalid_rows_are_refused_before_a_model_is_called(client: TestClient, change: dict[str, Any]) -> None:
    assert client.post("/seed_session", json={**CALC, **change}).status_code == 422


def test_the_data_are_what_the_generator_makes() -> None:
    lines = (Path(__file__).parents[1] / "data" / "train.jsonl").read_text("utf-8").splitlines()
    assert json.loads(lines[0]) == GENERATOR.generate(1, seed=0)[0]
