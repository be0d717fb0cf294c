"""The viewer's API over real HTTP: what each address answers, and what it refuses."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from nemo_gym.metrics.builder import MetricsBuilder
from nemo_gym.metrics.compare import ComparedRun, compare_runs, read_contents
from nemo_gym.view.app import ListenAddress, serving
from nemo_gym.view.library import Library


@dataclass
class Answer:
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """Somebody who looks at a viewer."""

    address: ListenAddress
    session: aiohttp.ClientSession
    library: Library

    async def get(self, path: str, headers: dict[str, str] | None = None, **query: Any) -> Answer:
        url = f"http://127.0.0.1:{self.address.port}{path}"
        async with self.session.get(url, params=query, headers=headers, allow_redirects=False) as reply:
            return Answer(reply.status, reply.headers, await reply.read())

    async def raw(self, target: str) -> bytes:
        """The bytes of an answer to a target that no client library would send as it is."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.address.port)
        writer.write(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    async def api(self, path: str, **query: Any) -> Any:
        answer = await self.get(f"/api/{path}", **query)
        assert answer.status == 200, answer.body
        return answer.json


Serve = Callable[..., Awaitable[Client]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()))

        async def start(library: Library, host: str = "127.0.0.1") -> Client:
            return Client(await stack.enter_async_context(serving(library, host, 0)), session, library)

        yield start


@pytest.fixture
async def client(write, record, failure, library, serve) -> Client:
    """Two tasks with three rollouts each, one failure, and a plan of eight."""
    done = [record(task, number, float(number > task), tag=f"t{number}") for task in (0, 1) for number in range(3)]
    write("run.jsonl", done)
    write("run_failures.jsonl", [failure(0, 3), failure(1, 0, "model_error")])
    path = write("run_materialized_inputs.jsonl", [record(task, number) for task in (0, 1) for number in range(4)])
    return await serve(library(path.with_name("run.jsonl")))


async def test_times_are_told_of_a_run_and_of_a_rollout(write, record, steps, library, serve):
    path = write("run.jsonl", [record(task, 0) for task in range(3)])
    write("run_steps.jsonl", [steps(task, 0, at=task) for task in range(3)])
    client = await serve(library(path))
    assert (await client.api("state"))["files"][0]["attempts"] == 3
    assert (await client.api("timing"))["attempts"] == 3
    assert (await client.api("timing", filter="task == 1"))["attempts"] == 1
    assert len((await client.api("rollout/0.1"))["timing"]["steps"]) == 5
    write("run_steps.jsonl", [steps(0, 0, outcome="timeout")], append=True)
    client.library.index_all()
    assert (await client.api("timing"))["attempts"] == 4
    assert (await client.get("/api/timing", run=7)).status == 400


def ids(answer: Any) -> list[str]:
    return [row["id"] for row in answer["rows"]]


async def test_the_state_tells_what_there_is(client):
    state = await client.api("state")
    (file,) = state["files"]
    assert state["title"] == file["name"] == "run.jsonl"
    assert (file["id"], file["rollouts"], file["failures"], file["planned"], file["unreadable"]) == (0, 6, 2, 8, 0)
    assert file["indexed_bytes"] == file["bytes"] > 0


async def test_a_state_that_is_known_is_not_sent_again(client):
    first = await client.get("/api/state")
    again = await client.get("/api/state", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")


async def test_columns_say_what_can_be_filtered_by(client):
    columns = {column["name"]: column for column in (await client.api("columns"))["columns"]}
    assert columns["reward"] | {"known": 0} == {
        "name": "reward", "kind": "number", "boolean": False, "min": 0.0, "max": 1.0,
        "distinct": [0.0, 1.0], "known": 0,
    }  # fmt: skip
    assert columns["tag"]["distinct"] == ["t0", "t1", "t2"]
    assert columns["failure"]["distinct"] == ["model_error", "timeout"]
    assert columns["file"]["distinct"] == ["run.jsonl"]
    assert {"task", "rollout", "agent", "tokens", "turns", "tool_calls", "duration", "bytes"} <= columns.keys()
    assert columns["question"]["kind"] == columns["answer"]["kind"] == "text"


async def test_rollouts_come_in_the_order_of_the_file_with_what_a_list_needs(client):
    answer = await client.api("rollouts")
    assert (answer["total"], answer["offset"]) == (8, 0)
    assert ids(answer) == [*(f"0.{row}" for row in range(6)), "0.f0", "0.f1"]
    assert answer["rows"][0] == {
        "id": "0.0",
        "values": {
            "task": 0, "rollout": 0, "agent": "math", "failure": None, "reward": 0.0,
            "question": "Question 0?", "answer": "Answer 0.",
        },
    }  # fmt: skip
    assert answer["rows"][6]["values"]["failure"] == "timeout"
    assert answer["rows"][6]["values"]["answer"] == "timeout after 3 s"


async def test_rollouts_are_filtered_sorted_cut_and_shown_with_columns(client):
    answer = await client.api(
        "rollouts", filter="reward > 0", sort="-task,rollout", offset=1, limit=1, columns="tag,file"
    )
    assert (answer["total"], ids(answer)) == (3, ["0.1"])
    assert (answer["rows"][0]["values"]["tag"], answer["rows"][0]["values"]["file"]) == ("t1", "run.jsonl")
    assert "bytes" in (await client.api("rollouts", columns="*"))["rows"][0]["values"]


def can_parse(depth: int) -> bool:
    try:
        json.loads("[" * depth + "]" * depth)
    except RecursionError:
        return False
    return True


async def test_rollouts_nested_without_end_are_shown_and_compared(write, record, library, serve):
    rows = [record(0, number) for number in range(3)]
    for number, row in enumerate(rows[:2]):
        deep: object = number
        for _ in range(900):
            deep = {"in": deep}
        row["response"]["output"][1]["output"] = deep
    text = json.dumps(rows[2] | {"score": float("nan")}).encode()
    path = write("a.jsonl", rows[:2])
    with path.open("ab") as file:
        # From one Python to the next, its parser goes deeper; functions of Python's own never go that deep.
        depth = next(depth for depth in (5000, 1200, 600) if can_parse(depth))
        file.write(text.replace(b'"found 2"', b"[" * depth + b"]" * depth) + b"\n")
    client = await serve(library(path))
    assert (await client.api("rollouts"))["total"] == 3
    assert (await client.get("/api/rollout/0.0")).status == 200
    assert "nested too deeply" in (await client.api("rollout/0.2"))["record"]["error_message"]
    assert (await client.api("compare", a="0.0", b="0.1"))["first_difference"] == {"prompt": None, "item": 1}


async def test_a_field_of_the_record_may_be_called_id(write, record, library, serve):
    client = await serve(library(write("a.jsonl", [record(id="dataset-7", snippet=3)])))
    [row] = (await client.api("rollouts", columns="*"))["rows"]
    assert (row["id"], row["values"]["id"], row["values"]["snippet"]) == ("0.0", "dataset-7", 3)


async def test_search_finds_prompts_answers_and_tool_output(client):
    assert (await client.api("rollouts", search="zebra"))["total"] == 6
    assert ids(await client.api("rollouts", search='"found 1002"')) == ["0.5"]
    assert ids(await client.api("rollouts", search="foun 1002")) == ["0.5"]
    assert (await client.api("rollouts", search='"answer found"'))["total"] == 0
    found = await client.api("rollouts", search="answ 1001", filter="task == 1")
    assert "Answer 1." in found["rows"][0]["snippet"]
    assert ids(await client.api("rollouts", search="model_error")) == ["0.f1"]
    assert (await client.api("rollouts", search='"'))["total"] == 8


async def test_groups_have_the_repeats_of_a_task_side_by_side(client):
    answer = await client.api("groups", by="task", sort="-mean")
    assert answer["total"] == 2
    first = answer["groups"][0]
    assert (first["key"], first["file"], first["question"]) == (0, None, "Question 0?")
    assert (first["count"], first["failed"], first["mean"], first["min"], first["max"]) == (4, 1, 2 / 3, 0.0, 1.0)
    assert first["solve_rate"] == 2 / 3
    assert [each["id"] for each in first["rollouts"]] == ["0.0", "0.1", "0.2", "0.f0"]
    assert [each["failure"] for each in first["rollouts"]] == [None, None, None, "timeout"]
    assert (await client.api("rollouts", filter="task == 0"))["total"] == 4


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("agent", ["math"]),
        ("tokens", [None, 15, 16]),
        ("failure", [None, "model_error", "timeout"]),
        ("file", ["run.jsonl"]),
    ],
)
async def test_groups_of_other_kinds(client, by, keys):
    answer = await client.api("groups", by=by)
    assert [group["key"] for group in answer["groups"]] == keys
    for group in answer["groups"]:
        shown = f"{by} == {json.dumps(group['key'])}"
        assert (await client.api("rollouts", filter=shown))["total"] == group["count"]


async def test_groups_are_cut_sorted_and_filtered(client):
    answer = await client.api("groups", sort="-key", limit=1, filter="failure is null")
    assert (answer["total"], answer["groups"][0]["key"], answer["groups"][0]["failed"]) == (2, 1, 0)
    assert (await client.api("groups", filter="task > 99"))["groups"] == []
    assert (await client.get("/api/groups", by="colour")).status == 400
    assert (await client.get("/api/groups", sort="colour")).status == 400


async def test_a_rollout_comes_as_saved_with_its_neighbours(client):
    answer = await client.api("rollout/0.1")
    assert (answer["id"], answer["file"], answer["line"]) == ("0.1", "run.jsonl", 2)
    assert answer["record"]["_ng_rollout_index"] == 1
    assert (answer["previous"], answer["next"]) == ("0.0", "0.2")
    assert (answer["previous_failure"], answer["next_failure"]) == ("0.0", "0.3")
    assert [each["id"] for each in answer["group"]] == ["0.0", "0.1", "0.2", "0.f0"]
    assert answer["continuity"] is None
    raw = await client.get("/api/rollout/0.1/raw")
    assert raw.json == answer["record"]
    assert raw.headers["Content-Type"] == "application/json"


async def test_neighbours_follow_filter_and_sort(client):
    answer = await client.api("rollout/0.1", filter="reward == 1", sort="-task")
    assert (answer["previous"], answer["next"]) == ("0.5", "0.2")
    outside = await client.api("rollout/0.0", filter="reward == 1")
    assert (outside["previous"], outside["next"], outside["id"]) == (None, None, "0.0")


async def test_a_failure_is_shown_as_well(client):
    answer = await client.api("rollout/0.f1")
    assert answer["record"]["_ng_failure_class"] == "model_error"
    assert answer["file"] == "run.jsonl"
    assert (await client.api("overview"))["failed"] == {"timeout": 1}


@pytest.mark.parametrize(
    "name", ["0.99", "9.0", "0.f9", "x", "0", "0.-1", "0.٣", "0." + "9" * 40, "..%2f..%2fetc%2fpasswd"]
)
async def test_a_rollout_that_is_not_there(client, name):
    answer = await client.get(f"/api/rollout/{name}")
    assert answer.status == 404
    assert "error" in answer.json


async def test_the_overview_has_the_numbers_of_the_metrics(client, tmp_path):
    answer = await client.api("overview")
    assert (answer["rollouts"], answer["completed"], answer["planned"], answer["coverage"]) == (8, 6, 8, 0.75)
    assert answer["mean_reward"] == 0.5
    assert sum(answer["histogram"]["counts"]) == 6
    assert [point["k"] for point in answer["pass_at_k"]] == [1, 2, 3]
    assert answer["agents"][0]["agent"] == "math"
    assert sum(answer["solve_rates"]["counts"]) == 2
    assert answer["metrics"] is None
    filtered = await client.api("overview", filter="task == 0")
    assert (filtered["rollouts"], filtered["completed"], filtered["planned"], filtered["failed"]) == (
        4,
        3,
        None,
        {"timeout": 1},
    )


async def test_the_metrics_file_is_shown_without_its_list_of_tasks(client, tmp_path):
    entry = {"agent_ref": {"name": "math"}, "agent_metrics": {"mean/reward": 0.5}, "group_level_metrics": [1, 2]}
    (tmp_path / "run_aggregate_metrics.json").write_text(json.dumps([entry]))
    assert (await client.api("overview"))["metrics"] == [
        {"agent_ref": {"name": "math"}, "agent_metrics": {"mean/reward": 0.5}}
    ]


async def test_a_scatter_has_the_points_that_have_both_values(client):
    answer = await client.api("scatter", x="tokens", y="reward")
    assert answer == {
        "x": [15.0] * 3 + [16.0] * 3, "y": [0.0, 1.0, 1.0, 0.0, 0.0, 1.0],
        "ids": [f"0.{row}" for row in range(6)], "sampled": False,
    }  # fmt: skip
    assert (await client.api("scatter", x="duration", y="task"))["ids"] == ["0.f0", "0.f1"]
    assert (await client.get("/api/scatter", x="nonsense")).status == 400


async def test_two_rollouts_are_compared_up_to_their_first_difference(client):
    answer = await client.api("compare", a="0.0", b="0.1")
    assert (answer["a"]["id"], answer["b"]["id"], answer["first_difference"]) == (
        "0.0",
        "0.1",
        {"prompt": None, "item": 1},
    )
    assert (await client.api("compare", a="0.0", b="0.0"))["first_difference"] == {"prompt": None, "item": None}
    assert (await client.get("/api/compare", a="0.0")).status == 404


async def test_two_runs_are_compared_by_task(write, record, library, serve):
    runs = [[record(task, n, float((task + n) % rest == 0)) for task in range(4) for n in range(2)] for rest in (2, 3)]
    paths = [write(f"{name}.jsonl", run) for name, run in zip("ab", runs, strict=True)]
    client = await serve(library(*paths))
    answer = await client.api("compare_runs", a=0, b=1, sort="-change", limit=2)
    tables = []
    for path in paths:
        builder = MetricsBuilder()
        builder.add_file(path)
        tables.append(ComparedRun(builder.table(), read_contents(path)))
    expected = compare_runs(*tables)
    assert answer["paired_by"] == expected.paired_by == "content"
    assert (answer["difference"], answer["interval"]) == (expected.difference, list(expected.interval or ()))
    assert (answer["total"], answer["better"] + answer["worse"] + answer["same"], len(answer["tasks"])) == (4, 4, 2)
    changes = [task["change"] for task in answer["tasks"]]
    assert changes == sorted(changes, reverse=True)
    assert answer["tasks"][0]["a"][0].startswith("0.")
    assert answer["tasks"][0]["b"][0].startswith("1.")
    assert (await client.get("/api/compare_runs", a=0, b=7)).status == 400
    # The same keys in two files: runs over the same tasks, which are kept apart.
    groups = await client.api("groups", sort="key")
    assert groups["total"] == 8
    assert (await client.api("rollouts", filter='task == 0 and file == "b.jsonl"'))["total"] == 2


async def test_a_filter_that_does_not_parse_says_where(client):
    answer = await client.get("/api/rollouts", filter="reward <")
    assert answer.status == 400
    assert answer.json == {
        "error": "filter: expected a column or a value, found the end (character 9)",
        "hint": 'a value is a column, a number, "text", true, false or null',
        "position": 8,
    }
    assert (await client.get("/api/overview", filter="rewrad < 1")).json["hint"] == "Did you mean: 'reward'?"


@pytest.mark.parametrize(
    "query", [{"sort": "nonsense"}, {"columns": "nonsense"}, {"offset": "x"}, {"limit": "1e3"}, {"offset": "9" * 30}]
)
async def test_other_mistakes_are_explained(client, query):
    answer = await client.get("/api/rollouts", **query)
    assert answer.status == 400
    assert answer.json["hint"]


async def test_any_search_is_answered(client):
    for search in ('"', "'", "a* OR b", "NEAR(", "^x", "col:x", "-", "é", "\x00", "AND", "(" * 50, "a " * 500):
        assert (await client.get("/api/rollouts", search=search)).status == 200


async def test_a_page_beyond_the_end_is_empty(client):
    answer = await client.api("rollouts", offset=1_000_000, limit=10)
    assert (answer["total"], answer["rows"]) == (8, [])


async def test_a_growing_file_is_followed_and_ids_stay(write, record, library, serve):
    path = write("run.jsonl", [record(0, 0)])
    found = library(path)
    client = await serve(found)
    with found.following(0.01):
        before = await client.api("state")
        write("run.jsonl", [record(0, 1, question="brand new")], append=True)
        for _ in range(500):
            state = await client.api("state")
            if state["files"][0]["searchable"] == 2:
                break
            await asyncio.sleep(0.01)
        assert state["version"] > before["version"]
        assert ids(await client.api("rollouts", search="brand")) == ["0.1"]
        assert (await client.api("rollout/0.0"))["record"]["_ng_rollout_index"] == 0
        write("run.jsonl", [record(9, 9)])
        for _ in range(500):
            if (await client.api("rollouts"))["rows"][0]["values"]["task"] == 9:
                break
            await asyncio.sleep(0.01)
        assert (await client.api("rollouts"))["total"] == 1


async def test_old_rows_with_chat_messages_at_the_top_are_shown(write, library, serve):
    messages = [{"role": "user", "content": "Old question"}, {"role": "assistant", "content": "Old answer"}]
    client = await serve(library(write("old.jsonl", [{"reward": 1.0, "output": messages}] * 2)))
    answer = await client.api("rollouts", search="old")
    assert answer["total"] == 2
    shown = answer["rows"][1]["values"]
    assert (shown["question"], shown["answer"]) == ("Old question", "Old answer")
    assert (await client.api("groups"))["groups"][0]["count"] == 2
    assert (await client.api("overview"))["completed"] == 2


async def test_numbers_that_json_does_not_know_become_null(write, record, library, serve):
    path = write("a.jsonl", [record(0, 0, float("nan"), huge=float("inf"))])
    client = await serve(library(path))
    assert (await client.api("rollouts", columns="huge"))["rows"][0]["values"]["huge"] is None
    assert (await client.api("rollout/0.0"))["record"]["huge"] is None
    assert (await client.api("overview"))["mean_reward"] is None
    assert (await client.api("scatter", x="huge", y="reward"))["ids"] == []


async def test_breaks_in_the_tokens_are_marked(write, record, library, serve):
    calls = [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6]), ([1, 9, 9, 9, 5, 6], [7])]
    items = [
        {"type": "message", "role": "assistant", "content": [], "prompt_token_ids": p, "generation_token_ids": g}
        for p, g in calls
    ]
    client = await serve(library(write("a.jsonl", [record() | {"response": {"output": items}}])))
    found = (await client.api("rollout/0.0"))["continuity"]
    assert found["ok"] is False
    assert [(each["item"], each["token"]) for each in found["breaks"]] == [(2, 1)]


# ---- who may ask -----------------------------------------------------------------------------------------------------


async def test_every_answer_carries_the_headers_that_keep_a_page_in_its_place(client):
    for path in ("/api/state", "/api/rollout/9.9", "/nonsense", "/"):
        headers = (await client.get(path)).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert (await client.get("/api/state")).headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:7860", "", "192.168.0.1"])
async def test_a_stranger_s_name_for_this_machine_is_refused(client, host):
    answer = await client.get("/api/state", headers={"Host": host})
    assert answer.status == 421
    assert answer.json["hint"]


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1", "LOCALHOST", "[::1]:80"])
async def test_our_own_names_are_accepted_on_any_forwarded_port(client, host):
    assert (await client.get("/api/state", headers={"Host": host})).status == 200


async def test_only_reading_is_possible(client):
    url = f"http://127.0.0.1:{client.address.port}/api/state"
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        async with client.session.request(method, url) as reply:
            assert reply.status == 405


@pytest.mark.parametrize(
    "path", ["/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "/static/../../app.py", "/etc/passwd"]
)
async def test_no_other_file_can_be_read(client, path):
    url = f"http://127.0.0.1:{client.address.port}{path}"
    async with client.session.get(aiohttp.client.URL(url, encoded=True)) as reply:
        assert reply.status == 404


async def test_beyond_this_machine_a_token_is_needed(write, record, library, serve):
    client = await serve(library(write("a.jsonl", [record()])), host="0.0.0.0")
    assert client.address.token
    assert client.address.url.endswith(f"?token={client.address.token}")
    assert (await client.get("/api/state")).status == 401
    assert (await client.get("/api/state", token="wrong")).status == 401
    assert (
        await client.get("/api/state", headers={"Cookie": f"rollout_gym_viewer_{client.address.port}=wrong"})
    ).status == 401
    welcome = await client.get("/", token=client.address.token, view="table")
    assert (welcome.status, welcome.headers["Location"]) == (303, "/?view=table")
    cookie = welcome.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie  # strict would be lost on the redirect of a link from elsewhere
    assert (await client.get("/api/state", headers={"Cookie": cookie.partition(";")[0]})).status == 200
    stranger = {"Cookie": cookie.partition(";")[0], "Host": "evil.example"}
    assert (await client.get("/api/state", headers=stranger)).status == 421
    by_address = {"Cookie": cookie.partition(";")[0], "Host": "10.1.2.3:80"}
    assert (await client.get("/api/state", headers=by_address)).status == 200


async def test_a_token_never_leads_to_another_host(write, record, library, serve):
    client = await serve(library(write("a.jsonl", [record()])), host="0.0.0.0")
    for path in ("//evil.example/", "//evil.example/..", "/\\\\evil.example/", "///evil.example"):
        answer = await client.raw(f"{path}?token={client.address.token}")
        assert answer.startswith(b"HTTP/1.1 303"), path
        location = re.search(rb"(?im)^location: (.*?)\r$", answer)
        assert location is not None
        assert re.match(rb"/(?![/\\\\])", location[1]), (path, location[1])


async def test_a_person_without_the_token_gets_a_page(write, record, library, serve):
    client = await serve(library(write("a.jsonl", [record()])), host="0.0.0.0")
    answer = await client.get("/", headers={"Accept": "text/html,*/*"})
    assert (answer.status, answer.headers["Content-Type"]) == (401, "text/html; charset=utf-8")
    assert b"Open the whole address that it printed" in answer.body
    assert (await client.get("/api/state")).json["error"] == "This viewer needs its token."


async def test_an_audit_is_a_page_and_a_column_to_filter_by(client: Client) -> None:
    assert (await client.api("audit"))["runs"][0]["audited"] is False
    path = client.library.runs[0].path
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[-1].replace('"_ng_rollout_index":2', '"_ng_rollout_index":7')]) + "\n")
    sidecar = path.with_name("run_audit.jsonl")
    found = {"line": 2, "rule": "fetched", "message": "gets", "quote": "curl x", "reward": 1.0, "task": 0, "rollout": 1}
    sidecar.write_text(json.dumps(found) + "\n")
    client.library.index_all()
    [run] = (await client.api("audit"))["runs"]
    assert (run["audited"], run["found"], run["rules"], run["findings"]) == (True, 1, [["fetched", 1]], [found])
    rows = await client.api("rollouts", filter='audit contains "fetched"', columns="audit")
    assert (rows["total"], rows["rows"][0]["values"]["audit"]) == (1, "fetched")
