"""The files of the page: vendored bytes are those that were recorded, and the page asks for nothing of elsewhere."""

import hashlib
import json
import re
from pathlib import Path

import pytest

STATIC = Path(__file__).parents[3] / "nemo_gym" / "view" / "static"
MODULES = sorted(path for path in STATIC.glob("*.js") if path.name != "theme.js")
IMPORT = re.compile(r'import \{ [\w$, ]+ \} from "\./([\w-]+\.js)";')
DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let) (\{[^}]*\}|\w+)", re.MULTILINE)


def test_vendored_files_are_the_recorded_ones() -> None:
    vendor = STATIC / "vendor"
    packages = json.loads((vendor / "VENDOR.json").read_text())["packages"]
    recorded = {file["file"]: file["sha256"] for package in packages for file in package["files"]}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in vendor.iterdir()}
    assert found.pop("VENDOR.json")
    assert found == recorded
    for package in packages:
        assert re.fullmatch(r"\d+\.\d+\.\d+", package["version"])
        assert package["licence"]
        assert package["licence_file"] in recorded


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_can_be_joined_with_the_others(path: Path) -> None:
    text = path.read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("import"):
            assert IMPORT.fullmatch(line), line
        if line.startswith("export"):
            assert re.match(r"export (?:async )?(?:function|const|let|class) ", line), line
    assert "import(" not in text
    assert "export default" not in text


def test_top_level_names_are_unique() -> None:
    names = [
        name for path in MODULES for found in DECLARED.findall(path.read_text()) for name in re.findall(r"\w+", found)
    ]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("path", [*MODULES, *STATIC.glob("*.css"), STATIC / "index.html"], ids=lambda path: path.name)
def test_own_files_name_no_other_host_and_build_no_markup_from_text(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not re.search(r"https?://", text)
    for risky in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "dangerouslySet",
    ):
        assert risky not in text


def test_the_page_has_no_inline_script_or_style() -> None:
    page = (STATIC / "index.html").read_text("utf-8")
    assert all(not body.strip() for body in re.findall(r"<script[^>]*>([\s\S]*?)</script>", page))
    assert "<style" not in page
    assert not re.search(r"\son\w+=|\sstyle=", page)
