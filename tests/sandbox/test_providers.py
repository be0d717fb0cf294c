"""Sandboxes as servers written for NeMo Gym use them."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nemo_gym import sandbox
from nemo_gym.errors import ConfigError
from nemo_gym.sandbox import (
    AsyncSandbox,
    ExecResult,
    Sandbox,
    SandboxCreateError,
    SandboxError,
    SandboxExecResult,
    SandboxHandle,
    SandboxProvider,
    SandboxResources,
    SandboxSpec,
    SandboxStatus,
    create_provider,
    get_provider_class,
    list_providers,
    register_provider,
    resolve_provider_config,
)


class Echo:
    """A provider that somebody else wrote."""

    name = "echo"

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.closed: list[str] = []

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        return SandboxHandle("1", self.name, spec)

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        return ExecResult(self.prefix + command, "", 0)

    async def upload_file(self, handle: SandboxHandle, local: Path, remote: str) -> None: ...

    async def download_file(self, handle: SandboxHandle, remote: str, local: Path) -> None: ...

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        return SandboxStatus.RUNNING

    async def close(self, handle: SandboxHandle) -> None:
        self.closed.append(handle.sandbox_id)

    async def aclose(self) -> None: ...


@pytest.mark.parametrize("name", sandbox.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(sandbox, name) is not None


async def test_a_sandbox_runs_commands_and_moves_files(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"\0data\xff")
    spec = SandboxSpec(
        files={"seed.txt": "seed"}, env={"A": "1"}, workdir="work", resources=SandboxResources(memory_mib=256)
    )
    box = AsyncSandbox("jail")
    assert await box.status() is SandboxStatus.STOPPED
    await box.start(spec)
    try:
        assert await box.status() is SandboxStatus.RUNNING
        done = await box.exec("cat ../seed.txt; echo $A$B; pwd; exit 4", env={"B": "2"})
        assert done.stdout is not None
        assert done.stdout.splitlines()[0] == "seed12"
        assert done.stdout.strip().endswith("/work")
        assert (done.return_code, done.error_type) == (4, None)
        await box.upload(tmp_path / "in", "work/in")
        await box.download("work/in", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == b"\0data\xff"
        slow = await box.exec("sleep 60", timeout_s=0.2)
        assert (slow.return_code, slow.error_type) == (124, "timeout")
    finally:
        await box.stop()
    assert await box.status() is SandboxStatus.STOPPED
    with pytest.raises(SandboxError, match="not running"):
        await box.exec("true")
    await box.stop()


async def test_a_sandbox_has_a_time_to_live() -> None:
    async with AsyncSandbox("jail", SandboxSpec(ttl_s=0.3)) as box:
        assert (await box.exec("sleep 60")).error_type == "timeout"
        while await box.status() is not SandboxStatus.STOPPED:
            await asyncio.sleep(0.01)
        with pytest.raises(SandboxError, match=r"time to live .* is over"):
            await box.exec("echo 1")


def test_the_blocking_sandbox_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with Sandbox("jail") as box:
        box.upload(tmp_path / "a", "a")
        assert box.exec("cat a").stdout == "x"
        box.download("a", tmp_path / "b")
        assert box.status() is SandboxStatus.RUNNING
    assert (tmp_path / "b").read_text() == "x"
    assert box.status() is SandboxStatus.STOPPED
    box.stop()


@pytest.mark.parametrize(
    "spec", [SandboxSpec(image="ubuntu"), SandboxSpec(ports=[80]), SandboxSpec(resources=SandboxResources(gpu=1))]
)
async def test_the_jail_refuses_what_it_does_not_have(spec: SandboxSpec) -> None:
    box = AsyncSandbox("jail")
    with pytest.raises(SandboxCreateError, match="use 'docker'"):
        await box.start(spec)
    await box.stop()


async def test_the_jail_has_one_user() -> None:
    async with AsyncSandbox("jail") as box:
        with pytest.raises(ConfigError, match="has one user"):
            await box.exec("id", user="root")


async def test_anybody_can_register_a_provider() -> None:
    register_provider("echo", Echo)
    assert get_provider_class("echo") is Echo
    assert {"docker", "echo", "jail", "podman"} <= set(list_providers())
    provider = create_provider({"echo": {"prefix": "> "}})
    assert isinstance(provider, SandboxProvider)
    async with AsyncSandbox(provider) as box:
        assert (await box.exec("hi")).stdout == "> hi"
    assert isinstance(provider, Echo)
    assert provider.closed == ["1"]


@pytest.mark.parametrize(
    ("config", "message"),
    [("dockr", "no sandbox provider 'dockr'"), ({"jail": {"speed": 9}}, "not valid"), ({"a": {}, "b": {}}, "one name")],
)
def test_a_provider_that_is_wrong_is_explained(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_provider(config)


@pytest.mark.parametrize(
    ("config", "resolved"),
    [
        (None, {"jail": {}}),
        ("docker", {"docker": {}}),
        ({"jail": {"isolation": "namespaces"}}, {"jail": {"isolation": "namespaces"}}),
        ("fast", {"jail": {"isolation": "landlock"}}),
    ],
)
def test_a_provider_is_found_in_the_configuration(config: Any, resolved: dict[str, Any]) -> None:
    known = {"sandbox_providers": {"fast": {"jail": {"isolation": "landlock"}}}}
    assert resolve_provider_config(config, known) == resolved
