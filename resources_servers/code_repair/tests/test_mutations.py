import ast

import pytest

from resources_servers.code_repair.mutations import Mutation, apply_edits, functions_of, mutations_of
from resources_servers.code_repair.tasks import without_tests
from resources_servers.code_repair.trial import forgery

SOURCE = '''"""Täxt before the function."""


class Box:
    def fits(self, size, limit):
        """Whether it fits."""
        if not size and limit:
            return pad(limit, size)
        else:
            size = size + 1
        return size < limit


def short(x):
    return x
'''


def mutations() -> list[Mutation]:
    return [each for function in functions_of("box.py", SOURCE) for each in mutations_of(function, SOURCE)]


def test_functions_that_are_too_short_to_repair_are_left_out() -> None:
    assert [function.name for function in functions_of("box.py", SOURCE)] == ["Box.fits"]


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("operator", "        if not size or limit:"),
        ("operator", "            size = size - 1"),
        ("condition", "        return size >= limit"),
        ("off_by_one", "        return size <= limit"),
        ("off_by_one", "            size = size + 2"),
        ("dropped_branch", "            pass"),
        ("swapped_arguments", "            return pad(size, limit)"),
        ("removed_body", "        raise NotImplementedError"),
    ],
)
def test_each_kind_changes_what_it_says(kind: str, line: str) -> None:
    results = [apply_edits(SOURCE, each.edits) for each in mutations() if each.kind == kind]
    assert any(line in result.splitlines() for result in results), results


def test_every_mutation_is_another_program_in_the_same_order_each_time() -> None:
    results = [apply_edits(SOURCE, each.edits) for each in mutations()]
    assert len(set(results)) == len(results)
    for result in results:
        ast.parse(result)
        assert "Täxt before" in result
    assert mutations() == mutations()


def test_tests_are_taken_out_of_their_file() -> None:
    source = "import x\n\n\n@mark\ndef test_a():\n    pass\n\n\nclass TestB:\n    def test_c(self):\n        assert x\n"
    assert "test_a" not in without_tests(source, ["test_a"])
    left = without_tests(source, ["TestB::test_c"])
    assert "test_c" not in left
    assert "test_a" in left
    ast.parse(left)


def test_a_repair_that_mentions_what_runs_the_tests_is_recognized() -> None:
    original = {"a.py": b"import sys\nsys.modules\n"}
    assert forgery(original, {"a.py": b"import sys\nsys.modules\nx = 1\n"}) is None
    assert forgery(original, {"a.py": b"import pytest\n"}) == "pytest"
    assert forgery(original, {"new.py": b"import sys; sys.modules['x']"}) == "sys.modules"
