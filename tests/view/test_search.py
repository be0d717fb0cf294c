"""Search: how a query is read, and what is shown of a hit."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.view.index.search import fold, searchable_text, snippet, to_match
from nemo_gym.view.selection import Query, select


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", None),
        ("  \t", None),
        ('""', None),
        ("?!", None),
        ("zebra", '"zebra"*'),
        ("two words", '"two"* AND "words"*'),
        ('"two words"', '"two words"'),
        ('"never closed', '"never closed"'),
        ("a-b", '"a b"*'),
        ('say "hello there" now', '"say"* AND "hello there" AND "now"*'),
        ('glued"two words"', '"glued"* AND "two words"'),
        ("snake_case Éclair", '"snake case"* AND "eclair"*'),
        ("x OR y", '"x"* AND "or"* AND "y"*'),
    ],
)
def test_a_query_becomes_words_and_phrases_and_nothing_else(text, match):
    assert to_match(text) == match


@given(st.text(max_size=60))
def test_any_query_is_understood_by_the_database(text):
    match = to_match(text)
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE body USING fts5(text, content='', columnsize=0, tokenize='ascii')")
    if match is not None:
        assert database.execute("SELECT rowid FROM body WHERE body MATCH ?", (match,)).fetchall() == []
    database.close()


def test_everything_that_was_said_can_be_found(record, failure):
    text = searchable_text(record(3, 4, question="Where is it?", answer="Over there."))
    for part in ("Where is it?", "Over there.", "lookup", "zebra", "found 3004"):
        assert part in text
    assert "timeout after 3 s" in searchable_text(failure())
    assert searchable_text({}) == ""
    assert searchable_text({"output": [{"role": "tool", "content": "\ud800 half\0"}]}) == "? half�"


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("Plain, ASCII_text", "plain, ascii_text"),
        ("Crème Brûlée", "creme brulee"),
        ("İstanbul", "istanbul"),
        ("“quoted”—text…", " quoted text..."),
        ("ﬁne ½", "fine 1 2"),
        ("a\u03a3\u03a3 e\u0301", "a\u03c3\u03c3 e"),
        ("がく 한국어 漢字", "がく 한국어 漢字"),
    ],
)
def test_case_accents_and_typography_do_not_matter(text, folded):
    assert fold(text).lower() == folded


def test_a_rollout_nested_without_end_is_searched_like_any_other(write, record, library):
    deep = "needle"
    for _ in range(900):
        deep = [deep]
    rows = [record(0, 0), record(0, 1), record(0, 2, answer="needle")]
    rows[1]["response"]["output"][0]["arguments"] = "[" * 1500 + '"needle"' + "]" * 1500
    rows[1]["response"]["output"][1]["output"] = deep
    found = library(write("a.jsonl", rows)).snapshot()
    assert len(select(found, Query(search="needle"))) == 2
    assert len(select(found, Query(search="zebra"))) == 2


def test_a_snippet_shows_the_surroundings_of_the_first_hit(record):
    said = record(answer="word " * 50 + "the NEEDLE,\nin\tthe haystack " + "word " * 50)
    found = snippet(said, "needl")
    assert found is not None
    assert "the NEEDLE, in the haystack" in found
    assert found.startswith("…")
    assert found.endswith("…")
    assert len(found) < 160
    assert snippet(said, '"needle in the haystack"') is not None
    assert snippet(said, '"needle in the hay"') is None  # which is not found either
    assert snippet(said, "nothing of the kind at all")  # one of the words is enough to show something
    assert snippet(said, "absent") is None
