import json
from collections import Counter
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from resources_servers.multiple_choice.generate import KINDS, generate, main, reshuffled
from resources_servers.multiple_choice.options import find_label, read_options

DATA = Path(__file__).parent.parent / "data"


def test_all_kinds_occur_and_right_options_stand_everywhere() -> None:
    rows = generate(400, seed=0)
    assert {row["category"] for row in rows} == set(KINDS)
    places = Counter(row["expected_answer"] for row in rows)
    assert set(places) == {"A", "B", "C", "D"}
    assert min(places.values()) > 60


@pytest.mark.parametrize("options", [2, 7, 20])
def test_there_are_as_many_options_as_asked_for(options: int) -> None:
    for row in generate(20, seed=0, options=options):
        count = min(options, 7) if row["category"] == "weekday" else options
        assert len(set(read_options(row["options"]).values())) == count
        assert find_label(row["expected_answer"], read_options(row["options"]))


def test_another_order_has_the_same_right_option() -> None:
    rows = generate(40, seed=0)
    others = [reshuffled(row, seed=1) for row in rows]
    assert others != rows
    for row, other in zip(rows, others, strict=True):
        before, after = read_options(row["options"]), read_options(other["options"])
        assert before[row["expected_answer"]] == after[other["expected_answer"]]
        assert sorted(before.values()) == sorted(after.values())


def test_the_shipped_data_is_what_the_generator_writes(tmp_path: Path) -> None:
    train, validation, example = (tmp_path / f"{name}.jsonl" for name in ("train", "validation", "example"))
    main(["--n", "400", "--seed", "0", "--output", str(train)])
    main(["--n", "80", "--seed", "1", "--exclude", str(train), "--output", str(validation)])
    main(["--n", "5", "--seed", "2", "--output", str(example)])
    for path in (train, validation, example):
        assert path.read_bytes() == (DATA / path.name).read_bytes()
    again = tmp_path / "again.jsonl"
    main(["--shuffle", str(example), "--seed", "9", "--output", str(again)])
    assert len([json.loads(line) for line in again.read_text("utf-8").splitlines()]) == 5


def test_impossible_wishes_are_errors() -> None:
    with pytest.raises(ConfigError, match="can't generate"):
        generate(1, seed=0, options=1)
    with pytest.raises(ConfigError, match="no more different"):
        generate(8000, seed=0, options=2)
