"""Whole conversations: a scripted assistant, a user by rule or by model, and the agent between them; all are real."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import PrivateAttr

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.loader import build_app
from resources_servers.conversation.app import ConversationConfig, ConversationServer, same, submitted_in
from resources_servers.conversation.generate import DESKS, GENERATOR
from responses_api_agents.conversation_agent.app import ConversationAgent, ConversationAgentConfig

DATA = Path(__file__).parents[1] / "data"
OWN = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py"}
Item = dict[str, Any]
Rule = Callable[[list[Item]], Item]


def message(text: str) -> Item:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}


def submit(**form: Any) -> Item:
    return {"type": "function_call", "name": "submit", "arguments": json.dumps(form), "call_id": "c1"}


def response(*output: Item) -> dict[str, Any]:
    fixed = {"object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"id": "r", "created_at": 0, "model": "m", "output": list(output), **fixed}


class RuleModel(SimpleResponsesAPIModel):
    """Answers by a rule over the conversation so far."""

    _rule: Rule = PrivateAttr()
    _requests: list[list[Item]] = PrivateAttr(default_factory=list)

    async def chat_completions(self, body: Any) -> Any:
        raise NotImplementedError

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        said = body.model_dump(mode="json", exclude_unset=True)["input"]
        self._requests.append(said)
        return NeMoGymResponse.model_validate(response(self._rule(said)))


class Gym:
    """Assistant, user, environment and agent in one process, without a port."""

    def __init__(self, assistant: Rule, user: Rule | None = None, **settings: Any) -> None:
        self.client = ServerClient.detached()
        self.assistant = self._model("assistant", assistant)
        if user is not None:
            self.user = self._model("user", user)
            settings["user_model_server"] = {"type": "responses_api_models", "name": "user"}
        config = ConversationConfig(name="env", **OWN, **settings)
        self._attach("env", ConversationServer(config=config, server_client=self.client))
        references = {
            "resources_server": {"type": "resources_servers", "name": "env"},
            "model_server": {"type": "responses_api_models", "name": "assistant"},
        }
        agent = ConversationAgentConfig(name="agent", **OWN, **references, max_turns=15)
        self._attach("agent", ConversationAgent(config=agent, server_client=self.client))

    def _model(self, name: str, rule: Rule) -> RuleModel:
        model = RuleModel(config=BaseResponsesAPIModelConfig(name=name, **OWN), server_client=self.client)
        model._rule = rule
        self._attach(name, model)
        return model

    def _attach(self, name: str, server: Any) -> None:
        self.client.attach(name, LocalServer(build_app(server), label=name, base_url="http://127.0.0.1:1"))

    async def run(self, row: dict[str, Any]) -> dict[str, Any]:
        reply = await self.client.post(server_name="agent", url_path="/run", json=row)
        assert reply.ok, await reply.text()
        return await reply.json()

    async def verify(self, row: dict[str, Any], *output: Item) -> dict[str, Any]:
        body = {**row, "response": response(*output)}
        reply = await self.client.post(server_name="env", url_path="/verify", json=body)
        assert reply.ok, await reply.text()
        return await reply.json()


def right_form(row: dict[str, Any]) -> dict[str, Any]:
    return {name: fact["value"] for name, fact in row["facts"].items()}


def asks_then_submits(row: dict[str, Any]) -> Rule:
    """Asks for one detail after the other, and hands in what the user said and nothing else."""
    form = right_form(row)

    def assistant(said: list[Item]) -> Item:
        if said[-1].get("type") == "function_call_output":
            return message("It is done. Goodbye!")
        heard = " ".join(item["content"] for item in said[2:] if item.get("role") == "user")
        for fact in row["facts"].values():
            if fact["say"] not in heard:
                return message(f"Thank you. May I ask: {fact['asked_by'][0]}?")
        return submit(**form)

    return assistant


@pytest.mark.parametrize("difficulty", [1, 2, 3])
async def test_a_scripted_assistant_finds_everything_out(difficulty: int) -> None:
    for row in GENERATOR.generate(8, seed=3, difficulty=difficulty):
        gym = Gym(asks_then_submits(row))
        scored = await gym.run(row)
        assert (scored["reward"], scored["wrong_fields"]) == (1.0, []), row["category"]
        assert 2 <= scored["user_turns"] <= difficulty + 2
        assert scored["response"]["metadata"]["stopped_by"] == "user"
        hidden = [fact["say"] for fact in row["facts"].values()]
        assert not any(secret in json.dumps(gym.assistant._requests[0]) for secret in hidden)


async def test_an_assistant_that_only_chats_is_left_alone_and_gets_nothing() -> None:
    row = GENERATOR.generate(1, seed=3)[0]
    scored = await Gym(lambda _: message("Nice weather today.")).run(row)
    assert (scored["reward"], scored["submitted"], scored["user_turns"]) == (0.0, False, 12)
    assert (await Gym(lambda _: message("Goodbye!")).run(row))["user_turns"] == 1


async def test_what_is_handed_in_is_compared_field_by_field() -> None:
    row = GENERATOR.generate(1, seed=3)[0]
    form = right_form(row)
    first, second = form
    asked = message(" ".join(fact["asked_by"][0] for fact in row["facts"].values()))
    gym = Gym(asks_then_submits(row), grading="fraction")
    assert (await gym.verify(row, asked, submit(**{first: form[first], second: "?"})))["reward"] == 0.5
    assert (await gym.verify(row, asked, submit(**{first: form[first]})))["wrong_fields"] == [second]
    assert (await gym.verify(row, asked, submit(**form, extra=1)))["wrong_fields"] == ["extra (not asked for)"]
    assert (await gym.verify(row, asked, submit(**{first: "?"}), submit(**form)))["reward"] == 1.0
    assert (await gym.verify(row, asked, message(json.dumps(form))))["reward"] == 0.0


@pytest.mark.parametrize("later", [False, True])
async def test_a_lucky_guess_is_worth_nothing(later: bool) -> None:
    row = GENERATOR.generate(1, seed=3)[0]
    asked = message(" ".join(fact["asked_by"][0] for fact in row["facts"].values()))
    output = [submit(**right_form(row)), asked] if later else [submit(**right_form(row))]
    scored = await Gym(asks_then_submits(row), grading="fraction").verify(row, *output)
    assert (scored["reward"], scored["guessed_fields"]) == (0.0, list(row["facts"]))


async def test_what_the_user_tells_unasked_is_no_guess() -> None:
    row = GENERATOR.generate(1, seed=3)[0]
    told = {"role": "user", "content": " and ".join(str(value) for value in right_form(row).values())}
    scored = await Gym(asks_then_submits(row)).verify(row, told, submit(**right_form(row)))
    assert scored["reward"] == 1.0


def plays(said: list[Item]) -> Item:
    """A user that follows its instructions: it tells what it knows, and ends."""
    assert said[0]["role"] == "system"
    known = [
        line.partition(": ")[2] for line in said[0]["content"].splitlines() if line.startswith("- ") and ": " in line
    ]
    heard = said[-1]["content"]
    told = [item["content"] for item in said[1:] if item["role"] == "assistant"]
    if "done" in heard:
        return message("[[END]]")
    return message(next(fact for fact in known if fact not in told))


async def test_a_model_can_play_the_user() -> None:
    row = GENERATOR.generate(1, seed=3)[0]
    gym = Gym(asks_then_submits(row), plays)
    scored = await gym.run(row)
    assert (scored["reward"], scored["submitted"]) == (1.0, True)
    prompt = gym.user._requests[0][0]["content"]
    assert row["persona"] in prompt
    assert row["goal"] in prompt
    # Seen from the user's side, the assistant is the one who asks.
    assert [item["role"] for item in gym.user._requests[0][1:]] == ["assistant", "user"]
    assert gym.user._requests[0][1]["content"] == row["opening"]


async def test_a_model_ends_the_conversation_by_saying_so() -> None:
    row = GENERATOR.generate(1, seed=3)[0]
    scored = await Gym(lambda _: message("All done!"), plays).run(row)
    assert (scored["reward"], scored["user_turns"]) == (0.0, 1)


async def test_a_user_that_does_not_answer_is_a_failure_and_not_a_zero() -> None:
    row = GENERATOR.generate(1, seed=3)[0]
    gym = Gym(lambda _: message("Hello?"), lambda _: message(""), user_max_attempts=2)
    reply = await gym.client.post(server_name="agent", url_path="/run", json=row)
    assert reply.status == 500
    assert b"simulated user user: no answer (2 attempts)" in await reply.read()
    assert len(gym.user._requests) == 2


async def test_a_flood_reaches_neither_side() -> None:
    row = GENERATOR.generate(1, seed=3)[0]
    gym = Gym(lambda _: message("name? " * 100_000), lambda _: message("Yes. " * 100_000), max_user_turns=3)
    scored = await gym.run(row)
    assert scored["reward"] == 0.0
    assert all(len(item["content"]) <= 4_000 for item in gym.user._requests[-1])
    said = [item for item in scored["response"]["output"] if item.get("role") == "user"]
    assert [len(item["content"]) <= 2_000 for item in said] == [True, True]


@pytest.mark.parametrize("arguments", ["[" * 90_000, "{", "[1]", "", '{"a": ' * 3_000, "null"])
def test_hostile_forms_are_no_forms(arguments: str) -> None:
    call = {**submit(), "arguments": arguments}
    assert submitted_in(NeMoGymResponse.model_validate(response(call))) is None


@pytest.mark.parametrize(
    ("value", "expected", "equal"),
    [
        (" anna", "Anna", True),
        ("3", 3, False),
        (3.0, 3, True),
        (True, 1, False),
        (1, True, False),
        (True, True, True),
        (None, "Anna", False),
        ([], 3, False),
    ],
)
def test_values_are_compared_as_people_would(value: Any, expected: Any, *, equal: bool) -> None:
    assert same(value, expected) is equal


async def test_a_row_without_facts_is_refused_before_it_costs_a_call() -> None:
    row = {**GENERATOR.generate(1, seed=3)[0], "facts": {}}
    reply = await Gym(lambda _: message("Hi")).client.post(server_name="env", url_path="/seed_session", json=row)
    assert reply.status == 422


def test_details_can_be_told_apart_by_the_words_that_ask_for_them() -> None:
    for desk in DESKS:
        firsts = [detail.asked_by[0] for detail in desk.details]
        for detail in desk.details:
            others = [first for first in firsts if first != detail.asked_by[0]]
            assert not any(word in first for first in others for word in detail.asked_by), (desk.category, detail.name)


def test_the_shipped_files_are_what_the_readme_says() -> None:
    def lines(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()]

    train = GENERATOR.generate(200, seed=0)
    assert lines("train") == train
    assert lines("validation") == GENERATOR.generate(40, seed=1, exclude=frozenset(map(GENERATOR.key, train)))
    assert lines("example") == GENERATOR.generate(5, seed=2)
