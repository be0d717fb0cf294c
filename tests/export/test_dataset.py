"""Files of an export: whole or not there, and what readers of tables and datasets make of them."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.exporting.pipeline import export_rollouts
from nemo_gym.exporting.recipe import Recipe

pytest.importorskip("pyarrow", reason="tables need the extra 'export'")

FULL_DISK = """
import resource, signal, sys
from nemo_gym.errors import ConfigError
from nemo_gym.exporting.pipeline import export_rollouts
from nemo_gym.exporting.recipe import Recipe
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # a file that may not grow is a disk that is full
try:
    export_rollouts(Recipe(input="rollouts.jsonl", output=sys.argv[1], format="sft", metadata=True))
except ConfigError as error:
    sys.exit(f"{error} ({error.hint})")
"""

REFUSED = """
import sys
from nemo_gym.cli.main import main
sys.argv[0] = "ng_export"
sys.exit(main())
"""


def table(path: Path):
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist()


@pytest.mark.parametrize("form", ["sft", "dpo", "kto", "sft_tokens", "rl"])
def test_a_table_holds_the_same_rows_as_the_lines(export, tmp_path, form):
    rollouts = [export.make(task, n, float(n)) for task in range(300) for n in range(2)]
    lines = export(rollouts, format=form, metadata=True)
    export(rollouts, format=form, metadata=True, output=str(tmp_path / "rows.parquet"))
    rows = table(tmp_path / "rows.parquet")
    assert len(rows) == len(lines)
    for line, row in zip(lines, rows, strict=True):
        if "tools" in row:
            row["tools"] = json.loads(row["tools"])
        for name, value in line.items():
            assert without_nulls(row[name]) == value, name


def without_nulls(value):
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("names", ["verl", "skyrl", "openrlhf"])
def test_tables_have_the_columns_of_trainers(export, tmp_path, names):
    rollouts = [export.make(0, n, float(n)) for n in range(2)]
    lines = export(rollouts, format="rl", names=names)
    export(rollouts, format="rl", names=names, output=str(tmp_path / "rows.parquet"))
    assert [without_nulls(row) for row in table(tmp_path / "rows.parquet")] == lines


def test_text_that_is_not_valid_unicode_does_not_stop_a_table(export, tmp_path):
    export([export.make(text="half \ud83d of a pair")], output=str(tmp_path / "rows.parquet"))
    assert table(tmp_path / "rows.parquet")[0]["messages"][-1]["content"] == "half ? of a pair"


def test_a_dataset_folder_opens_and_tells_what_it_is(export, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    datasets = pytest.importorskip("datasets", reason="needs the extra 'data'")
    rollouts = [export.make(task, n) for task in range(20) for n in range(5)]
    folder = tmp_path / "data set"
    export(rollouts, output=str(folder), validation=0.3, rows_per_file=20, licence="mit")
    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    rows = {split: len(loaded[split]) for split in loaded}
    assert rows == dict(export.report.rows)
    assert sum(rows.values()) == 100
    assert loaded["train"][0]["messages"][2]["tool_calls"][0]["function"]["name"] == "add"
    assert min(path.name for path in (folder / "data").glob("train*")).startswith("train-00000-of-0000")
    card = (folder / "README.md").read_text()
    assert "license: mit" in card
    assert "model: tiny; agent: adder" in card
    export(rollouts, output=str(folder), overwrite=True)
    assert [path.name for path in (folder / "data").iterdir()] == ["train-00000-of-00001.parquet"]


def test_what_exists_is_replaced_only_on_request(export, tmp_path):
    for name in ("rows.jsonl", "rows.parquet"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(ConfigError, match="exists"):
            export([export.make()], output=str(tmp_path / name), overwrite=False)
        assert (tmp_path / name).read_text() == "mine"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not made by an export"):
        export([export.make()], output=str(tmp_path / "folder"), overwrite=True)
    assert (tmp_path / "folder" / "thesis.txt").exists()
    with pytest.raises(ConfigError, match="one of the inputs"):
        export([export.make()], output=str(tmp_path / "rollouts.jsonl"))


@pytest.mark.parametrize("output", ["rows.jsonl", "rows.parquet", "folder"])
def test_the_same_export_again_does_nothing_unless_something_changed(export, tmp_path, output):
    rollouts = [export.make(n) for n in range(3)]
    given = {"output": str(tmp_path / output), "overwrite": False, "validation": 0.5}
    source = export.save(rollouts, tmp_path / "again.jsonl")

    def again(**more):
        return export_rollouts(Recipe(**({"input": str(source), "format": "sft"} | given | more)))

    first = again()
    made = (tmp_path / output).stat()
    second = again()
    assert (tmp_path / output).stat() == made
    assert second.rows == first.rows
    assert second.text().startswith(first.text())
    assert second.text().endswith("nothing to do: recipe, input and output are unchanged")
    with pytest.raises(ConfigError, match="exists"):
        again(seed=1)
    export.save([*rollouts, export.make(3)], source)
    with pytest.raises(ConfigError, match="exists"):
        again()
    assert again(overwrite=True).rows.total() == 4
    assert again().earlier


def test_an_export_after_a_killed_one_begins_anew_and_tidies_up(export, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f"rows.jsonl.{ended.pid}.tmp", f"rows.jsonl.{os.getppid()}.tmp", "rows.jsonl.mine.tmp"):
        (tmp_path / name).write_text("half a li")
    assert len(export([export.make()], overwrite=False)) == 1
    left = {path.name for path in tmp_path.iterdir()}
    # What a living process writes, or nobody of ours, stays.
    assert left == {
        "rollouts.jsonl",
        "rows.jsonl",
        "rows.jsonl.export.json",
        f"rows.jsonl.{os.getppid()}.tmp",
        "rows.jsonl.mine.tmp",
    }


@pytest.mark.parametrize("output", ["rows.jsonl", "rows.parquet", "folder"])
def test_a_full_disk_leaves_nothing_behind(export, tmp_path, output):
    export.save([export.make(n, text=os.urandom(3000).hex()) for n in range(20)], tmp_path / "rollouts.jsonl")
    command = [sys.executable, "-c", FULL_DISK, output]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 1
    assert f"can't write {output}: File too large" in done.stderr
    assert "nothing was written" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rollouts.jsonl"]


@pytest.mark.parametrize("output", ["rows.jsonl", "rows.parquet", "folder"])
@pytest.mark.parametrize("problem", [{"min_reward": 5}, {"mixed_models": False}], ids=["nothing left", "two models"])
def test_a_refused_export_says_only_why_and_leaves_nothing_behind(export, tmp_path, output, problem):
    rollouts = [export.make(0), export.make(1, response={"model": "other"})]
    export.save(rollouts, tmp_path / "rollouts.jsonl")
    given = {"input": "rollouts.jsonl", "output": output, "format": "sft"} | problem
    command = [sys.executable, "-c", REFUSED, *(f"+{name}={value}" for name, value in given.items())]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Exception ignored" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rollouts.jsonl"]


def test_memory_does_not_grow_with_the_file(export, tmp_path):
    many = tmp_path / "many.jsonl"
    with many.open("w") as file:
        for n in range(3000):
            file.write(json.dumps(export.make(n, text="long " * 2000)) + "\n")
    from nemo_gym.exporting.pipeline import export_rollouts

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    export_rollouts(Recipe(input=str(many), output=str(tmp_path / "o.jsonl"), format="sft", best_per_task=1))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert many.stat().st_size > 30_000_000
    assert grown < many.stat().st_size / 2


def test_the_same_recipe_gives_the_same_bytes(export, tmp_path):
    rollouts = [export.make(task, n, n / 4) for task in range(30) for n in range(4)]
    written = []
    for name in ("a.jsonl", "b.jsonl"):
        export(rollouts, output=str(tmp_path / name), min_reward="all", max_per_task=2, validation=0.2, seed=7)
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
