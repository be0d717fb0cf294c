"""Findings and reports: what is an error, and how it is told."""

import pytest

from nemo_gym.audit.findings import CheckReport, Finding, counted, examine, examine_live, listed

BAD = Finding("error", "a.py:1", "is not Python", "rename it")
ODD = Finding("warning", "b", "grows")


@pytest.mark.parametrize(
    ("findings", "code", "words"),
    [
        ([], 0, "0 errors, 0 warnings"),
        ([ODD], 0, "0 errors, 1 warning"),
        ([BAD], 1, "1 error, 0 warnings"),
        ([ODD, BAD, BAD, ODD], 1, "2 errors, 2 warnings"),
    ],
)
def test_only_errors_fail_a_report(findings: list[Finding], code: int, words: str) -> None:
    report = CheckReport("it", "it was checked", findings, {"rows": 3})
    assert (report.exit_code, counted(findings)) == (code, words)
    told = report.to_json()
    assert (told["subject"], told["valid"], told["rows"], len(told["findings"])) == ("it", not code, 3, len(findings))


def test_a_finding_is_one_line_with_its_hint() -> None:
    assert [str(BAD), str(ODD)] == ["error: a.py:1: is not Python; rename it", "warning: b: grows"]


async def test_checks_are_functions_that_yield_findings() -> None:
    def is_odd(number: int):
        if number % 2:
            yield ODD

    async def is_negative(number: int):
        if number < 0:
            yield BAD

    assert examine(-3, [is_odd, is_odd]) == [ODD, ODD]
    assert await examine_live(-3, [is_negative]) == [BAD]
    assert await examine_live(3, [is_negative]) == []


def test_long_lists_are_cut() -> None:
    assert listed([1, 2, 3]) == "1, 2, 3"
    assert listed([1, 2, 3, 4, 5]) == "1, 2, 3 and 2 more"
