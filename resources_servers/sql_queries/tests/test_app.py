import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.server_utils import ServerClient
from resources_servers.sql_queries.app import RowError, SqlQueriesConfig, SqlQueriesServer, extract_query
from resources_servers.sql_queries.database_process import Databases
from resources_servers.sql_queries.generate import GENERATOR

DATA = Path(__file__).parents[1] / "data"
FIRST = """
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, city TEXT, age INTEGER);
INSERT INTO people VALUES (1,'Anna','Oslo',30),(2,'Ben','Oslo',40),(3,'Carla','Rome',NULL),(4,'Ben','Rome',20);
CREATE TABLE visits (person_id INTEGER, place TEXT);
INSERT INTO visits VALUES (1,'zoo'),(1,'zoo'),(2,'park');
"""
SECOND = FIRST.replace("'Oslo',40", "'Lima',40").replace("(2,'park')", "(3,'park'),(3,'zoo')")


def message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}


@pytest.fixture(scope="module")
def server() -> Iterator[SqlQueriesServer]:
    config = SqlQueriesConfig(host="127.0.0.1", port=8080, entrypoint="", name="sql", max_seconds=0.2, max_rows=1_000)
    server = SqlQueriesServer(config=config, server_client=ServerClient.detached())
    yield server
    asyncio.run(server.close())


@pytest.fixture(scope="module")
def client(server: SqlQueriesServer) -> TestClient:
    return TestClient(server.setup_webserver())


def row(reference: str, **fields: Any) -> dict[str, Any]:
    fixed = {"responses_create_params": {"input": "?"}, "databases": [FIRST, SECOND], "reference_query": reference}
    return {**fixed, **fields}


def score(client: TestClient, text: str, reference: str = "SELECT 1", **fields: Any) -> dict[str, Any]:
    fixed = {"id": "r", "created_at": 0, "model": "m", "object": "response", "tools": []}
    response = {**fixed, "parallel_tool_calls": True, "tool_choice": "auto", "output": [message(text)]}
    reply = client.post("/verify", json={**row(reference, **fields), "response": response})
    assert reply.status_code == 200, reply.text
    return reply.json()


EQUIVALENT = [
    ("SELECT name FROM people WHERE age > 25", "select p.name from people as p where not p.age <= 25"),
    ("SELECT COUNT(*) FROM people", "SELECT SUM(1) FROM people"),
    ("SELECT COUNT(*) FROM people", "SELECT COUNT(*) * 1.0 FROM people"),
    ("SELECT DISTINCT name FROM people", "SELECT name FROM people GROUP BY name"),
    ("SELECT DISTINCT name FROM people", "SELECT name FROM people UNION SELECT name FROM people"),
    ("SELECT name, city FROM people", "SELECT name AS a, city AS b FROM people ORDER BY id DESC"),
    ("SELECT AVG(age) FROM people", "SELECT SUM(age) * 1.0 / COUNT(age) FROM people"),
    ("SELECT AVG(age) / 3 FROM people", "SELECT SUM(age) / (3.0 * COUNT(age)) FROM people"),
    (
        "SELECT DISTINCT p.name FROM people p JOIN visits v ON v.person_id = p.id",
        "SELECT DISTINCT name FROM people WHERE EXISTS (SELECT 1 FROM visits WHERE person_id = people.id)",
    ),
    (
        "SELECT name FROM people WHERE id NOT IN (SELECT person_id FROM visits)",
        "SELECT name FROM people LEFT JOIN visits ON person_id = id WHERE person_id IS NULL",
    ),
    ("SELECT MAX(age) FROM people", "WITH a AS (SELECT age FROM people) SELECT age FROM a ORDER BY 1 DESC LIMIT 1"),
    ("SELECT COALESCE(age, 0) FROM people", "SELECT CASE WHEN age IS NULL THEN 0 ELSE age END FROM people"),
    ("SELECT 3", "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT MAX(i) FROM n"),
]
DIFFERENT = [
    ("SELECT name FROM people", "SELECT DISTINCT name FROM people", "3 rows instead of 4"),
    ("SELECT name FROM people WHERE age > 25", "SELECT name FROM people WHERE age >= 25 OR age IS NULL", "rows"),
    ("SELECT COUNT(*) FROM people", "SELECT COUNT(age) FROM people", "not the expected rows"),
    ("SELECT name, city FROM people", "SELECT city, name FROM people", "not the expected rows"),
    ("SELECT name FROM people", "SELECT name, city FROM people", "2 columns instead of 1"),
    ("SELECT age FROM people WHERE id = 1", "SELECT '30'", "not the expected rows"),
    ("SELECT age FROM people WHERE id = 3", "SELECT 0", "not the expected rows"),
    ("SELECT AVG(age) FROM people", "SELECT SUM(age) / COUNT(*) FROM people", "not the expected rows"),
    # Right by chance on the first database.
    ("SELECT name FROM people WHERE city = 'Oslo'", "SELECT name FROM people WHERE id < 3", "database 2: 2 rows"),
    (
        "SELECT DISTINCT p.name FROM people p JOIN visits v ON v.person_id = p.id",
        "SELECT name FROM people WHERE age >= 30",
        "database 2",
    ),
]


@pytest.mark.parametrize(("reference", "query"), EQUIVALENT)
def test_equivalent_queries_pass(client: TestClient, reference: str, query: str) -> None:
    for first, second in ((reference, query), (query, reference)):
        scored = score(client, f"```sql\n{second};\n```", first)
        assert (scored["reward"], scored["reason"]) == (1.0, None)


@pytest.mark.parametrize(("reference", "query", "reason"), DIFFERENT)
def test_other_queries_fail(client: TestClient, reference: str, query: str, reason: str) -> None:
    scored = score(client, query, reference)
    assert (scored["reward"], scored["executed"]) == (0.0, True)
    assert reason in scored["reason"]


def test_the_order_counts_only_where_it_was_asked_for(client: TestClient) -> None:
    reference, query = "SELECT name FROM people ORDER BY id", "SELECT name FROM people ORDER BY id DESC"
    assert score(client, query, reference)["reward"] == 1.0
    assert score(client, query, reference, ordered=True)["reward"] == 0.0
    assert score(client, reference, reference, ordered=True)["reward"] == 1.0


HOSTILE = {
    "insert": "INSERT INTO people VALUES (9, 'x', 'y', 1)",
    "insert after with": "WITH a AS (SELECT 1) INSERT INTO people SELECT 9, 'x', 'y', 1",
    "returning": "DELETE FROM people RETURNING 1",
    "update": "UPDATE people SET age = 1",
    "drop": "DROP TABLE people",
    "create": "CREATE TABLE evil AS SELECT 1",
    "temporary": "CREATE TEMP TABLE evil (a)",
    "view": "CREATE VIEW evil AS SELECT 1",
    "attach": "ATTACH DATABASE '/tmp/evil.db' AS evil",
    "attach memory": "ATTACH DATABASE ':memory:' AS evil",
    "vacuum into": "VACUUM INTO '/tmp/evil.db'",
    "pragma": "PRAGMA query_only = OFF",
    "pragma that reads": "PRAGMA table_info(people)",
    "pragma function": "SELECT * FROM pragma_table_info('people')",
    "begin": "BEGIN EXCLUSIVE",
    "explain": "EXPLAIN DELETE FROM people",
    "extension": "SELECT load_extension('/tmp/evil.so')",
    "files": "SELECT readfile('/etc/passwd')",
    "chance": "SELECT random()",
    "two statements": "SELECT 1; DROP TABLE people",
    "comment": "-- nothing",
    "endless": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n",
    "endless rows": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
    "cross join": "SELECT COUNT(*) FROM " + ", ".join(f"people p{number}" for number in range(20)),
    "sorted cross join": "SELECT * FROM " + ", ".join(f"people p{number}" for number in range(12)) + " ORDER BY 1, 2",
    "huge text": "SELECT printf('%.*c', 1000000000, 'x')",
    "huge blob": "SELECT zeroblob(2000000000)",
    "grown text": "WITH RECURSIVE n(t) AS (SELECT 'x' UNION ALL SELECT t || t FROM n) SELECT t FROM n",
    "many columns": "SELECT " + ", ".join(["1"] * 900),
    "many unions": " UNION ALL ".join(["SELECT 1"] * 500),
    "deep expression": "SELECT " + "(" * 3_000 + "1" + ")" * 3_000,
    "deep not": "SELECT " + "NOT " * 2_000 + "1",
    "pattern": "SELECT 'a' LIKE '" + "%a" * 300 + "'",
    "not text": "SELECT CAST(x'ff00ff' AS TEXT)",
    "nothing": "SELECT",
    "unknown table": "SELECT * FROM nowhere",
    "sqlite_master": "INSERT INTO sqlite_master VALUES (1,1,1,1,1)",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_queries_get_a_reason_and_change_nothing(client: TestClient, name: str) -> None:
    scored = score(client, f"```sql\n{HOSTILE[name]}\n```", "SELECT COUNT(*), SUM(age) FROM people")
    assert (scored["reward"], scored["executed"]) == (0.0, False)
    assert 0 < len(scored["reason"]) <= 400
    untouched = score(client, "SELECT COUNT(*), SUM(age) FROM people", "SELECT 4, 90")
    assert untouched["reward"] == 1.0
    assert not Path("/tmp/evil.db").exists()


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("SELECT 1", "SELECT 1"),
        ("```sql\nSELECT 1;\n```", "SELECT 1"),
        ("```\nSELECT 1\n```", "SELECT 1"),
        ("``` SELECT 1 ```", "SELECT 1"),
        ("First ```sql\nSELECT 1\n``` then ```sql\nSELECT 2\n``` done", "SELECT 2"),
        ("The query with the answer is:\nselect a\nfrom b;", "select a\nfrom b"),
        ("Use: SELECT 1", "SELECT 1"),
        ("I do not know.", None),
        ("", None),
        ("SELECT " + "1," * 40_000, None),
        ("```" * 30_000, None),
        ("``" * 40_000, None),
        ("\n" * 80_000, None),
        (" " * 80_000 + "x", None),
    ],
)
def test_the_query_is_found_in_the_answer(text: str, query: str | None) -> None:
    assert extract_query(text) == query


def test_no_query_gets_a_reason(client: TestClient) -> None:
    scored = score(client, "I do not know.")
    assert (scored["reward"], scored["reason"], scored["extracted_query"]) == (0.0, "no query", None)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"reference_query": "SELECT * FROM nowhere"}, "the reference query fails"),
        ({"reference_query": "DELETE FROM people"}, "the reference query fails"),
        ({"databases": ["CREATE TABLE"]}, "the database can't be made"),
    ],
)
def test_a_row_that_does_not_work_is_a_failure_and_not_a_zero(
    client: TestClient, fields: dict[str, Any], reason: str
) -> None:
    broken = row("SELECT 1", **fields)
    with pytest.raises(RowError, match=reason):
        client.post("/seed_session", json=broken)


def test_the_tool_shows_the_first_rows(client: TestClient) -> None:
    assert client.post("/seed_session", json=row("SELECT 1")).status_code == 200
    shown = client.post("/run_query", json={"query": "SELECT name, age FROM people ORDER BY id LIMIT 2"}).json()
    assert shown == {"columns": ["name", "age"], "rows": [["Anna", 30], ["Ben", 40]], "row_count": 2}
    assert "nowhere" in client.post("/run_query", json={"query": "SELECT * FROM nowhere"}).json()["error"]
    assert "longer" in client.post("/run_query", json={"query": "x" * 20_000}).json()["error"]
    other = TestClient(client.app)
    assert other.post("/run_query", json={"query": "SELECT 1"}).json() == {"error": "the rollout has not begun"}


def test_a_process_that_dies_is_replaced(client: TestClient, server: SqlQueriesServer) -> None:
    assert score(client, "SELECT 1")["reward"] == 1.0
    for worker in server._pool._idle:
        os.kill(worker.pid, 9)

    assert score(client, "SELECT 1")["reward"] == 1.0


def test_a_result_that_is_too_large_is_refused(client: TestClient) -> None:
    assert client.post("/seed_session", json=row("SELECT 1")).status_code == 200
    wide = ", ".join(["printf('%090000d', 1)"] * 60)
    shown = client.post("/run_query", json={"query": f"SELECT {wide}"}).json()
    assert shown == {"error": "the result is too large"}


def test_duckdb_reads_and_nothing_else(client: TestClient) -> None:
    pytest.importorskip("duckdb", reason="pip install duckdb")
    fields = {"dialect": "duckdb", "databases": ["CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1), (2)"]}
    assert score(client, "SELECT sum(a) FROM t", "SELECT 3", **fields)["reward"] == 1.0
    for query in (
        "SELECT * FROM read_csv('/etc/passwd')",
        "COPY t TO '/tmp/evil.db'",
        "ATTACH '/tmp/evil.db'",
        "INSERT INTO t VALUES (3)",
        "SELECT 1; SELECT 2",
        "SET memory_limit = '1TB'",
        "PRAGMA show_tables",
        "INSTALL httpfs",
    ):
        scored = score(client, f"```sql\n{query}\n```", "SELECT 3", **fields)
        assert (scored["reward"], scored["executed"]) == (0.0, False), query
    assert not Path("/tmp/evil.db").exists()


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_every_generated_task_is_solved_by_its_query(client: TestClient, difficulty: int) -> None:
    for made in GENERATOR.generate(20, seed=9, difficulty=difficulty):
        reference = made.pop("reference_query")
        assert score(client, reference, reference, **made)["reward"] == 1.0
        assert score(client, "SELECT 'nobody'", reference, **made)["reward"] == 0.0


@pytest.mark.parametrize("name", ["train", "validation", "example"])
def test_no_constant_answers_a_shipped_task(name: str) -> None:
    databases = Databases()
    for line in (DATA / f"{name}.jsonl").read_text("utf-8").splitlines():
        task = json.loads(line)
        found = [
            databases.reference("sqlite", script, task["reference_query"], {"max_rows": 1_000, "seconds": 5.0})
            for script in task["databases"]
        ]
        assert any(each.difference(found[0], ordered=task["ordered"]) for each in found), task["question"]


def test_a_query_in_the_reasoning_is_not_an_answer(client: TestClient) -> None:
    query = "SELECT COUNT(*) FROM people"
    for text in (f"<think>{query}</think>", f"<think>{query}", f"<think>```sql\n{query}\n```</think>I do not know."):
        assert score(client, text, query)["reason"] == "no query"
    assert score(client, f"<think>SELECT 1</think>{query}", query)["reward"] == 1.0


def test_the_shipped_files_are_what_the_readme_says() -> None:
    def lines(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()]

    train = GENERATOR.generate(300, seed=0)
    assert lines("train") == train
    assert lines("validation") == GENERATOR.generate(60, seed=1, exclude=frozenset(map(GENERATOR.key, train)))
    assert lines("example") == GENERATOR.generate(5, seed=2)
