"""Counts what the layout promises: how many modules there are, how long they are, and which names occur twice.

python scripts/module_statistics.py            the figures
python scripts/module_statistics.py --touched  the modules that one collected rollout passes through
python scripts/module_statistics.py --write    writes the list of modules in docs/architecture.md
"""

import argparse
import ast
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "nemo_gym"
SHORT, LONG = 60, 400
ARCHITECTURE = ROOT / "docs" / "architecture.md"
MARKER = "<!-- The rest of this file is made by `python scripts/module_statistics.py --write`. -->\n"
CONFIGS = (
    "resources_servers/example_single_tool_call/configs/example_single_tool_call.yaml,"
    "responses_api_models/openai_model/configs/openai_model.yaml"
)

# Runs in a process of its own: notes every function of ours that is called while one row is collected.
TRACED = """
import sys, threading
called = set()
def note(frame, event, argument):
    file = frame.f_code.co_filename
    if event != "call" or "nemo_gym" not in file or file in called:
        return
    caller = frame
    while caller is not None:  # what runs while a module is imported is not on the way of a rollout
        if caller.f_code.co_name == "<module>" and caller.f_code.co_filename != "<string>":
            return
        caller = caller.f_back
    called.add(file)
sys.setprofile(note)
threading.setprofile(note)
from nemo_gym.cli.main import main
status = main(sys.argv[1:])
sys.setprofile(None)
print("\\n".join(sorted(called)), file=open("called.txt", "w"))
sys.exit(status)
"""


def modules() -> list[Path]:
    """All modules but package files, which hold no code worth counting."""
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))


def dotted_name(path: Path) -> str:
    """The name under which a module is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_names(path: Path) -> Iterator[str]:
    """Everything a module imports, and every module it names in a string."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("nemo_gym."):
            yield node.value.partition(":")[0]


def importers() -> dict[str, set[str]]:
    """Which modules import each module, the server folders included."""
    found: dict[str, set[str]] = defaultdict(set)
    folders = ("nemo_gym", "resources_servers", "responses_api_agents", "responses_api_models")
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            if "tests" not in path.parts:
                for name in imported_names(path):
                    found[name].add(dotted_name(path))
    return found


def splinters() -> list[str]:
    """Short modules that only one other module imports. Front doors have users we cannot see."""
    known = importers()
    return [
        dotted_name(path)
        for path in modules()
        if path.parent != PACKAGE
        and len(path.read_text("utf-8").splitlines()) < SHORT
        and len(known[dotted_name(path)]) < 2
    ]


def repeated_module_names() -> list[str]:
    """Names that two modules share."""
    return sorted(name for name, count in Counter(path.stem for path in modules()).items() if count > 1)


def repeated_class_names() -> list[str]:
    """Public classes that two modules define under the same name."""
    names = Counter(
        node.name
        for path in modules()
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def touched() -> list[str]:
    """The modules in which at least one function is called while a row is collected from the mock model."""
    row = '{"agent_ref": {"name": "a"}, "responses_create_params": {"input": "2 + 2"}}\n'
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "tasks.jsonl").write_text(row.replace('"a"', '"example_single_tool_call_simple_agent"'))
        command = [
            "ng_collect_rollouts",
            f"+config_paths=[{CONFIGS}]",
            f"+policy_base_url=http://127.0.0.1:{port}/v1",
            "+policy_api_key=none",
            "+policy_model_name=mock",
            "+input_jsonl_fpath=tasks.jsonl",
            "+output_jsonl_fpath=out/rollouts.jsonl",
        ]
        model = [sys.executable, str(ROOT / "benchmarks_perf" / "mock_model.py")]
        mock = subprocess.Popen(model, env={**os.environ, "MOCK_PORT": str(port)})
        try:
            subprocess.run([sys.executable, "-c", TRACED, *command], cwd=work, check=True)
        finally:
            mock.kill()
            mock.wait()
        called = (Path(line) for line in (work / "called.txt").read_text().splitlines())
        return sorted(str(path.relative_to(ROOT)) for path in called if path.is_relative_to(PACKAGE))


def module_list() -> str:
    """Every module once, by folder, with the first sentence of its contract; Markdown."""
    folders: dict[str, list[Path]] = defaultdict(list)
    for path in modules():
        folders[path.parent.relative_to(ROOT).as_posix()].append(path)
    sections = []
    for folder in sorted(folders, key=lambda name: (name.count("/") > 0, name)):
        rows = [f"| `{path.stem}` | {first_sentence(path)} |" for path in folders[folder]]
        sections.append("\n".join([f"### `{folder}/`\n", "| module | |", "|---|---|", *rows, ""]))
    return "\n".join(sections)


def first_sentence(path: Path) -> str:
    """What a module says of itself first, on one line."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".:").removeprefix("Front door: ").replace("|", "\\|")


def with_module_list(document: str) -> str:
    """The document with its list of modules brought up to date."""
    return document.partition(MARKER)[0] + MARKER + "\n" + module_list()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--touched", action="store_true", help="trace one collected rollout")
    parser.add_argument("--write", action="store_true", help="bring docs/architecture.md up to date")
    asked = parser.parse_args()
    if asked.write:
        ARCHITECTURE.write_text(with_module_list(ARCHITECTURE.read_text("utf-8")), "utf-8")
        return
    if asked.touched:
        files = touched()
        print("\n".join(files))
        print(f"{len(files)} modules of ours are called on the way of one rollout")
        return
    lengths = [len(path.read_text("utf-8").splitlines()) for path in modules()]
    print(f"modules               {len(lengths)}")
    print(f"lines                 {sum(lengths)}")
    print(f"median length         {statistics.median(lengths):.0f}")
    print(f"longest               {max(lengths)}")
    print(f"over {LONG} lines        {sum(length > LONG for length in lengths)}")
    print(f"splinters             {', '.join(splinters()) or 'none'}")
    print(f"repeated module names {', '.join(repeated_module_names()) or 'none'}")
    print(f"repeated class names  {', '.join(repeated_class_names()) or 'none'}")


if __name__ == "__main__":
    main()
