import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.server_utils import ServerClient

pytest.importorskip("jsonschema_rs", reason="pip install -r resources_servers/structured_answers/requirements.txt")

from resources_servers.structured_answers.app import StructuredAnswersConfig, StructuredAnswersServer
from resources_servers.structured_answers.documents import DocumentError, parse, without_fence
from resources_servers.structured_answers.generate import GENERATOR, write
from resources_servers.structured_answers.schemas import compile_schema

HERE = Path(__file__).parent
DATA = HERE.parent / "data"
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
LIST = {"type": "array", "items": PERSON}


def message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": "c"}


def client(**settings: Any) -> TestClient:
    config = StructuredAnswersConfig(host="127.0.0.1", port=8080, entrypoint="", name="s", **settings)
    server = StructuredAnswersServer(config=config, server_client=ServerClient.detached())
    return TestClient(server.setup_webserver())


def verified(row: dict[str, Any], *output: dict[str, Any], **settings: Any) -> dict[str, Any]:
    fixed = {"id": "r", "created_at": 0, "model": "m", "object": "response", "tools": []}
    response = {**fixed, "parallel_tool_calls": True, "tool_choice": "auto", "output": list(output)}
    body = {"responses_create_params": {"input": "?"}, **row, "response": response}
    reply = client(**settings).post("/verify", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def score(text: str, schema: Any = PERSON, kind: str = "json", expected: Any = None, **settings: Any) -> dict[str, Any]:
    row = {"schema_str": json.dumps(schema), "schema_type": kind, "expected": expected}
    return verified(row, message(text), **settings)


@pytest.mark.parametrize(
    ("kind", "schema", "text"),
    [
        ("json", PERSON, '{"name": "Anna", "age": 34}'),
        ("yaml", PERSON, "name: Anna\nage: 34\n"),
        ("yaml", PERSON, "{name: Anna, age: 34}"),
        ("yaml", PERSON, "--- # a comment\nname: 'Anna'\nage: 0x22\n"),
        ("xml", PERSON, "<person><name>Anna</name><age> 34 </age></person>"),
        ("csv", LIST, "name,age\nAnna,34\n"),
        ("csv", PERSON, '"name","age"\r\n"Anna",34'),
        ("toml", PERSON, 'name = "Anna"\nage = 34'),
    ],
)
def test_every_format_says_the_same(kind: str, schema: Any, text: str) -> None:
    expected: Any = {"name": "Anna", "age": 34}
    scored = score(text, schema, kind, [expected] if schema is LIST else expected)
    assert (scored["reward"], scored["valid"], scored["error_message"]) == (1.0, True, None)


@pytest.mark.parametrize(
    ("kind", "text", "error_type", "message_part"),
    [
        ("json", "", "empty_response", "said nothing"),
        ("json", "Anna is 34", "parse_error", "not JSON"),
        ("json", '{"name": "Anna"}', "validation_error", '"age" is a required property'),
        ("json", '{"name": "Anna", "age": "34"}', "validation_error", "age: "),
        ("json", '{"name": "Anna", "age": 34, "x": 1}', "validation_error", "Additional properties"),
        ("json", '```json\n{"name": "Anna", "age": 34}\n```', "parse_error", "not JSON"),
        ("yaml", "name: [Anna", "parse_error", "not YAML"),
        ("yaml", "name: Anna\nname: Ben", "parse_error", "occurs twice"),
        ("yaml", "a: 1\n---\nb: 2", "parse_error", "2 documents"),
        ("json", '{"name": "Ben", "name": "Anna", "age": 34}', "parse_error", "'name' occurs twice"),
        ("json", '{"name": "Anna", "age": 34, "x": [{"a": 1, "\\u0061": 2}]}', "parse_error", "'a' occurs twice"),
        ("yaml", "name: !!python/object/apply:os.system [ls]", "parse_error", "tags are not accepted"),
        ("yaml", "name: !!str Anna\nage: 34", "parse_error", "tags are not accepted"),
        ("yaml", "name: ! Anna\nage: 34", "parse_error", "tags are not accepted"),
        ("yaml", "!!map {name: Anna, age: 34}", "parse_error", "tags are not accepted"),
        ("yaml", "name: Anna\nage: .inf", "parse_error", "infinities and NaN"),
        ("toml", "name = 'Anna'\nage = inf", "parse_error", "infinities and NaN"),
        ("yaml", "name: !run ls", "parse_error", "tags are not accepted"),
        ("xml", "<a><b></a>", "parse_error", "not XML"),
        ("csv", "name,age\nAnna", "parse_error", "row 2 has 1 cells"),
        ("csv", "name,name\nAnna,Ben", "parse_error", "occurs twice"),
        ("toml", "name = ", "parse_error", "not TOML"),
    ],
)
def test_what_is_wrong_gets_a_kind_and_a_reason(kind: str, text: str, error_type: str, message_part: str) -> None:
    scored = score(text, PERSON, kind)
    assert (scored["reward"], scored["error_type"]) == (0.0, error_type)
    assert message_part in scored["error_message"]


def test_a_code_fence_is_accepted_where_the_configuration_says_so() -> None:
    text = '```json\n{"name": "Anna", "age": 34}\n```\n'
    assert score(text, accept_code_fence=True)["reward"] == 1.0
    assert without_fence("```\na\n``` and more") == "```\na\n``` and more"


def test_reasoning_is_not_a_part_of_the_document() -> None:
    text = '{"name": "Anna", "age": 34}'
    expected = {"name": "Anna", "age": 34}
    assert score(f"<think>{{}}</think>\n{text}", expected=expected)["reward"] == 1.0
    assert score(f"{{}}</think>{text}", expected=expected)["reward"] == 1.0
    assert score(f"<think>{text}", expected=expected)["error_type"] == "empty_response"
    assert score(f"<think>{text}</think>", expected=expected)["error_type"] == "empty_response"
    assert score(f"<think></think>{text}", expected=expected, reasoning_tags=None)["error_type"] == "parse_error"


def test_a_list_must_end_where_the_expected_one_does() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array"}, "b": {"type": "integer"}}}
    for expected, answer, wrong in (
        ({"a": [1, 2], "b": 3}, {"a": [1, 2, 4, 5], "b": 3}, ["a.1"]),
        ({"a": [[1], [2]], "b": 3}, {"a": [[1, 9], [2]], "b": 3}, ["a.0.0"]),
        ({"b": 3, "a": [[1], [2]]}, {"a": [[1], [2], [3]], "b": 3}, ["a.1.0"]),
        ({"a": [{"x": 1, "y": 2}], "b": 3}, {"a": [{"x": 1, "y": 2}, {}], "b": 3}, ["a.0.y"]),
        ({"a": [], "b": 3}, {"a": [1], "b": 3}, ["a"]),
        ({"a": [1, 2], "b": 3}, {"a": [1, 2], "b": 3}, []),
    ):
        assert score(json.dumps(answer), schema, expected=expected)["wrong_fields"] == wrong
    assert score("[1, 2, 3]", {"type": "array"}, expected=[1, 2])["wrong_fields"] == ["1"]


def test_fields_are_graded_one_by_one() -> None:
    expected = {"name": "Anna", "age": 34}
    scored = score('{"name": "Anna", "age": 35}', expected=expected, grading="fraction")
    assert (scored["reward"], scored["accuracy"], scored["wrong_fields"]) == (0.5, 0.0, ["age"])
    assert score('{"name": "Anna", "age": 35}', expected=expected)["reward"] == 0.0


def test_a_schema_is_strict_unless_something_says_otherwise() -> None:
    row = {"schema_str": json.dumps(PERSON), "strict_schema": False}
    assert verified(row, message('{"name": "Anna"}'))["reward"] == 1.0
    assert score('{"name": "Anna"}', strict_schema=False)["reward"] == 1.0
    assert score('{"name": "Anna"}')["reward"] == 0.0


def test_xml_lists_and_types_follow_the_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"type": "integer"}},
            "owner": {"$ref": "#/$defs/owner"},
            "note": {"type": "string"},
            "ok": {"type": "boolean"},
            "none": {"type": ["null", "number"]},
        },
        "$defs": {"owner": {"type": "object", "properties": {"@id": {"type": "integer"}}}},
    }
    text = '<r><tags><tag>1</tag></tags><owner id="7"/><note/><ok>True</ok><none>1.5</none></r>'
    expected = {"tags": [1], "owner": {"@id": 7}, "note": "", "ok": True, "none": 1.5}
    assert score(text, schema, "xml", expected)["reward"] == 1.0


@pytest.mark.parametrize(
    ("output", "error_type"),
    [
        ([message("hi")], "missing_tool_call"),
        ([call("save", "{}"), call("save", "{}")], "multiple_tool_calls"),
        ([call("other", "{}")], "wrong_tool_name"),
        ([call("save", "{")], "tool_arguments_parse_error"),
        ([call("save", '{"data": 1}')], "missing_tool_payload_key"),
        ([call("save", '{"record": {"name": "Anna"}}')], "validation_error"),
        ([call("save", '{"record": {"name": "Anna", "age": 34}}')], None),
    ],
)
def test_an_answer_may_be_a_tool_call(output: list[dict[str, Any]], error_type: str | None) -> None:
    row = {"schema_str": json.dumps(PERSON), "response_mode": "tool_call"}
    scored = verified({**row, "tool_name": "save", "tool_payload_key": "record"}, *output)
    assert (scored["error_type"], scored["reward"]) == (error_type, float(error_type is None))


@pytest.mark.parametrize("schema", ["{", '{"type": "nonsense"}', '{"$ref": "http://127.0.0.1:9/schema.json"}'])
def test_a_row_without_a_usable_schema_is_refused_before_it_costs_a_call(schema: str) -> None:
    assert client().post("/seed_session", json={"schema_str": schema}).status_code == 422


BOMBS = {
    "json brackets": ("json", "[" * 80_000),
    "json nested": ("json", '{"a":' * 20_000 + "1" + "}" * 20_000),
    "json nested less": ("json", "[" * 900 + "]" * 900),
    "json digits": ("json", "9" * 80_000),
    "json long": ("json", '"' + "a" * 5_000_000 + '"'),
    "yaml aliases": ("yaml", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]"),
    "yaml brackets": ("yaml", "[" * 80_000),
    "yaml dashes": ("yaml", "- " * 40_000),
    "yaml questions": ("yaml", "? " * 40_000),
    "yaml items": ("yaml", "- 1\n" * 20_000),
    "yaml digits": ("yaml", "9" * 80_000),
    "yaml base sixty": ("yaml", ":".join(["1"] * 40)),
    "yaml indentation": ("yaml", "".join(" " * depth + "a:\n" for depth in range(390))),
    "xml nested": ("xml", "<a>" * 26_000),
    "xml entities": ("xml", '<!DOCTYPE a [<!ENTITY b "x"><!ENTITY c "&b;&b;&b;">]><a>&c;</a>'),
    "xml external": ("xml", '<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>'),
    "xml attributes": ("xml", "<a " + " ".join(f'x{number}="1"' for number in range(7_000)) + "/>"),
    "csv commas": ("csv", "," * 80_000),
    "csv quotes": ("csv", '"' * 79_999),
    "csv lines": ("csv", "a\n" * 40_000),
    "toml brackets": ("toml", "a = " + "[" * 3_900),
    "toml dots": ("toml", "a" + ".a" * 1_900 + " = 1"),
    "toml quoted dots": ("toml", '"="' + ".a" * 1_900 + " = 1"),
    "toml long": ("toml", "a = 1\n" * 10_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_hostile_documents_get_a_score_and_a_reason(name: str) -> None:
    kind, text = BOMBS[name]
    scored = score(text, {"type": "object", "properties": {"a": {"type": "integer"}}}, kind)
    assert (scored["reward"], scored["valid"]) == (0.0, False)
    assert 0 < len(scored["error_message"]) <= 400


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(?:a?){30}a{30}$"])
def test_patterns_that_explode_elsewhere_do_not_here(pattern: str) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}}
    assert score(json.dumps({"x": "a" * 60_000 + "!"}), schema)["error_type"] == "validation_error"


@pytest.mark.parametrize("text", ["1.5e3", "true", "~", "0o17", "1_000", "2001-01-01", "yes", "'1'", "x: y"])
def test_yaml_values_are_those_of_a_safe_loader(text: str) -> None:
    import yaml

    value = yaml.safe_load(text)
    assert parse(text, "yaml") == (str(value) if text == "2001-01-01" else value)


SUITE = json.loads((HERE / "json_schema_draft4.json").read_text("utf-8"))


@pytest.mark.parametrize("keyword", SUITE)
def test_the_json_schema_test_suite_agrees(keyword: str) -> None:
    """The required cases of draft 4, as published (see the licence beside the file)."""
    for group in SUITE[keyword]:
        schema = {"$schema": "http://json-schema.org/draft-04/schema#", **group["schema"]}
        if "$ref" in group["schema"] and str(group["schema"]["$ref"]).startswith("http"):
            continue  # refers to a schema on the network, which is refused
        compiled = compile_schema(json.dumps(schema), strict=False)
        for case in group["tests"]:
            assert (compiled.error(case["data"]) is None) is case["valid"], (group["description"], case["description"])


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_every_generated_task_is_solved_by_its_own_answer(difficulty: int) -> None:
    for row in GENERATOR.generate(30, seed=9, difficulty=difficulty):
        values = row["expected"][0] if row["schema_type"] == "csv" else row["expected"]
        assert verified(row, message(write(values, row["schema_type"])))["reward"] == 1.0
        wrong = {**values, next(iter(values)): 99 if difficulty == 3 else "Nobody"}
        scored = verified(row, message(write(wrong, row["schema_type"])))
        assert (scored["reward"], scored["valid"]) == (0.0, True)


def test_the_shipped_files_are_what_the_readme_says() -> None:
    def lines(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()]

    train = GENERATOR.generate(300, seed=0, difficulty=2)
    assert lines("train") == train
    seen = frozenset(map(GENERATOR.key, train))
    assert lines("validation") == GENERATOR.generate(60, seed=1, difficulty=2, exclude=seen)
    assert lines("example") == GENERATOR.generate(5, seed=2)


def test_an_unknown_document_is_no_document() -> None:
    with pytest.raises(DocumentError):
        parse("", "xml")
