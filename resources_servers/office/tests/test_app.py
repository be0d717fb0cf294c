import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.server_utils import ServerClient
from resources_servers.office.app import OfficeConfig, OfficeServer
from resources_servers.office.errands import ERRANDS
from resources_servers.office.generate import GENERATOR
from resources_servers.office.random_office import draw_scene
from resources_servers.office.toolkit import TOOLS, call_tool
from resources_servers.office.world import Office, OfficeCall, difference, replay

DATA = Path(__file__).parents[1] / "data"
DIFFICULTIES = [1, 2, 3]


def rows(difficulty: int, count: int = 36) -> list[dict[str, Any]]:
    return GENERATOR.generate(count, seed=77, difficulty=difficulty)


@pytest.fixture
def client() -> TestClient:
    config = OfficeConfig(host="127.0.0.1", port=8080, entrypoint="", name="office")
    return TestClient(OfficeServer(config=config, server_client=ServerClient.detached()).setup_webserver())


def verify(client: TestClient, row: dict[str, Any], calls: list[dict[str, Any]], *, ran: bool = True) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    for number, call in enumerate(calls):
        text = call["arguments"] if isinstance(call["arguments"], str) else json.dumps(call["arguments"])
        made = {"type": "function_call", "name": call["name"], "arguments": text, "call_id": f"c{number}"}
        answer = {"type": "function_call_output", "call_id": f"c{number}", "output": "{}"}
        output += [made, answer] if ran else [made]
    fixed = {"id": "r", "created_at": 0, "model": "m", "object": "response", "tools": []}
    response = {**fixed, "parallel_tool_calls": True, "tool_choice": "auto", "output": output}
    reply = client.post("/verify", json={**row, "response": response})
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_every_task_is_solved_by_its_script_through_the_tools(client: TestClient, difficulty: int) -> None:
    for row in rows(difficulty, 12):
        assert client.post("/seed_session", json=row).status_code == 200
        for call in row["ground_truth"]:
            answer = client.post(f"/{call['name']}", json=call["arguments"]).json()
            assert "error" not in answer, (row["question"], answer)
        scored = verify(client, row, row["ground_truth"])
        assert (scored["reward"], scored["changed"], scored["reason"]) == (1.0, True, None), row["question"]


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_doing_nothing_or_half_of_it_or_too_much_is_worth_nothing(client: TestClient, difficulty: int) -> None:
    for row in rows(difficulty, 12):
        done = row["ground_truth"]
        assert verify(client, row, [])["reward"] == 0.0
        assert verify(client, row, done[:-1])["reward"] == 0.0
        assert verify(client, row, done, ran=False)["reward"] == 0.0
        extra = {"name": "email_send", "arguments": {"to": "x@y.example", "subject": "Hi", "body": "Hi"}}
        assert verify(client, row, [*done, extra])["reward"] == 0.0


def random_calls(rng: Random, row: dict[str, Any], count: int) -> list[OfficeCall]:
    """Valid calls with things that are there, as somebody makes them who does not read."""
    office = row["office"]
    choices: dict[str, list[Any]] = {
        "id": [record["id"] for record in office["mail"] + office["calendar"]],
        "email": [contact["email"] for contact in office["contacts"]],
        "path": [file["path"] for file in office["files"]],
        "date": [event["date"] for event in office["calendar"]],
        "start": ["09:00", "13:00"],
        "minutes": [30, 60],
        "folder": ["inbox", "archive", "reports"],
        "team": ["sales", "design"],
        "phone": ["555-0000"],
    }
    choices |= {"to": choices["email"], "attendee": choices["email"], "sender": choices["email"]}
    choices |= {"attendees": [[email] for email in choices["email"]], "new_path": ["old/a.txt", "old/b.txt"]}
    words = row["question"].split()
    calls = []
    for _ in range(count):
        name = rng.choice(list(TOOLS))
        keys = TOOLS[name].parameters["properties"]
        calls.append(OfficeCall(name, {key: rng.choice(choices.get(key, words)) for key in keys}))
    return calls


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_a_random_agent_solves_nothing(difficulty: int) -> None:
    rng = Random(5)
    changed = 0
    for row in rows(difficulty):
        office = Office.model_validate(row["office"])
        wanted = replay(office, [OfficeCall(call["name"], call["arguments"]) for call in row["ground_truth"]])
        for _ in range(5):
            state = replay(office, random_calls(rng, row, rng.randint(1, 12)))
            assert difference(state, wanted), row["question"]
            changed += difference(state, office.start()) is not None
    assert changed > 50


def test_there_are_25_tools_and_every_row_declares_them() -> None:
    assert len(TOOLS) == 25
    for row in rows(1, 3):
        assert [tool["name"] for tool in row["responses_create_params"]["tools"]] == list(TOOLS)


def test_every_errand_occurs_and_names_somebody_who_can_be_mistaken() -> None:
    made = rows(1)
    assert {row["category"] for row in made} == {errand.__name__ for errand in ERRANDS}
    for row in made:
        firsts = [contact["name"].split()[0] for contact in row["office"]["contacts"]]
        assert len(set(firsts)) < len(firsts)


OFFICE = Office.model_validate(draw_scene(Random(1)).state)
BEN = {"name": "Ben New", "email": "ben@new.example", "phone": "1", "team": "sales"}


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("email_read", {"id": "m99"}, "there is no id 'm99'"),
        ("email_send", {"to": "Ben", "subject": "x", "body": "y"}, "not an address"),
        ("email_send", {"to": "a@b.example", "subject": "x"}, "body: Field required"),
        ("email_delete", {"id": 7}, "id: Input should be a valid string"),
        ("email_delete", {"id": "m1", "force": True}, "force: Extra inputs"),
        (
            "calendar_create",
            {"title": "x", "date": "Monday", "start": "09:00", "minutes": 5, "attendees": []},
            "date: as",
        ),
        ("calendar_reschedule", {"id": "e1", "date": "2025-01-06", "start": "9"}, "start: as HH:MM"),
        (
            "calendar_create",
            {"title": "x", "date": "2025-01-06", "start": "09:00", "minutes": 0, "attendees": []},
            "minutes",
        ),
        ("files_write", {"path": "../secret", "text": "x"}, "is not a path"),
        ("files_read", {"path": "nowhere.txt"}, "there is no path"),
        ("files_move", {"path": OFFICE.files[0].path, "new_path": OFFICE.files[1].path}, "there already"),
        ("contacts_add", {**BEN, "email": OFFICE.contacts[0].email}, "already"),
        ("contacts_update", {"email": "nobody@office.example", "phone": "1"}, "there is no email"),
        ("open_door", {}, "there is no tool 'open_door'"),
        ("email_list", [1], "not a JSON object"),
        ("email_list", None, "not a JSON object"),
        ("files_write", {"path": "a", "text": "x" * 50_000}, "limited to 20000"),
    ],
)
def test_what_cannot_be_done_is_explained_and_changes_nothing(name: str, arguments: Any, problem: str) -> None:
    state = OFFICE.start()
    assert problem in call_tool(state, name, arguments)["error"]
    assert state == OFFICE.start()


def test_every_tool_does_what_it_says() -> None:
    state = OFFICE.start()

    def run(tool: str, **arguments: Any) -> dict[str, Any]:
        answer = call_tool(state, tool, arguments)
        assert "error" not in answer, answer
        return answer

    person, file, event = OFFICE.contacts[0], OFFICE.files[0], OFFICE.calendar[0]
    sent = run("email_send", to=person.email, subject="Hi", body="You there?")["sent"]
    assert run("email_read", id=sent)["body"] == "You there?"
    assert run("email_list", folder="Sent")["count"] == 1
    assert run("email_list", folder="sent", sender=person.email)["count"] == 0
    assert run("email_search", text="you THERE")["items"][0]["id"] == sent
    assert run("email_move", id=sent, folder="Later")["folder"] == "later"
    assert run("email_delete", id=sent) == {"deleted": sent}
    replied = run("email_reply", id="m1", body="Yes")["sent"]
    assert run("email_read", id=replied)["subject"].startswith("Re: ")
    assert run("email_read", id=run("email_forward", id="m1", to=person.email)["sent"])["subject"].startswith("Fwd: ")
    made = run("calendar_create", title="T", date="2025-02-03", start="09:00", minutes=30, attendees=[person.email])
    assert run("calendar_list", date="2025-02-03")["count"] == 1
    assert run("calendar_list")["count"] == len(OFFICE.calendar) + 1
    assert run("calendar_search", text=event.title)["count"] >= 1
    assert run("calendar_reschedule", id=made["created"], date="2025-02-04", start="10:00")["start"] == "10:00"
    assert len(run("calendar_invite", id=made["created"], attendee="X@y.example")["attendees"]) == 2
    assert run("calendar_cancel", id=made["created"])
    assert run("files_list")["count"] == len(OFFICE.files)
    assert run("files_search", text=file.path)["count"] == 1
    assert run("files_write", path="/notes//new.txt", text="a") == {"written": "notes/new.txt"}
    assert run("files_write", path="notes/new.txt", text="b") == {"replaced": "notes/new.txt"}
    assert run("files_move", path="notes/new.txt", new_path="old/new.txt") == {"moved": "old/new.txt"}
    assert run("files_list", folder="old")["count"] == 1
    assert run("files_read", path="old/new.txt")["text"] == "b"
    assert run("files_delete", path="old/new.txt")
    assert run("contacts_add", **BEN) == {"added": BEN["email"]}
    assert run("contacts_search", text="ben new")["count"] == 1
    assert run("contacts_update", email=BEN["email"], phone="2")["phone"] == "2"
    assert run("contacts_get", email=BEN["email"])["team"] == "sales"
    assert run("contacts_delete", email=BEN["email"])


def test_rollouts_do_not_share_an_office(client: TestClient) -> None:
    row, other = rows(1, 1)[0], TestClient(client.app)
    for each in (client, other):
        each.post("/seed_session", json=row)
    client.post("/email_delete", json={"id": "m1"})
    assert "error" in client.post("/email_read", json={"id": "m1"}).json()
    assert other.post("/email_read", json={"id": "m1"}).json()["id"] == "m1"
    assert TestClient(client.app).post("/email_list", json={}).json() == {"error": "the rollout has not begun"}


@pytest.mark.parametrize(
    "truth",
    [
        [],
        [{"name": "email_list", "arguments": {}}],
        [{"name": "email_delete", "arguments": {"id": "m99"}}],
        [{"name": "fly", "arguments": {}}],
    ],
    ids=["nothing", "changes nothing", "fails", "no such tool"],
)
def test_a_row_without_a_working_solution_is_refused_before_it_costs_a_call(client: TestClient, truth: Any) -> None:
    row = {**rows(1, 1)[0], "ground_truth": truth}
    assert client.post("/seed_session", json=row).status_code == 422


def test_arguments_of_the_solution_may_be_json_text(client: TestClient) -> None:
    row = rows(1, 1)[0]
    truth = [{**call, "arguments": json.dumps(call["arguments"])} for call in row["ground_truth"]]
    assert verify(client, {**row, "ground_truth": truth}, row["ground_truth"])["reward"] == 1.0


@pytest.mark.parametrize(
    "arguments",
    [
        "[" * 80_000,
        '{"id": "' + "m" * 80_000 + '"}',
        '{"a":' * 15_000,
        "9" * 80_000,
        "",
        "null",
        '{"id": 1' + "0" * 79_000 + "}",
    ],
    ids=["brackets", "long", "nested", "digits", "empty", "null", "number"],
)
def test_hostile_arguments_get_a_score(client: TestClient, arguments: str) -> None:
    scored = verify(client, rows(1, 1)[0], [{"name": name, "arguments": arguments} for name in TOOLS])
    assert scored["reward"] == 0.0


def test_too_many_calls_get_a_score(client: TestClient) -> None:
    call = {"name": "email_send", "arguments": {"to": "a@b.example", "subject": "x", "body": "y" * 500}}
    scored = verify(client, rows(1, 1)[0], [call] * 2_000)
    assert (scored["reward"], scored["reason"], scored["tool_calls"]) == (0.0, "more than 200 calls", 2_000)


def test_the_shipped_files_are_what_the_readme_says() -> None:
    def lines(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()]

    train = GENERATOR.generate(60, seed=0)
    assert lines("train") == train
    assert lines("validation") == GENERATOR.generate(24, seed=1, exclude=frozenset(map(GENERATOR.key, train)))
    assert lines("example") == GENERATOR.generate(5, seed=2)
