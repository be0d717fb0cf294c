"""From a frozen workspace to a grade: its files are copied into a second world, and only there do the tests enter."""

import asyncio
import difflib
import json
import secrets
import tarfile
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

from nemo_gym.sandbox import ProgramEnding, Result, Runner, World, WorldFileError, WorldSpec
from resources_servers.workspace.tasks import WorkspaceTests

_RUNNER: Final = (Path(__file__).parent / "python_tests.py").read_text("utf-8")
_MOST_COMPARED: Final = 1 << 18
_ENDINGS: Final = {
    ProgramEnding.CPU_TIME: "the tests took too much CPU time",
    ProgramEnding.WALL_TIME: "the tests took too long",
    ProgramEnding.MEMORY: "the tests took too much memory",
    ProgramEnding.DISK: "the tests wrote too many files",
    ProgramEnding.OUTPUT: "the tests wrote too much",
}


@dataclass(frozen=True, slots=True)
class Grade:
    """The share of tests that passed, why the first of the others failed, and what the tests wrote."""

    passed: int
    total: int
    reason: str | None = None
    output: str = ""
    score: float | None = None  # where the tests say it themselves

    @property
    def fraction(self) -> float:
        return self.passed / self.total if self.score is None else self.score


async def grade_workspace(runner: Runner, world: World, tests: WorkspaceTests, *, spec: WorldSpec) -> Grade:
    """Test a frozen workspace in a new world that is made from ``spec``. A world that fails raises."""
    total = len(tests.names) - len(tests.guards) if tests.kind == "python" else 1
    with tempfile.TemporaryFile() as archive:
        try:
            await world.pack_folder(".", archive)
        except (WorldFileError, FileNotFoundError) as error:
            return Grade(0, total, f"the workspace can't be read: {error}")
        async with runner.world(replace(spec, files={}, snapshot=None, opening=None)) as second:
            await second.unpack_folder(".", archive, replaces=True)
            for path, text in tests.files.items():
                await _put(second, path, text)
            return await _run_python(second, tests) if tests.kind == "python" else await _run_command(second, tests)


async def _put(world: World, path: str, text: str) -> None:
    """Write a hidden file; links and files of the agent where its folders should be are removed first."""
    folders = [str(parent) for parent in reversed(Path(path).parents)][1:]
    if folders:
        script = 'for each; do if [ -L "$each" ] || [ ! -d "$each" ]; then rm -rf -- "$each"; fi; done; rm -rf -- "$0"'
        await world.exec(["/bin/sh", "-c", script, path, *folders])
    await world.write(path, text.encode())


async def _run_command(world: World, tests: WorkspaceTests) -> Grade:
    assert tests.command is not None, "the row was checked"
    if tests.score_file is not None:  # one that the agent left does not count
        await world.exec(["rm", "-rf", "--", tests.score_file])
    result = await world.exec(tests.command, timeout_s=tests.timeout_s)
    output = _output(result)
    if result.ending is not ProgramEnding.EXITED:
        return Grade(0, 1, _ENDINGS[result.ending], output)
    if tests.score_file is None:
        return Grade(int(result.ok), 1, None if result.ok else f"exit code {result.exit_code}", output)
    try:
        score = float(await world.read(tests.score_file, most=100))
    except (FileNotFoundError, WorldFileError, ValueError) as error:
        return Grade(0, 1, f"the tests wrote no score: {error}", output)
    if not 0.0 <= score <= 1.0:
        return Grade(0, 1, f"the tests wrote a score of {score}", output)
    return Grade(int(score == 1.0), 1, None if score == 1.0 else f"a score of {score:g}", output, score)


async def _run_python(world: World, tests: WorkspaceTests) -> Grade:
    names = tests.names
    seconds = tests.timeout_s or world.spec.limits.wall_s
    word = secrets.token_hex(16)
    request = {"names": names, "word": word, "each_s": seconds / 2}  # one that hangs leaves time for the others
    command = ["python3", "-I", "-c", _RUNNER]
    result = await world.exec(command, stdin=json.dumps(request).encode(), timeout_s=seconds)
    output = _output(replace(result, stdout=b""))
    if result.ending is not ProgramEnding.EXITED:
        return _count(tests, dict.fromkeys(names, _ENDINGS[result.ending]), output)
    try:
        said = json.loads(result.stdout)
        verdicts = said["verdicts"] if said["word"] == word else {}
    except (ValueError, KeyError, TypeError):
        return _count(tests, dict.fromkeys(names, f"the tests ended with exit code {result.exit_code}"), output)
    failed = {name: verdicts.get(name, "was not run") for name in names if verdicts.get(name, "") is not None}
    told = "".join(f"--- {name}\n{text}\n" for name, text in failed.items())
    return _count(tests, failed, output + told)


def _count(tests: WorkspaceTests, failed: dict[str, str], output: str) -> Grade:
    counted = [name for name in tests.names if name not in tests.guards]
    first = next(iter(failed), None)
    reason = None if first is None else f"{first}: {failed[first].strip().splitlines()[-1]}"
    if broken := [name for name in tests.guards if name in failed]:
        return Grade(0, len(counted), f"what worked before does not any more: {broken[0]}", output)
    return Grade(sum(name not in failed for name in counted), len(counted), reason, output)


def _output(result: Result) -> str:
    return (result.stdout + result.stderr).decode("utf-8", "replace")


async def difference(before: IO[bytes], after: World, *, most: int) -> str:
    """What changed in the workspace, as a unified diff of at most ``most`` characters."""
    with tempfile.TemporaryFile() as archive:
        try:
            await after.pack_folder(".", archive)
        except (WorldFileError, FileNotFoundError) as error:
            return f"the workspace can't be read: {error}"
        return await asyncio.to_thread(_compare, before, archive, most)


def _compare(before: IO[bytes], after: IO[bytes], most: int) -> str:
    old, new = _texts(before), _texts(after)
    pieces: list[str] = []
    room = most
    for path in sorted(old.keys() | new.keys()):
        if old.get(path) == new.get(path):
            continue
        lines = difflib.unified_diff(
            _lines(old.get(path)), _lines(new.get(path)), f"a/{path}" if path in old else "/dev/null",
            f"b/{path}" if path in new else "/dev/null", lineterm="",
        )  # fmt: skip
        piece = "\n".join(lines) + "\n"
        pieces.append(piece[:room])
        room -= len(piece)
        if room <= 0:
            return "".join(pieces) + "\n[… the rest is left out …]\n"
    return "".join(pieces)


def _lines(data: bytes | None) -> list[str]:
    if data is None:
        return []
    if b"\0" in data or len(data) > _MOST_COMPARED:
        return [f"[{len(data):,} bytes that are not shown]"]
    return data.decode("utf-8", "replace").splitlines()


def _texts(archive: IO[bytes]) -> dict[str, bytes]:
    archive.seek(0)
    found = {}
    with tarfile.open(fileobj=archive, mode="r|") as members:
        for member in members:
            if member.isfile() and "__pycache__" not in member.name and not member.name.startswith(".git/"):
                content = members.extractfile(member)
                assert content is not None, "regular files have content"
                found[member.name.removeprefix("./")] = content.read()
            elif member.issym():
                found[member.name.removeprefix("./")] = f"link to {member.linkname}".encode()
    return found
