"""One file that holds everything: the page, the policy that protects it, and the rollouts."""

import base64
import hashlib
import json
import re

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.view.export_html import export_html
from nemo_gym.view.page import STATIC, build_page, bundle
from nemo_gym.view.selection import Query, select

DATA = re.compile(r'<script type="application/json" id="rollout-gym-data">(.*?)</script>', re.DOTALL)


@pytest.fixture
def static(tmp_path):
    """A small page that keeps to the convention of the real one."""
    folder = tmp_path / "static"
    (folder / "vendor").mkdir(parents=True)
    (folder / "index.html").write_text(
        '<!doctype html>\n<html><head>\n<link rel="stylesheet" href="app.css">\n<script src="vendor/lib.js"></script>\n'
        '</head><body><main></main>\n<script type="module" src="app.js"></script>\n</body></html>\n'
    )
    (folder / "app.css").write_text("body { color: red }")
    (folder / "vendor" / "lib.js").write_text('globalThis.lib = "</script>";')
    (folder / "app.js").write_text('import { b } from "./b.js";\nimport { c } from "./c.js";\nb(c);\n')
    (folder / "b.js").write_text('import { c } from "./c.js";\nexport function b() { return c; }\n')
    (folder / "c.js").write_text("export const c = 1;\n")
    return folder


def exported(path):
    return json.loads(DATA.search(path.read_text("utf-8"))[1])


def test_the_file_holds_page_records_and_numbers(write, record, failure, library, static, tmp_path):
    write("run.jsonl", [record(0, 0, 1.0, note="</script><script>alert(1)</script>"), record(0, 1, 0.0)])
    path = write("run_failures.jsonl", [failure(0, 2)])
    found = library(path.with_name("run.jsonl"))
    out = tmp_path / "out.html"
    selection = select(found.snapshot(), Query())
    written = export_html(selection, out, title="run", limit_mb=1, whole=True, static=static)
    assert (written.rollouts, written.bytes) == (3, out.stat().st_size)
    data = exported(out)
    assert data["state"]["title"] == "run"
    assert data["state"]["files"][0]["rollouts"] == 2
    assert {"reward", "note"} <= {column["name"] for column in data["columns"]}
    assert [row["id"] for row in data["rollouts"]] == ["0.0", "0.1", "0.f0"]
    first = data["rollouts"][0]
    assert first["record"]["note"] == "</script><script>alert(1)</script>"
    values = first["values"]
    assert (values["file"], first["line"], values["question"], values["tokens"]) == ("run.jsonl", 1, "Question 0?", 15)
    assert [(row["task"], row["counted"], row["failed"]) for row in data["rollouts"]] == [
        (0, True, False),
        (0, True, False),
        (0, False, True),
    ]
    assert data["overview"]["mean_reward"] == 0.5
    assert "alert(1)</script>" not in out.read_text("utf-8")


def test_scripts_are_put_in_and_allowed_by_their_hashes(static):
    page = build_page(static, b"{}").decode()
    assert " src=" not in page
    assert " href=" not in page
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    contents = re.findall(r"<(script|style)(?: type=\"module\")?>(.*?)</\1>", page, re.DOTALL)
    assert len(contents) == 3
    for _, text in contents:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


def test_modules_are_joined_in_the_order_in_which_they_are_needed(static):
    joined = bundle(static / "app.js")
    assert "import" not in joined
    assert "export" not in joined
    assert joined.index("const c = 1;") < joined.index("function b()") < joined.index("b(c);")
    assert joined.count("const c = 1;") == 1


def test_the_real_page_can_be_exported(write, record, library, tmp_path):
    found = library(write("run.jsonl", [record()]))
    out = tmp_path / "out.html"
    export_html(select(found.snapshot(), Query()), out, title="run", limit_mb=5, whole=True, static=STATIC)
    page = out.read_text("utf-8")
    assert not re.search(r'<script[^>]* src=|<link[^>]* href="(?!data:)', page)
    assert not re.search(r"^(import|export) ", page, re.MULTILINE)


def test_too_much_is_refused_and_nothing_is_written(write, record, library, static, tmp_path):
    found = library(write("run.jsonl", [record(0, number, pad="x" * 10_000) for number in range(30)]))
    out = tmp_path / "out.html"
    with pytest.raises(ConfigError, match="only 9 of 30 rollouts fit") as caught:
        export_html(select(found.snapshot(), Query()), out, title="", limit_mb=0.1, whole=True, static=static)
    assert "+filter" in (caught.value.hint or "")
    assert not out.exists()


def test_a_place_that_cannot_be_written_to_is_told(write, record, library, static, tmp_path):
    selection = select(library(write("run.jsonl", [record()])).snapshot(), Query())
    with pytest.raises(ConfigError, match="no such folder"):
        export_html(selection, tmp_path / "no" / "out.html", title="", limit_mb=1, whole=True, static=static)
    (tmp_path / "out.html").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        export_html(selection, tmp_path / "out.html", title="", limit_mb=1, whole=True, static=static)
