"""A recording holds every exchange once, survives crashes, and gives each rollout its own answers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.servers.middleware.rollout_scope import RolloutScope
from responses_api_models.replay_model.matching import key_of
from responses_api_models.replay_model.recording import (
    DamagedRecordingError,
    RecordedReply,
    RecordedRequest,
    Recorder,
    Recording,
)

PATH = "/v1/responses"


def asked(text: str, scope: RolloutScope | None = None) -> RecordedRequest:
    return RecordedRequest(key_of(PATH, text), PATH, text, scope)


def scope(task: int, rollout: int, attempt: int = 1, run: str = "") -> RolloutScope:
    return RolloutScope(task, rollout, attempt, run or f"{task}{rollout}{attempt}")


def said(recording: Recording, text: str, who: RolloutScope | None, number: int = 0) -> bytes | None:
    place = recording.find(key_of(PATH, text), who, number)
    return None if place is None else recording.reply(place).body


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "recording.jsonl"


def test_answers_come_back_byte_for_byte(path: Path) -> None:
    answers = [
        RecordedReply(200, b'{"a": 1,\n "b": "\xc3\xa9"}'),
        RecordedReply(502, b"<html>\xff\x00</html>", {"Retry-After": "3"}),
        RecordedReply(200, b""),
    ]
    recorder = Recorder(path)
    places = [recorder.append(asked(f"q{n}"), answer) for n, answer in enumerate(answers)]
    recording = Recording(path)
    assert [recording.reply(place) for place in places] == answers
    assert len(recording) == 3


def test_each_rollout_gets_its_own_answers_in_their_order(path: Path) -> None:
    recorder = Recorder(path)
    for who, body in [
        (scope(0, 0), b"a"),
        (scope(0, 1), b"b"),
        (scope(0, 0), b"c"),
        (scope(0, 1, 2), b"d"),
        (None, b"e"),
    ]:
        recorder.append(asked("q", who), RecordedReply(200, body))
    recording = Recording(path)
    assert [said(recording, "q", scope(0, 0), n) for n in range(3)] == [b"a", b"c", None]
    assert said(recording, "q", scope(0, 1)) == b"b"
    assert said(recording, "q", scope(0, 1, 2)) == b"d"
    assert [said(recording, "q", scope(0, 1, 3), n) for n in range(3)] == [b"b", b"d", None]
    assert [said(recording, "q", None, n) for n in range(6)] == [b"a", b"b", b"c", b"d", b"e", b"a"]
    assert [said(recording, "q", scope(7, n)) for n in range(3)] == [b"a", b"b", b"c"]
    assert said(recording, "other", scope(0, 0)) is None


def test_a_later_turn_is_written_as_what_is_new(path: Path) -> None:
    recorder = Recorder(path)
    tools = "t" * 5000
    texts = [f'{{"input":[{",".join(["item é" * 100] * (n + 1))}],"tools":"{tools}"}}' for n in range(20)]
    for text in texts:
        recorder.append(asked(text, scope(0, 0)), RecordedReply(200, b"ok"))
    recorder.append(asked(texts[0], scope(0, 1)), RecordedReply(200, b"ok"))
    recording = Recording(path)
    assert path.stat().st_size < sum(map(len, texts)) / 5
    for text in texts:
        place = recording.find(key_of(PATH, text), scope(0, 0), 0)
        assert place is not None
        assert recording.text(place) == text


def test_a_torn_line_costs_itself_only(path: Path) -> None:
    recorder = Recorder(path)
    first = "the question " * 50
    recorder.append(asked(first, scope(0, 0)), RecordedReply(200, b"a"))
    recorder.append(asked(first + "and more", scope(0, 0)), RecordedReply(200, b"b"))
    recorder.close()
    os.truncate(path, path.stat().st_size - 5)
    recorder = Recorder(path)
    recorder.append(asked("next", scope(0, 1)), RecordedReply(200, b"c"))
    recording = Recording(path)
    assert (len(recording), len(recording.unreadable)) == (2, 1)
    assert said(recording, first, scope(0, 0)) == b"a"
    assert said(recording, "next", scope(0, 1)) == b"c"
    assert not recording.is_known(key_of(PATH, first + "and more"))


def test_a_damaged_line_is_named_and_no_other_answer_takes_its_place(path: Path) -> None:
    recorder = Recorder(path)
    for rollout, body in ((0, b"a"), (1, b"b"), (1, b"c"), (2, b"d")):
        recorder.append(asked("q", scope(0, rollout)), RecordedReply(200, body))
    recorder.close()
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b'"status":200', b'"status":2!0')  # in the middle
    lines[3] = lines[3][:-9]  # cut short
    path.write_bytes(b"\n".join(lines))
    recording = Recording(path)

    assert recording.unreadable == [2, 4]
    assert said(recording, "q", scope(0, 0)) == b"a"
    for who, line in ((scope(0, 1), 2), (scope(0, 2), 4)):
        with pytest.raises(DamagedRecordingError, match=f"line {line} of it is damaged"):
            said(recording, "q", who)
    assert said(recording, "q", scope(0, 1), 1) == b"c"


def test_a_line_that_may_be_anybodys_answer_is_named_to_those_who_have_none(path: Path) -> None:
    recorder = Recorder(path)
    recorder.append(asked("q", scope(0, 0)), RecordedReply(200, b"a"))
    recorder.close()
    path.write_bytes(path.read_bytes() + b"\x00\x00\x00\n")
    recording = Recording(path)

    assert said(recording, "q", scope(0, 0)) == b"a"
    with pytest.raises(DamagedRecordingError, match="line 2"):
        said(recording, "q", scope(0, 1))


def test_lines_that_ran_together_are_named_to_both_rollouts(path: Path) -> None:
    recorder = Recorder(path)
    for rollout in range(3):
        recorder.append(asked("q", scope(0, rollout)), RecordedReply(200, b"abc"))
    recorder.close()
    first, second, third, _ = path.read_bytes().split(b"\n")
    path.write_bytes(first[:-9] + second + b"\n" + third + b"\n")
    recording = Recording(path)

    for rollout in (0, 1):
        with pytest.raises(DamagedRecordingError, match="line 1 of it is damaged"):
            said(recording, "q", scope(0, rollout))
    assert said(recording, "q", scope(0, 2)) == b"abc"


def test_what_follows_a_line_that_another_process_left_unfinished_has_a_line_of_its_own(path: Path) -> None:
    recorder = Recorder(path)
    recorder.append(asked("q", scope(0, 0)), RecordedReply(200, b"a"))
    with path.open("ab") as file:  # of a process that was killed while it wrote
        file.write(path.read_bytes()[:40])
    place = recorder.append(asked("q", scope(0, 1)), RecordedReply(200, b"b"))
    recording = Recording(path)

    assert recording.unreadable == [2]
    assert recording.reply(place).body == said(recording, "q", scope(0, 1)) == b"b"


def test_those_without_a_rollout_are_told_of_a_damaged_line_too(path: Path) -> None:
    recorder = Recorder(path)
    for body in (b"a", b"b", b"c"):
        recorder.append(asked("q"), RecordedReply(200, body))
    recorder.close()
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b'"status":200', b'"status":2!0')
    path.write_bytes(b"\n".join(lines))
    recording = Recording(path)

    assert said(recording, "q", None) == b"a"
    with pytest.raises(DamagedRecordingError, match="line 2"):
        said(recording, "q", None, 1)
    assert said(recording, "q", None, 2) == b"c"
    with pytest.raises(DamagedRecordingError, match="line 2"):
        said(recording, "q", None, 3)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (b'"status":200', b'"status":"200"'),
        (b'"scope":[0,1,1]', b'"scope":[0,1]'),
        (b'"answer":"b"', b'"answer":7'),
        (b'"answer":"b"', b'"answer_base64":"!"'),
        (b',"answer":"b"', b""),
        (b'"request":"q"', b'"request":"\xff"'),
    ],
)
def test_a_line_with_values_of_the_wrong_kind_is_damaged(path: Path, right: bytes, wrong: bytes) -> None:
    recorder = Recorder(path)
    for rollout, body in enumerate((b"a", b"b")):
        recorder.append(asked("q", scope(0, rollout)), RecordedReply(200, body))
    recorder.close()
    first, second, _ = path.read_bytes().split(b"\n")
    assert right in second
    path.write_bytes(first + b"\n" + second.replace(right, wrong) + b"\n")
    recording = Recording(path)

    assert recording.unreadable == [2]
    with pytest.raises(DamagedRecordingError, match="line 2"):
        said(recording, "q", scope(0, 1))


def test_lines_that_are_no_exchanges_do_not_count(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'\n[]\nnull\n{"key": "x"}\n\xff\n{"key": "k", "scope": null, "status": 200, "answer": "a"}')
    recording = Recording(path)
    assert (len(recording), len(recording.unreadable)) == (1, 4)


def test_a_request_whose_base_is_lost_has_no_text(path: Path) -> None:
    recorder = Recorder(path)
    first = "the question " * 50
    recorder.append(asked(first, scope(0, 0)), RecordedReply(200, b"a"))
    place = recorder.append(asked(first + "more", scope(0, 0)), RecordedReply(200, b"b"))
    assert Recording(path).text(place) == first + "more"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"x" * (len(lines[0]) - 1) + b"\n" + lines[1])
    recording = Recording(path)
    assert recording.text(place) is None
    assert recording.reply(place).body == b"b"


def test_a_write_that_fails_leaves_no_trace(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(path)
    recorder.append(asked("a"), RecordedReply(200, b"a"))
    before = path.read_bytes()
    write = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space"):
        recorder.append(asked("b"), RecordedReply(200, b"b"))
    assert path.read_bytes() == before


WRITER = """
import sys
from pathlib import Path
from responses_api_models.replay_model.recording import RecordedReply, RecordedRequest, Recorder

recorder = Recorder(Path(sys.argv[1]))
for number in range(200):
    name = f"{sys.argv[2]}-{number}"
    recorder.append(RecordedRequest(name, "/", name * 500, None), RecordedReply(200, name.encode() * 1000))
"""


def test_several_processes_record_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    root = str(Path(__file__).parents[3])
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(n)], env={**os.environ, "PYTHONPATH": root})
        for n in range(3)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    recording = Recording(path)
    assert (len(recording), recording.unreadable) == (600, [])
    for name in ("0-0", "1-100", "2-199"):
        place = recording.find(name, None, 0)
        assert place is not None
        assert recording.reply(place).body == name.encode() * 1000
        assert recording.text(place) == name * 500
