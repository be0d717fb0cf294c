"""Whatever README.md and docs/ tell a reader to type is typed here.

Each document gets an empty folder, in which its fences are carried out from top to bottom as a reader would: commands
in a shell, `ng_run` in a terminal of its own until the next one, Python as a program. A comment above a fence can say
what else it is:

    <!-- file: path -->        the text of that file: the one in the repository, or one that the reader creates
    <!-- not run: reason -->   an illustration, or something that a test can't do

Models are not the subject here: the mock endpoint stands in for all of them.
"""

import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.forked_commands import ForkedCommand, ForkedCommands
from tests.ports import free_port

if TYPE_CHECKING:
    from conftest import MockModel

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    path
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "res*/*/README.md")
    for path in ROOT.glob(pattern)
)
LANGUAGES = {"bash", "console", "python", "yaml", "json", "jsonl", "toml", "text", ""}
FENCE = re.compile(
    r"(?:^<!-- (?P<mark>not run|file): (?P<note>.+?) -->\n\n?)?^```(?P<language>\S*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
STARTS_SERVERS = re.compile(r"(ng_run|nemo_gym_run|ng run|ng env start)\b")
READY = "servers ready!"
PATIENCE_S = 60
TASKS = 6  # of each collection that names no limit
# What needs no shell: a command of ours or a Python program, with nothing but words and quotes behind it.
PLAIN = re.compile(r"(ng|gym|nemo_gym|python)[ _](\"[^\"$`]*\"|'[^']*'|[^\"'|&;<>$()`*?~#])*")
# Commands that run tests: those of the whole project, which this test is part of.
RUN_TESTS = ("ng_test_all", "ng_dev_test")
# Commands that fetch their data from the network.
FETCH = (
    "ng_prepare_benchmark",
    "ng eval prepare",
    "ng_download_dataset_from_hf",
    "ng dataset download",
    "ng_upload_dataset_to_hf",
)
# Commands that need a program of somebody else to talk to.
SEND = ("ng_export_traces",)

CALCULATOR = "resources_servers/calculator/configs/calculator.yaml"
AGENT = {"agent_ref": {"name": "example_single_tool_call_simple_agent"}}
ROLLOUTS = [json.dumps({**AGENT, "_ng_task_index": n, "_ng_rollout_index": 0, "reward": 1.0}) + "\n" for n in range(2)]
# Their data can be made anew.
GENERATED = tuple(
    f"resources_servers/{name}"
    for name in (
        "calculator",
        "format_following",
        "math_answers",
        "multiple_choice",
        "python_code",
        "reasoning_gym",
        "verifiable_instructions",
        "workspace",
    )
)

LETTERS = """import nemo_gym
letters = nemo_gym.Environment(tasks=[{"prompt": "How many r are in strawberry?", "expected": 3}])
letters.verify(lambda task, response: response.text.endswith(str(task["expected"])))
"""

# Files that the reader of a document is supposed to have.
ASSUMED = {
    "resources_servers/environment_file/README.md": {"letters.py": LETTERS},
    "docs/commands.md": {
        "letters.py": LETTERS,
        "questions.jsonl": '{"question": "How are you?"}\n',
        "prompt.yaml": 'user: "{question}"\n',
        "results/shard_0.jsonl": ROLLOUTS[0],
        "results/shard_1.jsonl": ROLLOUTS[1],
    },
    "docs/metrics.md": {
        "results/rollouts.jsonl": "".join(ROLLOUTS),
        "results/rollouts_materialized_inputs.jsonl": "".join(ROLLOUTS),
    },
    **{f"{folder}/README.md": {f"{folder}/data/.gitignore": ""} for folder in GENERATED},
    "docs/configuration.md": {
        "my_gym.yaml": f"config_paths: [{CALCULATOR}]\nmy_agent: {{_inherit_from: calculator_simple_agent}}\n"
        "policy_model: {responses_api_models: {openai_model: {entrypoint: app.py}}}\n",
    },
}


@dataclass(frozen=True)
class Fence:
    """A block of code in a document."""

    document: str
    line: int
    language: str
    text: str
    file: str | None
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def fences(document: Path) -> list[Fence]:
    text = document.read_text("utf-8")
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("text"))
        note = {match["mark"]: match["note"]}
        content = match["language"], match["text"]
        found.append(Fence(name_of(document), line, *content, note.get("file"), note.get("not run")))
    return found


ALL_FENCES = [fence for document in DOCUMENTS for fence in fences(document)]


@dataclass
class Reader:
    """Somebody who does what a document says, in a folder of their own."""

    folder: Path
    model: "MockModel"
    head_port: int
    commands: ForkedCommands
    gym: ForkedCommand | None = field(default=None, init=False)

    def do(self, fence: Fence) -> None:
        if fence.file:
            self.save(fence.file, fence.text)
        elif fence.language == "python":
            self.save("snippet.py", fence.text)
            self.run("python snippet.py", fence)
        elif fence.language in {"bash", "console"}:
            for command in typed(fence):
                if STARTS_SERVERS.match(command):
                    self.start_servers(command)
                elif not command.startswith((*RUN_TESTS, *FETCH, *SEND)):
                    self.run(command, fence)

    def save(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Several documents are read at once, so each has a head server of its own. A few tasks show what all would.
        own = f"\nhead_server: {{host: 127.0.0.1, port: {self.head_port}}}\nlimit: {TASKS}\n"
        mine = own if name == "env.yaml" else ""
        path.write_text(self.meant(text) + mine, "utf-8")
        return path

    def meant(self, text: str) -> str:
        """The text with what stands for the reader's own model and ports filled in."""
        text = text.replace("http://127.0.0.1:8000/v1", self.model.base_url).replace("12000", str(self.head_port))
        # The mock endpoint solves no task, and training data is made of solved ones.
        text = text.replace('export("sft", "', 'export("sft", min_reward="all", output="')
        text = text.replace('model="local"', 'model="openai:mock"').replace("--model local", "--model openai:mock")
        return text.replace("local_model", "openai_model")

    def run(self, command: str, fence: Fence) -> None:
        ran = self.start(command).wait(PATIENCE_S)
        assert ran.code == 0, f"{fence}: exit code {ran.code} of {command}\n\n{ran.out}{ran.err}"

    def start(self, command: str) -> ForkedCommand:
        text = self.meant(command)
        words = shlex.split(text) if PLAIN.fullmatch(text) else ["bash", "-euo", "pipefail", "-c", text]
        return self.commands.start(*words, folder=self.folder, environment=self.environment())

    def start_servers(self, command: str) -> None:
        self.stop_servers()
        self.gym = self.start(command)
        self.gym.read_until(READY, PATIENCE_S)

    def stop_servers(self) -> None:
        if self.gym is not None:
            gym, self.gym = self.gym, None
            ended = gym.interrupt()
            assert ended.code == 0, ended.err

    def environment(self) -> dict[str, str]:
        hidden = ("NEMO_GYM_", "PYTEST_", "XDG_RUNTIME_DIR")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        return inherited | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(self.folder / ".cache"),
            "OPENAI_BASE_URL": self.model.base_url,
            "OPENAI_API_KEY": "none",
        }


def typed(fence: Fence) -> list[str]:
    """What a reader types, one command after the other; in a console only what follows the prompt."""
    text = fence.text.replace("\\\n", " ")
    if fence.language == "console":
        text = "\n".join(line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ "))
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


@pytest.fixture
def read(tmp_path: Path, mock_model: "MockModel", commands: ForkedCommands) -> Iterator[Callable[[Path], Reader]]:
    reader = Reader(tmp_path, mock_model, free_port(), commands)

    def read(document: Path) -> Reader:
        policy = {"policy_base_url": mock_model.base_url, "policy_api_key": "none", "policy_model_name": "mock"}
        reader.save("env.yaml", yaml.safe_dump(policy))
        (tmp_path / "scripts").symlink_to(ROOT / "scripts")
        for name, text in ASSUMED.get(name_of(document), {}).items():
            reader.save(name, text)
        for fence in fences(document):
            if not fence.not_run:
                reader.do(fence)
        return reader

    yield read
    reader.stop_servers()


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if fences(d)], ids=name_of)
def test_what_a_document_says_can_be_typed(document: Path, read: Callable[[Path], Reader]) -> None:
    read(document).stop_servers()


@pytest.mark.parametrize("fence", ALL_FENCES, ids=str)
def test_fences_say_what_they_are(fence: Fence) -> None:
    assert fence.language in LANGUAGES
    if fence.language == "yaml":
        yaml.safe_load(fence.text)
    elif fence.language == "toml":
        tomllib.loads(fence.text)
    elif fence.language == "json":
        json.loads(fence.text)
    elif fence.language == "jsonl":
        assert all(isinstance(json.loads(line), dict) for line in fence.text.splitlines())
    elif fence.language == "python":
        compile(fence.text, str(fence), "exec", flags=0x2000)  # top-level await is fine in a snippet


@pytest.mark.parametrize("fence", [f for f in ALL_FENCES if f.file and (ROOT / f.file).exists()], ids=str)
def test_files_of_the_repository_are_quoted_as_they_are(fence: Fence) -> None:
    assert fence.file is not None
    assert fence.text == (ROOT / fence.file).read_text("utf-8")


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    text = FENCE.sub("", document.read_text("utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        link = "".join(target)
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(file), f"{link}: no such heading"


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, made the way code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", document.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    mentioned = re.findall(r"(?:^|`)make ([a-z]+)", document.read_text("utf-8"), re.MULTILINE)
    assert set(mentioned) <= targets


def test_the_index_lists_every_page() -> None:
    listed = set(re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs/README.md").read_text("utf-8")))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").glob("**/*.md")}
    servers = {f"../{name_of(document)}" for document in DOCUMENTS if name_of(document).startswith("res")}
    assert pages | servers <= listed | {"README.md"}


def test_the_environment_in_the_readme_has_at_most_20_lines() -> None:
    (text,) = [fence.text for fence in fences(ROOT / "README.md") if fence.file]
    assert sum(1 for line in text.splitlines() if line.strip()) <= 20
