"""The layout is the data flow: imports only ever point up the list of layers, and files stay readable."""

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
_spec = importlib.util.spec_from_file_location("module_statistics", ROOT / "scripts" / "module_statistics.py")
assert _spec is not None
assert _spec.loader is not None
statistics = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(statistics)
PACKAGE = ROOT / "nemo_gym"
LAYERS = [
    "errors",
    "io",
    "schemas",
    "steps",
    "sandbox",
    "conversion",
    "metrics",
    "config",
    "filters",
    "capture",
    "programs",
    "servers",
    "rollouts",
    "executors",
    "data",
    "audit",
    "exporting",
    "telemetry",
    "training",
    "view",
    "api",
    "testing",
    "cli",
]
# The packages of each layer that has several, lowest first: imports between them point up this list too.
PACKAGES = {
    "sandbox": ["sandbox/inside", "sandbox", "sandbox/providers"],
    "conversion": ["conversion", "conversion/anthropic", "conversion/gemini", "conversion/programs"],
    "servers": [
        "servers/http",
        "servers/middleware",
        "servers/direct",
        "servers/models",
        "servers",
    ],
    "rollouts": ["rollouts/store", "rollouts"],
    "view": ["view/index", "view"],
}
MODULES = sorted(PACKAGE.rglob("*.py"))
SERVER_FOLDERS = ("resources_servers", "responses_api_agents", "responses_api_models")
SHIPPED = [
    *MODULES,
    *(path for folder in SERVER_FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if "tests" not in path.parts),
]


def layer_of(module: str) -> str | None:
    """The layer of a ``nemo_gym.…`` module; None for front doors and the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else None


def test_the_page_lists_the_layers_in_this_order() -> None:
    section = (ROOT / "docs/architecture.md").read_text("utf-8").partition("## Layers")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)/?` \|", section, re.MULTILINE) == LAYERS


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(statistics.parsed(path)))


def imports_of(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def is_front_door(module: str) -> bool:
    parts = module.split(".")
    return len(parts) > 1 and (PACKAGE / f"{parts[1]}.py").exists() and parts[1] not in LAYERS


def layering_faults(path: Path) -> Iterator[str]:
    layer = layer_of(module_name(path))
    for imported in imports_of(path):
        if not imported.startswith("nemo_gym"):
            continue
        target = layer_of(imported)
        if layer is None:
            if target == "cli":
                yield f"{path}: a front door imports the command line: {imported}"
        elif layer != "cli":
            if layer != "api" and is_front_door(imported):
                yield f"{path}: {layer} imports a front door: {imported}"
            if target is not None and LAYERS.index(target) > LAYERS.index(layer):
                yield f"{path}: {layer} imports {imported}"


def test_imports_point_up_the_list_of_layers() -> None:
    assert [fault for path in MODULES for fault in layering_faults(path)] == []


def package_of(module: str) -> str:
    """The innermost package of a module or of a name in it, below ``nemo_gym``."""
    parts = module.split(".")[1:]
    return "/".join(part for count, part in enumerate(parts, 1) if PACKAGE.joinpath(*parts[:count]).is_dir())


def test_every_package_has_its_place() -> None:
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in MODULES} - {"."}
    assert folders == {package for layer in LAYERS[1:] for package in PACKAGES.get(layer, [layer])}


def test_imports_inside_a_layer_point_one_way() -> None:
    detours = set()
    for path in MODULES:
        order = PACKAGES.get(layer_of(module_name(path)) or "", [])
        package = path.parent.relative_to(PACKAGE).as_posix()
        targets = {package_of(name) for name in imports_of(path) if name.startswith("nemo_gym.")} & {*order}
        detours |= {(package, target) for target in targets if order.index(target) > order.index(package)}
    assert detours == set()


def long_parts(path: Path) -> Iterator[str]:
    if (lines := len(path.read_text("utf-8").splitlines())) > 400:
        yield f"{path} has {lines} lines, more than 400"
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= 40:
            yield f"{node.name} in {path} has 40 lines or more"


def test_modules_and_functions_stay_short() -> None:
    assert [part for path in SHIPPED for part in long_parts(path)] == []


def test_a_module_opens_with_its_contract() -> None:
    assert [path for path in MODULES if path.stat().st_size and not ast.get_docstring(statistics.parsed(path))] == []


def test_names_occur_once_and_no_module_is_a_splinter() -> None:
    assert statistics.repeated_module_names() == []
    assert statistics.repeated_class_names() == []
    assert statistics.splinters() == []


def test_public_functions_have_names_of_their_own() -> None:
    assert statistics.repeated_function_names() == []


def test_every_module_is_listed_once() -> None:
    document = statistics.ARCHITECTURE.read_text("utf-8")
    assert document == statistics.with_module_list(document), "run: python scripts/module_statistics.py --write"


def test_only_training_imports_what_trains() -> None:
    """Torch and its kind take seconds and gigabytes: whoever collects must never meet them."""
    heavy = {"torch", "transformers", "peft", "trl", "gguf"}
    for path in SHIPPED:
        if path.parent != PACKAGE / "training":
            assert not {name.partition(".")[0] for name in imports_of(path)} & heavy, path


def test_only_the_console_prints() -> None:
    for path in MODULES:
        calls = [node for node in nodes_of(path) if isinstance(node, ast.Call)]
        prints = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
        assert not prints or path.name == "console.py", f"{path} prints"
