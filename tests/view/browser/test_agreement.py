"""The page's own code and the program agree, whatever people collect, filter by and search for.

An exported page has no server: its scripts filter, search, sort and count by themselves, in a real browser. Filters,
queries and rollouts are generated, both sides get the same, and what they return is compared.
"""

import asyncio
import json
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from nemo_gym.errors import ConfigError
from nemo_gym.filters import FilterError, parse_filter
from nemo_gym.filters.parser import DEEPEST, LONGEST, MOST_TERMS
from nemo_gym.io.files import RunFiles
from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.pass_at_k import attempts
from nemo_gym.metrics.report import details
from nemo_gym.metrics.statistics import overall
from nemo_gym.rollouts.run_metrics import aggregate_run
from nemo_gym.schemas.record import Record
from nemo_gym.view.app import Api
from nemo_gym.view.export_html import embedded_data
from nemo_gym.view.groups import BY, SORTS
from nemo_gym.view.index.search import fold, searchable_text, snippet, to_match
from nemo_gym.view.library import Library
from nemo_gym.view.listing import to_bytes
from nemo_gym.view.rollout import CHANGE_ORDERS, PAIRINGS, first_difference
from nemo_gym.view.selection import Query, select

# Python and the browser may know different versions of Unicode, so only characters that Python knows are generated.
KNOWN = st.characters(exclude_categories=("Cs", "Cn"))
TEXTS = st.text(KNOWN, max_size=6) | st.sampled_from(["", "é", "É", "z", "\U0001f600", "\uff5e", "a, b", "null", "1"])
WHOLE = st.integers(-(2**53), 2**53)  # what JavaScript's numbers hold exactly
NUMBERS = st.sampled_from([0, 1, -1.5, 0.25, 3.0, 1e300]) | WHOLE | st.floats(allow_nan=False)
VALUES = st.none() | st.booleans() | NUMBERS | TEXTS
NAMES = ["reward", "tokens", "note", "judge.score", "größe", "__proto__", "constructor", "two words", "x²"]
ROWS = st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, VALUES)), min_size=1, max_size=6)

WORDS = ["creme", "Crème", "brûlée", "needle", "thread", "NEEDLE", "is", "issue", "don't", "snake_case", "한국어",
         "東京", "½", "1e3", "İstanbul", "istanbul", "ΟΔΟΣ", "οδος", "ﬁne", "fine", "e\u0301te\u0301", "ete", "がく",
         "か\u3099", "\U0001d400b", "\U0001f600", "…", "—", "\0", "\x85", "\ufeff", "हिन्दी"]  # fmt: skip
PROSE = st.lists(st.sampled_from(WORDS) | TEXTS, max_size=12).flatmap(
    lambda words: st.sampled_from([" ", "", "\n", ", ", "_"]).map(lambda between: between.join(words))
)
SEARCHES = st.lists(st.sampled_from(WORDS) | TEXTS | st.just('"'), max_size=5).map(" ".join)
ON_ONE_PAGE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\\n", "\n").replace("\\u", "u")


def named(name: str) -> str:
    return f"`{name}`"


BLANKS = st.sampled_from([" ", "  ", "\t", "\n", "\x1c", "\x85", "\ufeff", "\u3000"])
LITERALS = (
    TEXTS.map(quoted)
    | st.sampled_from(["true", "FALSE", "null", ".5", "1.", "+2", "-1e3", "0", "1"])
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
)
OPERANDS = st.sampled_from(NAMES[:5]) | st.sampled_from(NAMES).map(named) | LITERALS
OPERATORS = st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "contains", "not contains", "CONTAINS"])
COMPARISONS = st.one_of(
    st.tuples(OPERANDS, OPERATORS, OPERANDS).map(" ".join),
    st.tuples(OPERANDS, st.sampled_from("<>"), OPERANDS, st.sampled_from(["<=", "=="]), OPERANDS).map(" ".join),
    st.tuples(OPERANDS, st.sampled_from(["is null", "is not null", "Is Not NULL"])).map(" ".join),
    st.tuples(OPERANDS, st.sampled_from(["in", "not in"]), st.lists(LITERALS, min_size=1, max_size=3)).map(
        lambda parts: f"{parts[0]} {parts[1]} [{', '.join(parts[2])}]"
    ),
)
FILTERS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        inner.map(lambda text: f"not ({text})"),
        st.tuples(inner, st.sampled_from(["and", "or", "AND"]), inner).map(" ".join),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda parts: f"({' '.join(parts)})"),
    ),
    max_leaves=6,
)
SIGNS = st.sampled_from(
    ["&&", "||", "=", "!", "<>", "=~", "(", ")", "[", "]", ",", '"', "'", "`", "nosuch", "\u0661", "2x"]
)
PIECES = st.lists(OPERANDS | OPERATORS | SIGNS | BLANKS | TEXTS | st.sampled_from(["and", "or", "not", "is", "in"]))
BROKEN = st.one_of(
    PIECES.map(" ".join),
    PIECES.map("".join),
    st.tuples(FILTERS, st.integers(0, 60), SIGNS | BLANKS | TEXTS).map(
        lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] :]
    ),
)


class PageCode:
    """The modules of the page, called in a browser."""

    def __init__(self, tab: Any, address: str) -> None:
        self._tab = tab
        tab.go(address)

    def run(self, modules: dict[str, str], body: str) -> Any:
        """What a function body returns; it may use what it imports from the modules."""
        imports = "".join(f"const {{ {names} }} = await import('/{file}.js');" for file, names in modules.items())
        return json.loads(self._tab.evaluate(f"(async () => {{ {imports} return JSON.stringify({body}); }})()"))


@pytest.fixture
def code(page: Any, one_run: str) -> PageCode:
    return PageCode(page, one_run)


# ---- filters ---------------------------------------------------------------------------------------------------------
def outcome_of_filter(text: str, rows: list[dict[str, Any]]) -> Any:
    try:
        wanted = parse_filter(text, NAMES)
    except FilterError as error:
        return [str(error), error.position]
    return [wanted.test(row) for row in rows]


def assert_filters_agree(code: PageCode, texts: list[str], rows: list[dict[str, Any]]) -> None:
    found = code.run(
        {"filter": "compileFilter"},
        f"""{json.dumps(texts)}.map((text) => {{
            const rows = {to_script(rows)};
            try {{ const passes = compileFilter(text, {json.dumps(NAMES)}); return rows.map((row) => passes(row)); }}
            catch (error) {{ return [error.message, error.position]; }}
        }})""",
    )
    assert dict(zip(texts, found, strict=True)) == {text: outcome_of_filter(text, rows) for text in texts}


def to_script(value: Any) -> str:
    """A value as JSON for a script, infinities included; as a literal it would lose a key ``__proto__``."""
    return f"JSON.parse({json.dumps(json.dumps(value).replace('Infinity', '1e999'))})"


@ON_ONE_PAGE
@given(texts=st.lists(FILTERS, min_size=1, max_size=8), rows=ROWS)
def test_a_filter_selects_the_same_rows_on_both_sides(code: PageCode, texts: list[str], rows: Any) -> None:
    assert_filters_agree(code, texts, rows)


@ON_ONE_PAGE
@given(texts=st.lists(BROKEN, min_size=1, max_size=8))
def test_a_filter_is_refused_for_the_same_reason_at_the_same_character(code: PageCode, texts: list[str]) -> None:
    assert_filters_agree(code, texts, [{"reward": 1, "note": "é"}])


def test_filters_have_the_same_limits(code: PageCode) -> None:
    texts = [
        f'note == "{"😀" * (LONGEST - 12 + more)}"' for more in (0, 1)
    ] + [
        f"{'(' * depth}reward == 1{')' * depth}" for depth in (DEEPEST - 1, DEEPEST)
    ] + [
        " or ".join(["1==1"] * count) for count in (MOST_TERMS, MOST_TERMS + 1)
    ] + [
        f"reward in [{', '.join(['1'] * (MOST_TERMS + more))}] or reward == 1" for more in (-1, 0, 1)
    ]  # fmt: skip
    assert_filters_agree(code, texts, [{"reward": 1}])


# ---- search ----------------------------------------------------------------------------------------------------------
def saying(text: str) -> dict[str, Any]:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {"responses_create_params": {"instructions": text[:3]}, "response": {"output": [said, {"type": text}]}}


def _indexed(record: dict[str, Any]) -> str:
    return fold(searchable_text(record))


def is_found(records: list[dict[str, Any]], search: str) -> list[bool]:
    """What an index finds."""
    match = to_match(search)
    if match is None:
        return [True] * len(records)
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE body USING fts5(text, content='', columnsize=0, tokenize='ascii')")
    database.executemany("INSERT INTO body (rowid, text) VALUES (?, ?)", enumerate(map(_indexed, records), 1))
    found = {row for (row,) in database.execute("SELECT rowid FROM body WHERE body MATCH ?", (match,))}
    database.close()
    return [row in found for row in range(1, len(records) + 1)]


@ON_ONE_PAGE
@given(texts=st.lists(PROSE, min_size=1, max_size=5), searches=st.lists(SEARCHES, min_size=1, max_size=5))
def test_a_search_finds_and_shows_the_same_on_both_sides(code: PageCode, texts: Any, searches: Any) -> None:
    records = [saying(text) for text in texts]
    found = code.run(
        {"search": "searchTest, searchableText, snippetOf, wordsOf"},
        f"""{json.dumps(searches)}.map((search) => {json.dumps(records)}.map((record) => {{
            const text = searchableText(record);
            return [text, searchTest(search)(` ${{wordsOf(text).join(" ")}} `), snippetOf(text, search)];
        }}))""",
    )
    for search, results in zip(searches, found, strict=True):
        hits = is_found(records, search)
        expected = [
            [searchable_text(each), hit, snippet(each, search)] for each, hit in zip(records, hits, strict=True)
        ]
        assert results == expected, search


# ---- rollouts --------------------------------------------------------------------------------------------------------
REWARDS = st.sampled_from([0.0, 1.0, 0.25, 0.75, -1.5, 3.0, True, None, "missing", float("inf"), 1e-12, 1e300])
AGENTS = st.sampled_from(["math", "code", "ß", None])
OWN_FIELDS = st.fixed_dictionaries(
    {}, optional={"id": TEXTS, "line": WHOLE, "solved": st.booleans(), "note": VALUES, "two words": VALUES}
)


@st.composite
def rollouts(draw: st.DrawFn) -> dict[str, Any]:
    call = {
        "type": "function_call",
        "name": "look_up",
        "arguments": draw(PROSE),
        "call_id": draw(st.sampled_from("ab")),
    }
    said = saying(draw(PROSE))["response"]["output"][:1]
    row = {
        **draw(OWN_FIELDS),
        "_ng_task_index": draw(st.integers(0, 3)),
        "_ng_rollout_index": draw(st.integers(0, 3) | st.none()),
        "responses_create_params": {"input": [{"role": "user", "content": draw(PROSE)}]},
        "response": {
            "output": [call] * draw(st.integers(0, 2)) + said,
            "usage": {"input_tokens": draw(st.integers(0, 9))},
        },
        "reward": draw(REWARDS),
        "agent_ref": {"name": draw(AGENTS)},
    }
    return {
        name: value for name, value in row.items() if value != "missing" and (value is not None or name == "reward")
    }


def failures() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "_ng_task_index": st.integers(0, 3),
            "_ng_rollout_index": st.integers(0, 3),
            "_ng_failure_class": st.sampled_from(["timeout", "auth", "1"]),
            "error_message": PROSE,
        }
    )


KEYS = st.sampled_from(["reward", "note", "task", "question", "answer", "agent", "tokens", "nosuch"])
SORT_ORDERS = st.lists(st.tuples(st.sampled_from(["", "-", " "]), KEYS).map("".join), max_size=2).map(",".join)
SELECTED = st.sampled_from(
    ["", " ", "reward >= -100", "reward < 0.5", "reward is null", "agent == null", 'agent == "ß" or task > 1',
     'file == "b.jsonl"', "failure is not null", 'question contains "N"', "turns >= 1 and tool_calls < 2"]
)  # fmt: skip
CHOSEN = st.fixed_dictionaries({"filter": SELECTED, "search": st.just("") | SEARCHES})
THRESHOLDS = st.sampled_from([1, 0.25, -1])


def asking(method: str, path: str, **parameters: Any) -> st.SearchStrategy[tuple[str, str, dict[str, Any]]]:
    """The method of the page's source, the path of the server, and the parameters of both."""
    given = st.fixed_dictionaries(parameters)
    return st.tuples(CHOSEN, given).map(lambda both: (method, path, both[0] | both[1]))


QUERIES = st.lists(
    st.one_of(
        asking("overview", "overview", threshold=THRESHOLDS),
        asking("rollouts", "rollouts", columns=st.just("*"), sort=SORT_ORDERS, limit=st.integers(0, 30)),
        asking(
            "groups",
            "groups",
            by=st.sampled_from([*BY, "note", "turns", "reward", "tokens"]),
            sort=st.tuples(st.sampled_from(["", "-"]), st.sampled_from(SORTS)).map("".join),
            threshold=THRESHOLDS,
        ),
        asking("scatter", "scatter", x=st.sampled_from(["tokens", "line"]), y=st.just("reward")),
        st.just(("fields", "fields", {})),
        st.sampled_from(PAIRINGS).map(lambda pair_by: ("fields", "fields", {"a": 0, "b": 1, "pair_by": pair_by})),
        st.tuples(st.permutations([0, 1]), st.sampled_from(CHANGE_ORDERS), st.sampled_from(PAIRINGS)).map(
            lambda given: (
                "compareRuns",
                "compare_runs",
                {"a": given[0][0], "b": given[0][1], "sort": given[1], "pair_by": given[2]},
            )
        ),
    ),
    min_size=3,
    max_size=12,
)


@settings(ON_ONE_PAGE, max_examples=40)
@given(
    first=st.lists(rollouts(), min_size=1, max_size=12),
    second=st.lists(rollouts(), min_size=1, max_size=6),
    failed=st.lists(failures(), max_size=3),
    queries=QUERIES,
)
def test_an_exported_page_answers_as_the_server_does(
    code: PageCode, first: Any, second: Any, failed: Any, queries: Any
) -> None:
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("a.jsonl", "b.jsonl", "a_failures.jsonl")]
        for path, rows in zip(paths, (first, second, failed), strict=True):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        library = Library(list(map(str, paths[:2])), cache=Path(folder) / "cache")
        try:
            library.index_all()
            expected = list(replies(library, queries))
            whole = select(library.snapshot(), Query())
            data = embedded_data(whole, title="", limit=10**8, whole=True, threshold=1.0).decode()
        finally:
            library.close()
    found = code.run(
        {"embedded": "EmbeddedSource"},
        f"""await (async (source) => {{
            const replies = [];
            for (const [method, , parameters] of {json.dumps(queries)})
                replies.push(await source[method](parameters).catch((error) => [error.message]));
            return replies;
        }})(new EmbeddedSource(JSON.parse({json.dumps(data)})))""",
    )
    for (_, path, parameters), reply, server in zip(queries, found, expected, strict=True):
        ignored = frozenset({"version", "progress"})
        if path == "overview" and (parameters["filter"].strip() or parameters["search"].strip()):
            ignored |= {"interval"}  # an exported page has none for a selection
        assert_same(reply, server, ignored=ignored, at=f"{path} {parameters}")


def replies(library: Library, queries: list[tuple[str, str, dict[str, Any]]]) -> Iterator[Any]:
    """What the server's API replies."""
    api, snapshot = Api(library), library.snapshot()
    for _, path, parameters in queries:
        request = Request({"type": "http", "query_string": urlencode(parameters).encode(), "headers": []})
        try:
            yield json.loads(to_bytes(getattr(api, path)(snapshot, request)))
        except ConfigError as error:
            yield [str(error)]


def assert_same(page: Any, server: Any, *, ignored: frozenset[str], at: str) -> None:
    """Equal, up to the last digits of sums in another order."""
    if isinstance(server, dict):
        assert page.keys() - ignored == server.keys() - ignored, at
        for name in server.keys() - ignored:
            assert_same(page[name], server[name], ignored=ignored, at=f"{at} {name}")
    elif isinstance(server, list):
        assert len(page) == len(server), f"{at}: {page} {server}"
        for one, other in zip(page, server, strict=True):
            assert_same(one, other, ignored=ignored, at=at)
    elif isinstance(server, float):
        assert page == pytest.approx(server, rel=1e-9, abs=1e-12), at
    else:
        assert page == server, at


LEAVES = st.sampled_from([None, True, 1, "a", ""])
STEP_FIELDS = st.sampled_from(["id", "type", "generation_sampling", "logprobs", "text"])
INNER = LEAVES | st.lists(LEAVES, max_size=2) | st.dictionaries(STEP_FIELDS, LEAVES, max_size=2)
ITEMS = LEAVES | st.dictionaries(STEP_FIELDS, INNER, max_size=3)


@ON_ONE_PAGE
@given(
    outputs=st.tuples(st.lists(ITEMS, max_size=3), st.lists(ITEMS, max_size=3)),
    prompts=st.tuples(*[st.fixed_dictionaries({}, optional={"instructions": LEAVES, "input": LEAVES | INNER})] * 2),
)
def test_two_rollouts_differ_first_in_the_same_item(code: PageCode, outputs: Any, prompts: Any) -> None:
    pair = [
        {"responses_create_params": prompt, "response": {"output": output}}
        for prompt, output in zip(prompts, outputs, strict=True)
    ]
    found = code.run({"record": "firstDifference"}, f"firstDifference(...{json.dumps(pair)})")
    assert found == first_difference(*map(Record, pair))


# ---- metrics ---------------------------------------------------------------------------------------------------------
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(rollouts(), min_size=1, max_size=12))
def test_the_server_says_what_the_metrics_say(rows: Any) -> None:
    keyed = {(row["_ng_task_index"], row.get("_ng_rollout_index", 9)): row for row in rows}
    unique = [
        row | {"_ng_rollout_index": rollout, "agent_ref": {"name": "math"}} for (_, rollout), row in keyed.items()
    ]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in unique))
        asyncio.run(aggregate_run(RunFiles.of(path), None))
        [metrics] = json.loads(RunFiles.of(path).metrics.read_text())
        [more] = json.loads(path.with_name("run_aggregate_details.json").read_text())
        builder = MetricsBuilder()
        builder.add_file(path)
        library = Library([str(path)], cache=Path(folder) / "cache")
        try:
            library.index_all()
            [shown] = replies(library, [("overview", "overview", {})])
        finally:
            library.close()
    table = builder.table()
    mean = json.loads(to_bytes(overall(table).get("mean/reward")))
    assert shown["mean_reward"] == metrics["agent_metrics"].get("mean/reward") == mean
    interval = more["intervals"].get("mean/reward")
    assert shown["interval"] == (interval and [interval["low"], interval["high"]])
    assert more["intervals"] == json.loads(to_bytes(details(table)["intervals"]))
    found = attempts(table)
    for name, values in (("pass_at_k", found.pass_at_k), ("reward_at_k", found.reward_at_k)):
        finite = [value for value in values if math.isfinite(value)]  # the best of infinite rewards has no mean
        assert [point["value"] for point in shown[name]] == finite
        assert json.loads(to_bytes(values)) == list(more[name].values())
    assert shown["pass_tasks"] == more["pass_at_k_tasks"] == found.tasks
