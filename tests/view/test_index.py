"""The index of a file: complete, incremental, and never wrong about what the file holds now."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.errors import ConfigError
from nemo_gym.io.files import INDEX_SUFFIX
from nemo_gym.view.index import tables as index_store
from nemo_gym.view.index.parsing import ReadAhead
from nemo_gym.view.index.tables import connect_index, index_paths, open_index, read_state
from nemo_gym.view.index.writer import IndexWriter, read_columns

Record = dict[str, Any]
OpenWriter = Callable[..., IndexWriter]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[OpenWriter]:
    opened: list[IndexWriter] = []

    def open_writer(path: Path) -> IndexWriter:
        opened.append(IndexWriter(path, open_index(path, tmp_path / "cache")))
        return opened[-1]

    yield open_writer
    for each in opened:
        each.close()


def index(found: IndexWriter) -> IndexWriter:
    while found.step():
        pass
    while found.step_text():
        pass
    return found


def content(path: Path) -> dict[str, Any]:
    """All that an index says, without how it got there."""
    database = connect_index(path.with_name(path.name + INDEX_SUFFIX))
    facts = sorted(read_columns(database), key=lambda fact: fact.name)
    fields = [fact.field for fact in facts] or ["NULL"]
    rows = database.execute(f"SELECT row, offset, line, {', '.join(fields)} FROM rollouts ORDER BY row").fetchall()
    found = {
        "rows": rows,
        "names": [fact.name for fact in facts],
        "facts": [fact.described() for fact in facts],
        "previews": database.execute("SELECT * FROM previews ORDER BY row").fetchall(),
        "zebra": database.execute("SELECT rowid FROM body WHERE body MATCH 'zebra' ORDER BY rowid").fetchall(),
        "unreadable": read_state(database).unreadable,
        "position": read_state(database).position,
    }
    database.close()
    return found


def test_every_line_becomes_a_row_with_its_columns(write, record, writer):
    path = write(
        "a.jsonl", [record(1, 0, 0.5, accuracy=True, judge={"score": 2}), record(1, 1, None, note="long " * 99)]
    )
    found = index(writer(path))
    assert (found.state.rows, found.state.unreadable, found.state.text_rows) == (2, 0, 2)
    database = connect_index(path.with_name(path.name + INDEX_SUFFIX))
    rows = database.execute(
        "SELECT task, rollout, reward, tokens, turns, tool_calls, agent, line FROM rollouts"
    ).fetchall()
    assert rows == [(1, 0, 0.5, 16, 2, 1, "math", 1), (1, 1, None, 16, 2, 1, "math", 2)]
    assert database.execute("SELECT * FROM previews").fetchall() == [
        (1, "Question 1?", "Answer 0."),
        (2, "Question 1?", "Answer 1."),
    ]
    names = {fact.name for fact in read_columns(database)}
    database.close()
    assert {"accuracy", "judge.score", "bytes"} <= names
    assert "note" not in names


def test_only_what_was_appended_is_read(write, record, writer):
    path = write("a.jsonl", [record(0, number) for number in range(5)])
    found = index(writer(path))
    before = found.state
    # What was read is made unreadable where no digest looks: nobody notices, because nobody reads it again.
    write("a.jsonl", [record(7, 7, 0.0)], append=True)
    index(found)
    assert (found.state.rows, found.state.generation) == (6, before.generation)
    assert content(path)["rows"][-1][:3] == (6, before.position, 6)


def test_nothing_new_is_no_work(write, record, writer):
    path = write("a.jsonl", [record()])
    found = index(writer(path))
    assert not found.step()
    assert not found.step_text()


def test_a_second_start_continues_where_the_first_ended(write, record, writer):
    path = write("a.jsonl", [record(0, 0)])
    index(writer(path)).close()
    again = writer(path)
    assert again.state.rows == 1
    assert not again.step()
    write("a.jsonl", [record(0, 1)], append=True)
    assert index(again).state.rows == 2


@pytest.mark.parametrize("cut", [1, 50, -2])
def test_a_torn_last_line_waits_until_it_is_whole(write, record, writer, cut):
    path = write("a.jsonl", [record(0, 0)])
    line = json.dumps(record(0, 1)).encode() + b"\n"
    with path.open("ab") as file:
        file.write(line[:cut])
        file.flush()
        found = index(writer(path))
        assert (found.state.rows, found.state.unreadable) == (1, 0)
        file.write(line[cut:])
    assert index(found).state.rows == 2


def test_a_last_line_without_its_end_counts_if_it_is_whole(write, record, writer):
    path = write("a.jsonl", [record(0, 0)])
    path.write_bytes(path.read_bytes() + json.dumps(record(0, 1)).encode())
    found = index(writer(path))
    assert found.state.rows == 2
    with path.open("ab") as file:
        file.write(b"\n" + json.dumps(record(0, 2)).encode() + b"\n")
    assert index(found).state.rows == 3
    assert [row[2] for row in content(path)["rows"]] == [1, 2, 3]


def test_lines_that_are_no_rollouts_are_counted_and_skipped(write, record, writer):
    path = write("a.jsonl", [record(0, 0)])
    with path.open("ab") as file:
        file.write(b'not json\n\n[1, 2]\n{"_ng_task_index": "x"}\n\xff\xfe\n')
    write("a.jsonl", [record(0, 1)], append=True)
    found = index(writer(path))
    assert (found.state.rows, found.state.unreadable) == (2, 4)
    assert [row[2] for row in content(path)["rows"]] == [1, 7]


def test_values_that_json_does_not_know_are_read(tmp_path, writer):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"reward": NaN, "a": Infinity, "b": 123456789012345678901234567890, "c": "\\ud800 \\u0000"}\n')
    assert index(writer(path)).state.rows == 1


@pytest.mark.parametrize("how", ["replaced", "cut", "rewritten", "longer"])
def test_a_file_that_is_another_one_now_is_indexed_anew(write, record, writer, how):
    path = write("a.jsonl", [record(0, number) for number in range(10)])
    found = index(writer(path))
    first = found.state.generation
    new = [record(5, number, question="Other?") for number in range(3)]
    if how == "replaced":
        write("b.jsonl", new).replace(path)
    elif how == "cut":
        os.truncate(path, len(path.read_bytes().splitlines(keepends=True)[0]) * 3)
    elif how == "rewritten":
        write("a.jsonl", new)
    else:
        write("a.jsonl", [record(5, number, question="Other, and longer?") for number in range(30)])
    index(found)
    fresh = write("fresh.jsonl", [])
    fresh.write_bytes(path.read_bytes())
    index(writer(fresh))
    assert found.state.generation == first + 1
    assert content(path) == content(fresh)


def test_a_file_that_went_away_keeps_its_index_until_it_is_back(write, record, writer):
    path = write("a.jsonl", [record()])
    found = index(writer(path))
    path.rename(path.with_name("b.jsonl"))
    assert not found.step()
    path.with_name("b.jsonl").rename(path)
    assert not found.step()
    assert found.state.rows == 1


@pytest.mark.parametrize("damage", [b"this is no database" * 100, b""])
def test_a_damaged_index_is_made_anew(write, record, writer, damage):
    path = write("a.jsonl", [record()])
    index(writer(path)).close()
    index_store.remove_index(path.with_name(path.name + INDEX_SUFFIX))
    path.with_name(path.name + INDEX_SUFFIX).write_bytes(damage)
    assert index(writer(path)).state.rows == 1


def test_an_index_of_another_version_is_made_anew(write, record, writer):
    path = write("a.jsonl", [record()])
    index(writer(path)).close()
    database = connect_index(path.with_name(path.name + INDEX_SUFFIX))
    database.execute(f"""UPDATE state SET json = replace(json, '"version":{index_store.VERSION}', '"version":0')""")
    database.close()
    found = writer(path)
    assert found.state.rows == 0
    assert index(found).state.rows == 1


def test_an_index_with_columns_that_are_not_ours_is_made_anew(write, record, writer):
    path = write("a.jsonl", [record(a=1)])
    index(writer(path)).close()
    database = connect_index(path.with_name(path.name + INDEX_SUFFIX))
    database.execute("UPDATE columns SET field = '(SELECT 1)' WHERE name = 'a'")
    database.close()
    assert writer(path).state.rows == 0


def test_an_index_is_readable_for_whom_the_file_is(write, record, writer):
    path = write("a.jsonl", [record()])
    path.chmod(0o600)
    index(writer(path))
    for found in path.parent.glob("*.sqlite*"):
        assert found.stat().st_mode & 0o777 == 0o600


def test_an_index_goes_to_the_cache_when_it_cannot_lie_beside_the_file(write, record, tmp_path):
    path = write("a.jsonl", [record()])
    beside, cached = index_paths(path, tmp_path / "cache")
    beside.mkdir()  # as good as a folder that cannot be written to, also for root
    assert open_index(path, tmp_path / "cache") == cached
    cached_folder = tmp_path / "file"
    cached_folder.write_text("")
    with pytest.raises(ConfigError, match="its index cannot be written"):
        open_index(path, cached_folder)


def test_two_programs_can_keep_the_same_index_up_to_date(write, record, writer):
    path = write("a.jsonl", [record(0, number) for number in range(40)])
    first, second = writer(path), writer(path)
    while first.step(2_000) | second.step(2_000):
        pass
    while first.step_text(2_000) | second.step_text(2_000):
        pass
    fresh = write("fresh.jsonl", [record(0, number) for number in range(40)])
    index(writer(fresh))
    assert content(path) == content(fresh)


def test_a_large_file_is_parsed_by_other_processes_with_the_same_result(write, record, writer):
    records = [
        record(number // 8, number % 8, number / 300, **{f"field_{number % 3}": number}) for number in range(300)
    ]
    path, fresh = write("a.jsonl", records), write("fresh.jsonl", records)
    found = writer(path)
    found._ahead.close()
    found._ahead = ReadAhead(path, backlog=1)
    found._ahead._processes = 2
    while found.step(20_000):
        pass
    index(found)
    index(writer(fresh))
    assert content(path) == content(fresh)


def test_a_record_with_thousands_of_fields_has_a_limited_number_of_columns(write, record, writer):
    path = write("a.jsonl", [record(**{f"field_{number}": number for number in range(3_000)})])
    assert index(writer(path)).state.rows == 1
    assert len(content(path)["names"]) < 600


CRASHES = """
import sys
from pathlib import Path
from nemo_gym.view.index.tables import open_index
from nemo_gym.view.index.writer import IndexWriter
path = Path(sys.argv[1])
writer = IndexWriter(path, open_index(path, path.parent / "cache"))
print("ready", flush=True)
while writer.step(4_000) or writer.step_text(2_000):
    pass
"""


@pytest.mark.parametrize("delay", [0.0, 0.02])
def test_a_program_that_is_killed_leaves_an_index_that_can_be_continued(write, record, writer, delay):
    records = [record(number // 8, number % 8, question="zebra " * 20) for number in range(800)]
    path, fresh = write("a.jsonl", records), write("fresh.jsonl", records)
    with subprocess.Popen([sys.executable, "-c", CRASHES, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
    index(writer(path))
    index(writer(fresh))
    assert content(path) == content(fresh)


PIECES = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"_ng_task_index": st.integers(0, 3), "reward": st.floats(0, 1) | st.none() | st.just("odd")},
            optional={
                "_ng_rollout_index": st.integers(0, 3),
                "a": st.booleans() | st.text(max_size=70),
                "b": st.fixed_dictionaries({"c": st.integers() | st.text(max_size=5)}),
                "output": st.just([{"role": "assistant", "content": "a zebra"}]),
            },
        ).map(lambda found: json.dumps(found).encode()),
        st.sampled_from([b"", b"  ", b"nonsense", b'"text"', b"{}", b'{"a": "\\u0000\\ud83d\\ude00"}']),
    ),
    max_size=12,
)


@settings(max_examples=25)  # each makes two databases
@given(pieces=PIECES, cuts=st.lists(st.integers(0, 2_000), max_size=6), end=st.booleans())
def test_a_file_that_grows_in_any_pieces_has_the_index_of_the_whole(pieces, cuts, end, tmp_path_factory):
    folder = tmp_path_factory.mktemp("grown")
    whole = b"\n".join(pieces) + (b"\n" if end else b"")
    at_once, grown = folder / "at_once.jsonl", folder / "grown.jsonl"
    at_once.write_bytes(whole)
    grown.write_bytes(b"")
    writers = [IndexWriter(path, open_index(path, folder / "cache")) for path in (at_once, grown)]
    index(writers[0])
    done = 0
    for cut in [*sorted(min(cut, len(whole)) for cut in cuts), len(whole)]:
        with grown.open("ab") as file:
            file.write(whole[done:cut])
        done = cut
        index(writers[1])
    for each in writers:
        each.close()
    assert content(grown) == content(at_once)


def test_readers_see_whole_steps_only(write, record, writer):
    path = write("a.jsonl", [record(0, number) for number in range(50)])
    found = writer(path)
    reader = sqlite3.connect(path.with_name(path.name + INDEX_SUFFIX))
    while found.step(5_000):
        rows, text = reader.execute("SELECT count(*), (SELECT json FROM state) FROM rollouts").fetchone()
        assert rows == json.loads(text)["rows"]
    reader.close()
