"""A judge's words become a score or a failure of the verifier, never a reward of 0."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Request
from pydantic import BaseModel, PrivateAttr, ValidationError
from starlette.responses import JSONResponse

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.judge import Judge, JudgeConfig, JudgeError, Verdict, call_judge, reraise_judge_errors
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.rollouts.classify import outcome_of_record, outcome_of_reply
from nemo_gym.rollouts.store.outcome import Completed, Failed, PlannedRollout
from nemo_gym.rollouts.tally import Spending
from nemo_gym.schemas.record import Usage
from nemo_gym.schemas.rows import Prices, RolloutKey
from nemo_gym.server_utils import ServerClient
from nemo_gym.servers.direct.handlers import LocalServer
from nemo_gym.servers.http.connections import close_http_client
from nemo_gym.servers.loader import build_app
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig
from responses_api_models.openai_model.app import OpenAIModel, OpenAIModelConfig


class Verdicts(BaseModel):
    verdicts: list[str]


QUESTION = {"input": [{"role": "user", "content": "?"}]}
SAME = {"labels": {"[[SAME]]": 1.0, "[[OTHER]]": 0.0}, "prompt": "Expected {expected}, got {answer}. Same?"}
RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 0,
    "model": "m",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 40},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 107,
}
Script = Callable[[str], str]


def response(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    return {**RESPONSE, "output": [item], "usage": USAGE}


class Scripted(SimpleResponsesAPIModel):
    """Answers as a script says, and keeps what it was asked."""

    script: Script
    asked: list[dict[str, Any]] = []  # noqa: RUF012 - pydantic copies it
    running: int = 0
    most: int = 0
    cut_off: bool = False
    seconds: dict[str, float] = {}  # noqa: RUF012 - pydantic copies it

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        raise NotImplementedError

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        self.running += 1
        self.most = max(self.most, self.running)
        asked = body.model_dump(exclude_unset=True)
        await asyncio.sleep(next((s for part, s in self.seconds.items() if part in str(asked)), 0.001))
        self.running -= 1
        self.asked.append(asked)
        details = (
            {"incomplete_details": {"reason": "max_output_tokens"}, "status": "incomplete"} if self.cut_off else {}
        )
        return NeMoGymResponse.model_validate(response(self.script(asked["input"][-1]["content"])) | details)


def new_client() -> ServerClient:
    return ServerClient.detached()


def attach(client: ServerClient, name: str, server: Any) -> None:
    client.attach(name, LocalServer(build_app(server), label=name, base_url="http://127.0.0.1:1"))


def settings(**fields: Any) -> JudgeConfig:
    return JudgeConfig.model_validate({"model_server": {"type": "responses_api_models", "name": "judge"}, **fields})


def judge_with(script: Script, **fields: Any) -> tuple[Judge, Scripted]:
    client = new_client()
    config = BaseResponsesAPIModelConfig(host="", port=0, entrypoint="", name="judge")
    model = Scripted(config=config, server_client=client, script=script)
    attach(client, "judge", model)
    return Judge(settings(**fields), client), model


async def test_a_verdict_has_a_label_a_score_and_the_judges_words() -> None:
    params = {"temperature": 0.0, "max_output_tokens": 50}
    judge, model = judge_with(
        lambda _: "They agree. [[SAME]]", **SAME, system="You compare {{answers}}.", responses_create_params=params
    )
    assert await judge.ask(expected=4, answer="{four}") == Verdict("[[SAME]]", 1.0, ("They agree. [[SAME]]",))
    assert model.asked == [
        {
            **params,
            "input": [
                {"role": "system", "content": "You compare {answers}."},
                {"role": "user", "content": "Expected 4, got {four}. Same?"},
            ],
        }
    ]


@pytest.mark.parametrize(
    ("fields", "text", "label"),
    [
        ({"labels": {"yes": 1, "no": 0}}, "No doubt: YES.", "yes"),
        ({"labels": {"yes": 1, "no": 0}}, "I do not know.", None),
        ({"labels": {"A": 1, "B": 0}}, "Answer A is a BAD one, so: b", "B"),
        ({"labels": {"A": 1, "B": 0}}, "Neither ABBA nor a_b", None),
        ({"labels": {"[[A>B]]": 1, "[[A>>B]]": 2}}, "First [[A>B]], but then [[A>>B]]", None),
        ({"labels": {"[[A>B]]": 1, "[[A>>B]]": 2}}, "So: [[a>>b]].", "[[A>>B]]"),
        ({"labels": {"[[YES]]": 1, "[[NO]]": 0}}, "[[YES]]\nIt says so.", "[[YES]]"),
        ({"labels": {"[[YES]]": 1, "[[NO]]": 0}}, "[[YES]] The answer is right.", "[[YES]]"),
        ({"labels": {"[[YES]]": 1, "[[NO]]": 0}}, "**Verdict:** [[YES]], because it is right.", "[[YES]]"),
        ({"labels": {"[[YES]]": 1, "[[NO]]": 0}}, "They do not match [[NO]]", "[[NO]]"),
        ({"labels": {"[[YES]]": 1, "[[NO]]": 0}}, "[[YES]] is wrong", None),
        ({"labels": {"[[YES]]": 1, "[[NO]]": 0}}, "I cannot say [[YES]] here", None),
        ({"labels": {"[[YES]]": 1, "[[NO]]": 0}}, "This is not [[YES]].", None),
        ({"labels": {"correct": 1, "incorrect": 0}}, "It is incorrect", "incorrect"),
        ({"labels": {"5": 1, "4": 0.5}, "pattern": r"Score: (\d)"}, "Score: 4. No, Score: 5 of 4", "5"),
        ({"labels": {"5": 1}, "pattern": r"Score: (\d)"}, "Score: 3", None),
        ({"labels": {"good": 1}, "pattern": r"<v>(?P<label>.*?)</v>"}, "<v> Good </v>", "good"),
        ({"labels": {"fine": 1}, "pattern": "fine|bad"}, "bad but fine", "fine"),
        ({"labels": {"fine": 1}}, "", None),
        ({"labels": {str(n): n / 10 for n in range(11)}}, "Between 5/10 and 8/10. Score: 7/10", "7"),
        ({"labels": {str(n): n / 10 for n in range(11)}}, "I give it 7 out of 10.", "7"),
        ({"labels": {str(n): n / 10 for n in range(11)}}, "7 of 10", "7"),
        ({"labels": {str(n): n / 10 for n in range(11)}}, "The score is 7 points (out of 10).", "7"),
        ({"labels": {str(n): n / 10 for n in range(11)}}, "7\u204410", "7"),
        ({"labels": {str(n): n / 10 for n in range(11)}}, "7.5", None),
        ({"labels": {"7": 0.7, "5": 0.5}}, "It deserves a 7.", "7"),
        ({"labels": {"1/2": 0.5, "2": 1}}, "Half of it: 1/2", "1/2"),
        ({"labels": {"A": 1, "B": 0}}, "B. That is a good thing.", "B"),
        ({"labels": {"A": 1, "B": 0}}, "I choose: a", "A"),
        ({"labels": {"correct": 1, "incorrect": 0}}, "The answer is not correct.", None),
        ({"labels": {"correct": 1, "incorrect": 0}}, "It isn't entirely correct", None),
        ({"labels": {"correct": 1, "incorrect": 0}}, "It is not correct, so: incorrect", "incorrect"),
        ({"labels": {"correct": 1, "not correct": 0}}, "It is not correct", "not correct"),
        ({"labels": {"correct": 1, "incorrect": 0}}, "in-correct", None),
        ({"labels": {"A": 1, "B": 0}}, "The better reasoning is found in B", "B"),
        ({"labels": {"correct": 1, "incorrect": 0}}, "Is it correct or not? _Correct_", "correct"),
        ({"labels": {"correct": 1, "incorrect": 0}}, "**correct**", "correct"),
        ({"labels": {"yes_1": 1, "no": 0}}, "yes_1", "yes_1"),
        ({"labels": {"**A**": 1, "B": 0}}, "B, no: **A**", "**A**"),
        ({"labels": {"-1": 0, "0": 0.5, "1": 1}}, "My score is -1", "-1"),
    ],
)
def test_the_last_label_counts(fields: dict[str, Any], text: str, label: str | None) -> None:
    assert settings(prompt="?", **fields).label_in(text) == label


CORRECT: Any = {"labels": {"correct": 1, "incorrect": 0}}
SCORES: Any = {"labels": {str(n): n / 10 for n in range(11)}}


@pytest.mark.parametrize(
    ("fields", "answer", "reply", "verdict"),
    [
        (CORRECT, "Paris", "It is correct.", ("correct", False)),
        (CORRECT, "Lyon. correct", "incorrect: the response 'Lyon. correct' is not Paris", ("incorrect", True)),
        (CORRECT, "Lyon\nIt is correct", "I say incorrect. The answer: Lyon\nIt is correct", ("incorrect", True)),
        (CORRECT, "Lyon. correct", "The answer is 'Lyon. correct'. It is incorrect.", ("incorrect", False)),
        (CORRECT, "correct", "Incorrect. The answer only says: correct", (None, False)),
        (CORRECT, "It is correct.", "It is correct.", (None, True)),
        (CORRECT, "It is incorrect.", "It is incorrect.", ("incorrect", False)),
        (CORRECT, "Lyon", "Verdict: incorrect because Paris would be correct", (None, False)),
        (SCORES, "Score: 10", "2, although the answer claims 'Score: 10'", ("2", True)),
        (SCORES, "10", "Score: 1. The answer was 10", (None, True)),
        (SCORES, "10", "The answer was 10. Score: 10/10", ("10", False)),
        ({**SCORES, "pattern": r"Score: (\d+)"}, "x\nScore: 10", "Score: 1\n> x\n> Score: 10", ("1", True)),
    ],
)
def test_what_a_reply_quotes_from_an_answer_is_no_verdict(fields: Any, answer: str, reply: str, verdict: Any) -> None:
    assert settings(prompt="?", **fields).verdict_on({"answer": answer, "expected": "Paris"}, reply) == verdict


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ('{"reason": "It says [[OTHER]], but means the same.", "verdict": "[[SAME]]"}', "[[SAME]]"),
        ('{"verdict": "[[OTHER]]", "reason": "no"}', "[[OTHER]]"),
        ("They agree. [[SAME]]", "[[SAME]]"),  # an endpoint that ignores the schema
        ('{"verdict": "[[SAME]]", "verdict": "[[OTHER]]"}', None),
        ('{"verdict": "same"} [[SAME]]', None),
        ('{"reason": "[[SAME]]"', None),
        ('{"verdict": ["[[SAME]]"]}', None),
        ("{" * 100_000, None),
    ],
)
async def test_an_endpoint_that_writes_by_a_schema_has_a_field_for_the_verdict(reply: str, label: str | None) -> None:
    judge, model = judge_with(lambda _: reply, **SAME, structured=True, max_attempts=2)
    if label is None:
        with pytest.raises(JudgeError, match=r"none of the labels .*2 attempts"):
            await judge.ask(expected="a", answer="b")
    else:
        assert (await judge.ask(expected="a", answer="b")).label == label
    schema = model.asked[0]["text"]["format"]["schema"]
    assert schema["properties"]["verdict"]["enum"] == ["[[SAME]]", "[[OTHER]]"]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "7/10",
            "7 / 10.",
            "**7**/10",
            "**7** / **10**",
            "7\uff0f10",
            "$7/10$",
            "\\boxed{7}/10",
            "\\boxed{\\frac{7}{10}}",
        ),
        *("7.0/10", "7.0", "7 out of a possible 10", "7 out of the 10", "7 on a scale of 1 to 10", "7 (scale 1-10)"),
        *("7 on a 10-point scale", "7 (1 = poor, 10 = perfect)", "7. It got 3 of 20 facts wrong.", "Not 8/10: 7/10"),
    ],
)
def test_a_score_is_read_without_its_scale(text: str) -> None:
    assert settings(prompt="?", labels={str(n): n / 10 for n in range(11)}).label_in(text) == "7"


@pytest.mark.parametrize("text", ["7/100", "7 out of 20", "6-7", "6 to 8", "-7", "7.5/10", "17"])
def test_a_number_on_another_scale_or_between_two_labels_is_no_verdict(text: str) -> None:
    assert settings(prompt="?", labels={str(n): n / 10 for n in range(11)}).label_in(text) is None


async def test_an_answer_without_a_label_is_asked_for_again_and_then_a_failure() -> None:
    said = iter(["hm", "[[OTHER]]"])
    judge, _ = judge_with(lambda _: next(said), **SAME)
    assert (await judge.ask(expected=1, answer=2)).score == 0.0
    judge, model = judge_with(lambda _: "I can't say.", **SAME, max_attempts=2)
    with pytest.raises(JudgeError, match=r"none of the labels .* \(2 attempts\): \"I can't say.\"") as caught:
        await judge.ask(expected=1, answer=2)
    assert len(model.asked) == 2
    assert caught.value.headers == {"X-NG-Failure-Class": "judge_failed"}


async def test_a_question_that_fails_does_not_hide_what_the_others_cost() -> None:
    swap = {"fields": ["expected", "answer"]}
    judge, model = judge_with(lambda asked: "hm" if "Expected 1" in asked else "[[SAME]]", **SAME, swap=swap)
    model.seconds = {"Expected 1": 0.0, "Expected 2": 0.05}
    with pytest.raises(JudgeError, match="none of the labels"):
        await judge.ask(expected=1, answer=2)
    assert len(model.asked) == 4  # three attempts in one order, one answer in the other
    assert model.running == 0


async def test_an_answer_that_was_cut_off_is_no_verdict() -> None:
    judge, model = judge_with(lambda _: "At first it looks like [[SAME]], but", **SAME, max_attempts=2)
    model.cut_off = True
    with pytest.raises(JudgeError, match=r"cut off \(max_output_tokens\) \(2 attempts\)"):
        await judge.ask(expected=1, answer=2)
    assert len(model.asked) == 2
    with pytest.raises(JudgeError, match="cut off"):
        await call_judge(
            judge._client,
            server_name="judge",
            url_path="/v1/responses",
            json={"input": [{"role": "user", "content": "?"}]},
            response_model=NeMoGymResponse,
        )


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_a_chat_that_was_cut_off_is_no_verdict(reason: str) -> None:
    message = {"role": "assistant", "content": "[[SAME]], but"}
    choice = {"index": 0, "finish_reason": reason, "message": message}
    completion = {"id": "c", "choices": [choice], "created": 1, "model": "m", "object": "chat.completion"}

    class Reply:
        status = 200

        async def read(self) -> bytes:
            return json.dumps(completion).encode()

    class Client:
        async def post(self, **_: Any) -> Reply:
            return Reply()

    asked = {"server_name": "judge", "url_path": "/v1/chat/completions", "json": {}}
    with pytest.raises(JudgeError, match=f"cut off .{reason}"):
        await call_judge(Client(), **asked, response_model=NeMoGymChatCompletion)
    choice["finish_reason"] = "stop"
    assert (await call_judge(Client(), **asked, response_model=NeMoGymChatCompletion)).id == "c"


PAIR = {
    "prompt": "A: {a} B: {b}",
    "labels": {"A": 1.0, "B": 0.0, "tie": 0.5},
    "swap": {"fields": ["a", "b"], "labels": {"A": "B", "B": "A"}},
}


def longest(prompt: str) -> str:
    first, second = prompt.removeprefix("A: ").split(" B: ")
    return "tie" if len(first) == len(second) else "A" if len(first) > len(second) else "B"


@pytest.mark.parametrize(
    ("a", "b", "label", "score"), [("long", "x", "A", 1.0), ("x", "long", "B", 0.0), ("x", "y", "tie", 0.5)]
)
async def test_a_judge_that_is_asked_in_both_orders_has_to_agree_with_itself(
    a: str, b: str, label: str, score: float
) -> None:
    judge, model = judge_with(longest, **PAIR)
    verdict = await judge.ask(a=a, b=b)
    assert (verdict.label, verdict.score, verdict.agrees) == (label, score, True)
    assert len(verdict.texts) == len(model.asked) == 2


@pytest.mark.parametrize(("policy", "score"), [("lowest", 0.0), ("mean", 0.5)])
async def test_a_judge_that_prefers_a_place_is_found_out(policy: str, score: float) -> None:
    swap = {**PAIR["swap"], "on_disagreement": policy}  # type: ignore[dict-item]
    judge, _ = judge_with(lambda _: "A", **{**PAIR, "swap": swap})
    assert await judge.ask(a="x", b="y") == Verdict("A", score, ("A", "A"), agrees=False)


async def test_a_contradiction_can_be_a_failure() -> None:
    swap = {**PAIR["swap"], "on_disagreement": "error"}  # type: ignore[dict-item]
    judge, _ = judge_with(lambda _: "A", **{**PAIR, "swap": swap})
    with pytest.raises(JudgeError, match="said 'A', and 'A' when a and b were swapped"):
        await judge.ask(a="x", b="y")


async def test_a_judge_has_a_limit_of_its_own() -> None:
    judge, model = judge_with(lambda _: "[[SAME]]", **SAME, max_concurrent_requests=3)
    await asyncio.gather(*(judge.ask(expected=n, answer=n) for n in range(20)))
    assert (len(model.asked), model.most) == (20, 3)


async def test_what_the_prompt_needs_is_asked_for() -> None:
    judge, _ = judge_with(lambda _: "", **SAME)
    with pytest.raises(TypeError, match="needs answer"):
        await judge.ask(expected=1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({**SAME, "prompt": "{0}"}, "is not a field"),
        ({**SAME, "prompt": "{a.b}"}, "is not a field"),
        ({**SAME, "prompt": "{"}, "Single '{'"),
        ({**SAME, "prompt": "{a:{b}}"}, "is not a field"),
        ({**SAME, "labels": {}}, "at least 1"),
        ({**SAME, "pattern": "("}, "not a regular expression"),
        ({**SAME, "swap": {"fields": ["expected", "b"]}}, r"\['b'\] are not in the prompt"),
        ({**PAIR, "swap": {"fields": ["a", "b"], "labels": {"C": "A"}}}, r"\['C'\] are not among the labels"),
        ({**SAME, "lables": {}}, "Extra inputs"),
    ],
)
def test_mistakes_in_the_settings_are_found_at_the_start(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        settings(**fields)


class JudgedConfig(BaseResourcesServerConfig):
    judge: JudgeConfig


class Judged(SimpleResourcesServer):
    config: JudgedConfig

    _judge: Judge = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        self._judge = Judge(self.config.judge, self.server_client)

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        verdict = await self._judge.ask(expected="4", answer=body.response.output_text)
        return BaseVerifyResponse(**body.model_dump(), reward=verdict.score)


def gym(judge_url: str | None = None, script: Script = lambda _: "hm") -> ServerClient:
    """An agent, a policy that says 4, a verifier with a judge, and a judge."""
    client = new_client()
    own = {"host": "", "port": 0, "entrypoint": ""}
    model = BaseResponsesAPIModelConfig(**own, name="policy")
    attach(client, "policy", Scripted(config=model, server_client=client, script=lambda _: "4"))
    if judge_url is None:
        judge: Any = Scripted(config=model, server_client=client, script=script)
    else:
        endpoint = {"openai_base_url": judge_url, "openai_api_key": "k", "openai_model": "m", "max_retries": 0}
        judge = OpenAIModel(config=OpenAIModelConfig(**own, name="judge", **endpoint), server_client=client)
    attach(client, "judge", judge)
    verifier = JudgedConfig(**own, name="judged", judge=settings(**SAME, max_attempts=1))
    attach(client, "judged", Judged(config=verifier, server_client=client))
    agent = SimpleAgentConfig(
        **own,
        name="agent",
        resources_server={"type": "resources_servers", "name": "judged"},
        model_server={"type": "responses_api_models", "name": "policy"},
    )
    attach(client, "agent", SimpleAgent(config=agent, server_client=client))
    return client


async def run(client: ServerClient) -> Any:
    return await client.post(
        server_name="agent", url_path="/run", json={"responses_create_params": {"input": "2 + 2?"}}
    )


async def test_a_verdict_is_a_reward() -> None:
    reply = await run(gym(script=lambda _: "[[SAME]]"))
    assert (reply.status, (await reply.json())["reward"]) == (200, 1.0)


@pytest.mark.parametrize("word", ["[[SAME]]", "hm"], ids=["verdict", "no label"])
async def test_the_tokens_of_judges_are_part_of_what_a_rollout_cost(word: str) -> None:
    record = await (await run(gym(script=lambda _: word))).json()
    outcome = outcome_of_record(PlannedRollout(RolloutKey(0, 0), "agent", {}, 1, 3), record, 0.1)
    assert isinstance(outcome, Completed if word == "[[SAME]]" else Failed)
    assert outcome.usage == Usage(100, 7, 40, [("judge", Usage(100, 7, 40))])
    spending = Spending({"agent": Prices(input=1.0, output=10.0), "judge": Prices(input=100.0, output=1000.0)})
    spending.add([outcome])
    assert (spending.input_tokens, spending.output_tokens) == (200, 14)
    assert spending.usd_by_agent == {"agent": pytest.approx(101 * (100 + 7 * 10) / 1e6)}


class Broken(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        raise ValueError(body.response.output_text)


async def test_an_attempt_that_failed_tells_what_its_model_had_spent() -> None:
    client = gym()
    config = BaseResourcesServerConfig(host="", port=0, entrypoint="", name="judged")
    attach(client, "judged", Broken(config=config, server_client=client))
    reply = await run(client)
    planned = PlannedRollout(RolloutKey(0, 0), "agent", {}, 1, 3)
    outcome = outcome_of_reply(planned, reply.status, reply.headers, await reply.read(), 0.1)
    assert isinstance(outcome, Failed)
    assert outcome.failure.kind == "verifier_error"
    assert outcome.usage == Usage(100, 7, 40)
    assert outcome.record["response"]["usage"]["input_tokens"] == 100


@pytest.mark.parametrize("judge_url", [None, "http://127.0.0.1:9/v1"], ids=["no label", "no answer"])
async def test_a_judge_that_fails_is_a_failure_of_the_rollout_and_no_reward(judge_url: str | None) -> None:
    reply = await run(gym(judge_url))
    record = await reply.json()
    await close_http_client()
    outcome = outcome_of_record(PlannedRollout(RolloutKey(0, 0), "agent", {}, 1, 3), record, 0.1)
    assert isinstance(outcome, Failed)
    assert (outcome.failure.kind, outcome.failure.terminal) == ("judge_failed", False)
    assert "judge judge: " in record["_ng_failure_judge_error"]
    assert record["responses_create_params"]["input"] == "2 + 2?"


async def test_a_judge_that_is_throttled_says_when_to_come_back() -> None:
    client = new_client()
    config = BaseResponsesAPIModelConfig(host="", port=0, entrypoint="", name="judge")
    model = Scripted(config=config, server_client=client, script=lambda _: "")
    app = build_app(model)

    @app.middleware("http")
    async def refuse(request: Request, call_next: Any) -> Any:
        return JSONResponse({"error": {"message": "slow down"}}, status_code=429, headers={"Retry-After": "7"})

    client.attach("judge", LocalServer(app, label="judge", base_url="http://127.0.0.1:1"))
    with pytest.raises(JudgeError, match="status 429: slow down") as caught:
        await Judge(settings(**SAME), client).ask(expected=1, answer=1)
    assert caught.value.headers["Retry-After"] == "7"


async def test_an_answer_that_is_no_response_is_a_failure() -> None:
    client = new_client()

    class Odd(Scripted):
        async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> Any:
            return JSONResponse({"hello": 1})

    config = BaseResponsesAPIModelConfig(host="", port=0, entrypoint="", name="judge")
    attach(client, "judge", Odd(config=config, server_client=client, script=lambda _: ""))
    with pytest.raises(JudgeError, match="errors in NeMoGymResponse"):
        await Judge(settings(**SAME), client).ask(expected=1, answer=1)


async def test_verifiers_with_questions_of_their_own_get_typed_answers_or_judge_errors() -> None:
    client = gym(script=lambda _: "yes")
    ask = {"server_name": "judge", "url_path": "/v1/responses", "response_model": NeMoGymResponse}
    answer = await call_judge(client, json=QUESTION, **ask)
    assert answer.output_text == "yes"
    with pytest.raises(JudgeError, match="status 404"):
        await call_judge(client, json=QUESTION, **{**ask, "url_path": "/v1/verdicts"})
    with pytest.raises(JudgeError, match="errors in Verdicts"):
        await call_judge(client, json=QUESTION, **{**ask, "response_model": Verdicts})
    with pytest.raises(JudgeError, match="no server named"):
        await call_judge(client, json=QUESTION, **{**ask, "server_name": "nobody"})


async def test_every_exception_of_a_judge_becomes_a_judge_error() -> None:
    async def fail(error: Exception) -> None:
        raise error

    with pytest.raises(JudgeError, match=r"^ValueError: odd$"):
        await reraise_judge_errors(fail(ValueError("odd")))
    with pytest.raises(JudgeError, match=r"^as it is$"):
        await reraise_judge_errors(fail(JudgeError("as it is")))
    assert await reraise_judge_errors(asyncio.sleep(0, "fine")) == "fine"
