import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.openai_utils import NeMoGymResponseFunctionToolCall
from nemo_gym.server_utils import ServerClient
from resources_servers.function_calls.app import FunctionCallsConfig, FunctionCallsServer, FunctionCallsTask, check
from resources_servers.function_calls.calls import Call, assign, same
from resources_servers.function_calls.expectation import expected_call, plain_call, python_call
from resources_servers.function_calls.generate import GENERATOR

DATA = Path(__file__).parents[1] / "data"
WORLD = {
    "collections": {"notes": {"n1": {"text": "Milk", "done": False}, "n2": {"text": "Bread", "done": False}}},
    "tools": {
        "find": {"op": "list", "collection": "notes"},
        "read": {"op": "get", "collection": "notes"},
        "add": {"op": "create", "collection": "notes", "set": {"done": False}},
        "finish": {"op": "update", "collection": "notes", "set": {"done": True}},
        "remove": {"op": "delete", "collection": "notes"},
    },
}


def call(name: str, arguments: Any, call_id: str = "c") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"type": "function_call", "name": name, "arguments": text, "call_id": call_id}


def item(made: Call) -> NeMoGymResponseFunctionToolCall:
    return NeMoGymResponseFunctionToolCall.model_validate(call(made.name, made.arguments))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def response(*output: dict[str, Any], **extra: Any) -> dict[str, Any]:
    fixed = {"id": "r", "created_at": 0, "model": "m", "object": "response", "tools": []}
    return {**fixed, "parallel_tool_calls": True, "tool_choice": "auto", "output": list(output), **extra}


@pytest.fixture
def server() -> FunctionCallsServer:
    config = FunctionCallsConfig(host="127.0.0.1", port=8080, entrypoint="", name="function_calls")
    return FunctionCallsServer(config=config, server_client=ServerClient.detached())


@pytest.fixture
def client(server: FunctionCallsServer) -> TestClient:
    return TestClient(server.setup_webserver())


def row(**fields: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": "?"}, **fields}


def score(client: TestClient, *output: dict[str, Any], cut_off: bool = False, **fields: Any) -> dict[str, Any]:
    extra = {"incomplete_details": {"reason": "max_output_tokens"}} if cut_off else {}
    reply = client.post("/verify", json={**row(**fields), "response": response(*output, **extra)})
    assert reply.status_code == 200, reply.text
    return reply.json()


WEATHER = [{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}]


@pytest.mark.parametrize(
    "truth",
    [
        {"ground_truth": WEATHER},
        {"ground_truth": [{"name": "weather", "arguments": '{"city": "Oslo", "days": 3}'}]},
        {"ground_truth": [{"weather": {"city": ["Oslo", "oslo, Norway"], "days": [3], "unit": ["C", ""]}}]},
        {"ground_truth": ["weather(city='Oslo', days=3)"]},
        {"expected_call": WEATHER[0]},
    ],
    ids=["object", "text", "accepted", "python", "expected_call"],
)
def test_a_call_may_be_written_in_several_forms(client: TestClient, truth: dict[str, Any]) -> None:
    assert score(client, call("weather", {"city": "oslo", "days": 3}), **truth)["reward"] == 1.0
    wrong = score(client, call("weather", {"city": "Bergen", "days": 3}), **truth)
    assert (wrong["reward"], wrong["reasons"]) == (0.0, ["weather: city is 'Bergen'"])


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ([], "0 calls instead of 1"),
        ([call("weather", {"city": "Oslo", "days": 3})] * 2, "2 calls instead of 1"),
        ([call("news", {"city": "Oslo", "days": 3})], "weather was not called"),
        ([call("weather", {"city": "Oslo"})], "weather: argument days is missing"),
        ([call("weather", {"city": "Oslo", "days": "3"})], "weather: days is '3'"),
        ([call("weather", {"city": "Oslo", "days": True})], "weather: days is 'true'"),
        ([call("weather", {"city": "Oslo", "days": 3, "x": 1})], "weather: unexpected argument 'x'"),
        ([call("weather", "{city")], "weather: the arguments are not a JSON object"),
        ([call("weather", "[1]")], "weather: the arguments are not a JSON object"),
    ],
)
def test_a_wrong_call_gets_a_reason(client: TestClient, made: list[dict[str, Any]], reason: str) -> None:
    scored = score(client, *made, ground_truth=WEATHER)
    assert (scored["reward"], scored["reasons"]) == (0.0, [reason])


def test_a_fraction_is_no_whole_number_unless_it_is_accepted() -> None:
    tools = {"f": {"properties": {"n": {"type": "integer"}, "x": {"type": "number"}}}}
    expected = expected_call({"name": "f", "arguments": {"n": 3, "x": 3}}, tools)
    assert same(3.0, 3, exact=True)
    assert expected_call({"f": {"n": [3.0]}}, tools)._accepts("n", 3.0, [3.0])
    assert not expected._accepts("n", 3.0, [3])
    assert expected._accepts("x", 3.0, [3])


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"city": "Oslo"}, False),  # the tool requires days, although the answer lists an empty text
        ({"city": "Oslo", "days": 3}, True),
        ({"city": "Oslo", "days": 3.0}, False),
        ({"city": "Oslo", "days": 3, "code": 7}, True),  # of another type than declared, as in the reference
        ({"city": "Oslo", "days": 3, "code": 7.0}, False),
        ({"city": "Oslo", "days": 3, "share": 1}, True),
        ({"city": "Oslo", "days": 3, "share": 1.0}, True),
        ({"city": "Oslo", "days": 3, "share": True}, False),
        ({"city": "Oslo", "days": 3, "mixed": ["a", 1, True]}, True),
    ],
)
def test_alternatives_are_compared_as_the_leaderboard_does(arguments: dict[str, Any], right: bool) -> None:
    properties = {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "code": {"type": "string"},
        "share": {"type": "number"},
        "mixed": {"type": "array", "items": {"type": "string"}},
    }
    tools = {"f": {"properties": properties, "required": ["city", "days"]}}
    optional = {"code": [7, ""], "share": [1, ""], "mixed": [["a", 1, True], ""]}
    expected = expected_call({"f": {"city": ["Oslo"], "days": ["", 3], **optional}}, tools)
    assert (expected.mismatch(Call("f", arguments)) is None) is right
    assert plain_call(expected).arguments == {"city": "Oslo", "days": 3}


def test_the_items_of_a_list_have_the_declared_type_or_that_of_the_reference() -> None:
    tools = {"f": {"properties": {"sizes": {"type": "array", "items": {"type": "integer"}}}}}
    expected = expected_call({"f": {"sizes": [[1, 2]]}}, tools)
    assert expected.mismatch(Call("f", {"sizes": [1, 2]})) is None
    assert expected.mismatch(Call("f", {"sizes": [1.0, 2.0]})) is not None
    assert expected_call({"f": {"sizes": [[1.0, 2.0]]}}, tools).mismatch(Call("f", {"sizes": [1.0, 2]})) is None


def test_order_matters_only_if_the_row_says_so(client: TestClient) -> None:
    truth = [{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]
    made = [call("b", {}), call("a", {})]
    assert score(client, *made, ground_truth=truth)["reward"] == 1.0
    assert score(client, *made, ground_truth=truth, ordered=True)["reward"] == 0.0


def test_alternatives_that_overlap_are_assigned_so_that_all_fit() -> None:
    # Taking the first that fits would give the only call that satisfies the second expectation to the first.
    assert assign([[True, True], [True, False]]) == {0: 1, 1: 0}


def test_no_call_is_right_where_none_is_wanted(client: TestClient) -> None:
    assert score(client, ground_truth=[])["reward"] == 1.0
    assert score(client, call("f", {}), ground_truth=[])["reward"] == 0.0
    assert score(client, call("f", {}), check="some_call")["reward"] == 1.0
    assert score(client, check="some_call")["reward"] == 0.0


def test_the_state_counts_and_not_the_way_there(client: TestClient) -> None:
    fields = {"check": "state", "world": WORLD, "ground_truth": [{"name": "finish", "arguments": {"id": "n1"}}]}
    looked = [call("find", {}), call("read", {"id": "n2"}), call("finish", {"id": "n1"}), call("finish", {"id": "n1"})]
    assert score(client, *looked, **fields)["reward"] == 1.0
    assert score(client, call("find", {}), **fields)["reasons"] == ["notes: n1 is not as it should be"]
    assert score(client, *looked, call("remove", {"id": "n2"}), **fields)["reward"] == 0.0


def test_what_was_created_counts_by_content(client: TestClient) -> None:
    truth = [{"name": "add", "arguments": {"text": text}} for text in ("Tea", "Salt")]
    fields = {"check": "state", "world": WORLD, "ground_truth": truth}
    assert score(client, call("add", {"text": " salt"}), call("add", {"text": "Tea"}), **fields)["reward"] == 1.0
    assert score(client, call("add", {"text": "Salt"}), call("add", {"text": "Salt"}), **fields)["reward"] == 0.0


def test_tools_act_on_the_world_of_their_rollout(client: TestClient) -> None:
    other = TestClient(client.app)
    for each in (client, other):
        assert each.post("/seed_session", json=row(check="state", world=WORLD, ground_truth=[])).status_code == 200
    assert client.post("/finish", json={"id": "n1"}).json()["record"] == {"text": "Milk", "done": True}
    assert other.post("/read", json={"id": "n1"}).json()["record"]["done"] is False
    assert client.post("/find", json={"text": "milk"}).json()["found"] == 1
    assert "no record" in client.post("/read", json={"id": "n9"}).json()["error"]
    assert "no tool" in client.post("/explode", json={}).json()["error"]
    assert "not a JSON object" in client.post("/find", json=[1]).json()["error"]


def test_a_row_without_a_world_answers_its_calls(client: TestClient) -> None:
    client.post("/seed_session", json=row(ground_truth=WEATHER, tool_results={"weather": {"sky": "blue"}}))
    assert client.post("/weather", json={"city": "Oslo"}).json() == {"sky": "blue"}
    assert client.post("/news", json={}).json() == {"status": "ok"}
    assert TestClient(client.app).post("/news", json={}).json() == {"error": "the rollout has not begun"}


def test_each_turn_is_checked_by_itself(client: TestClient) -> None:
    a, b = ({"name": name, "arguments": {}} for name in "ab")
    fields = {"turns": [[user("and?")]], "ground_truth": [[a], [b]]}
    assert score(client, call("a", {}), user("and?"), call("b", {}), **fields)["reward"] == 1.0
    late = score(client, call("a", {}), call("b", {}), user("and?"), **fields)
    assert (late["reward"], late["fraction_right"]) == (0.0, 0.0)
    assert score(client, call("a", {}), **fields)["fraction_right"] == 0.5


def test_the_user_says_what_the_row_says_and_brings_tools(client: TestClient) -> None:
    tool = {"type": "function", "name": "b", "parameters": {"type": "object", "properties": {}}}
    fields = row(turns=[[user("and?")]], ground_truth=[[], []], added_tools={"1": [tool]})
    first = client.post("/next_turn", json={**fields, "response": response(call("a", {}))}).json()
    assert first == {"messages": [user("and?")], "tools": [tool], "done": False}
    said = response(call("a", {}), user("and?"), call("b", {}))
    assert client.post("/next_turn", json={**fields, "response": said}).json()["done"] is True


def test_calls_of_an_answer_that_was_cut_off_do_not_count(client: TestClient) -> None:
    made = [call("weather", {"city": "Oslo", "days": 3})]
    assert score(client, *made, ground_truth=WEATHER, cut_off=True)["reward"] == 0.0
    ran = [*made, {"type": "function_call_output", "call_id": "c", "output": "{}"}]
    assert score(client, *ran, ground_truth=WEATHER, cut_off=True)["reward"] == 1.0


@pytest.mark.parametrize(
    "fields",
    [
        {"ground_truth": [{"a": {"x": 1}}]},
        {"ground_truth": [{"a": {}, "b": {}}]},
        {"ground_truth": [7]},
        {"ground_truth": ["import os"]},
        {"ground_truth": ["f(open('x'))"]},
        {"ground_truth": ["f(1)"]},
        {"ground_truth": [{"name": "f", "arguments": "[1]"}]},
        {"ground_truth": [[], []]},
        {"check": "state", "ground_truth": []},
        {"world": {"collections": {}, "tools": {"f": {"op": "get", "collection": "x"}}}},
    ],
)
def test_a_row_that_cannot_be_checked_is_refused_before_it_costs_a_call(
    client: TestClient, fields: dict[str, Any]
) -> None:
    assert client.post("/seed_session", json=row(**fields)).status_code == 422


def test_arguments_without_a_name_get_those_of_the_tool() -> None:
    tools = {"math_sort": {"properties": {"file": {"type": "string"}, "limits": {"type": "array"}}}}
    found = python_call("math.sort('a.txt', (1, 2))", tools)
    assert (found.name, found.arguments) == ("math_sort", {"file": "a.txt", "limits": [1, 2]})


@pytest.mark.parametrize(
    "arguments",
    [
        '{"city": "' + "a" * 80_000 + '"}',
        "[" * 80_000,
        '{"a":' * 20_000,
        '{"days": ' + "9" * 79_000 + "}",
        '{"city": "' + "., -" * 20_000 + '"}',
        "{" + ", ".join(f'"k{number}": 1' for number in range(7_000)) + "}",
    ],
    ids=["long", "brackets", "nested", "digits", "punctuation", "keys"],
)
@pytest.mark.parametrize("check", ["calls", "state"])
def test_hostile_arguments_get_a_score_at_once(client: TestClient, arguments: str, check: str) -> None:
    fields = {"check": check, "world": WORLD, "ground_truth": [{"name": "add", "arguments": {"text": "Tea"}}]}
    assert score(client, call("add", arguments), **fields)["reward"] == 0.0


def test_too_many_calls_get_a_score_at_once(client: TestClient) -> None:
    scored = score(client, *[call("weather", {})] * 3_000, ground_truth=WEATHER)
    assert (scored["reward"], scored["reasons"]) == (0.0, ["more than 256 calls"])


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_every_generated_task_is_solved_by_its_own_calls_and_by_nothing_less(difficulty: int) -> None:
    for made in GENERATOR.generate(60, seed=9, difficulty=difficulty):
        task = FunctionCallsTask.model_validate(made)
        calls = [[plain_call(each) for each in turn] for turn in task.expected]
        made_calls = [[item(each) for each in turn] for turn in calls]
        assert not any(check(task, made_calls))
        assert any(check(task, [[]])) is any(calls)
        names = {tool["name"] for tool in task.responses_create_params.tools}
        assert {each.name for turn in task.expected for each in turn} <= names


def test_the_shipped_files_are_what_the_readme_says() -> None:
    def lines(name: str) -> list[str]:
        return (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()

    def rows(n: int, seed: int, difficulty: int = 1, exclude: frozenset[str] = frozenset()) -> list[str]:
        made = GENERATOR.generate(n, seed=seed, difficulty=difficulty, exclude=exclude)
        return [json.dumps(each) for each in made]

    assert lines("train") == rows(360, 0)
    train = frozenset(GENERATOR.key(json.loads(line)) for line in lines("train"))
    assert lines("validation") == rows(72, 1, exclude=train)
    assert lines("multi_turn") == rows(40, 3, difficulty=3)
    assert lines("example") == rows(5, 2)
