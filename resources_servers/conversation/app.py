"""A conversation with a simulated user who knows what the assistant has to find out and submit."""

from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeGuard

import orjson
from fastapi import Body, FastAPI
from pydantic import BaseModel, Field, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
    refuse_invalid_rows,
)
from nemo_gym.config_types import ModelServerRef
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseFunctionToolCall, without_reasoning
from resources_servers.conversation.simulated_users import Character, Fact, ModelUser, ScriptedUser, SimulatedUser, Turn

TEMPLATE: Final = Path(__file__).parent / "prompt_templates" / "user.txt"
SUBMIT: Final = "submit"
MAX_ARGUMENTS: Final = 20_000
MAX_ASKED: Final = 50_000


class ConversationConfig(BaseResourcesServerConfig):
    """Who plays the user (a model server, or rules if none is named), and how much of a form must be right."""

    user_model_server: ModelServerRef | None = None
    user_responses_create_params: dict[str, Any] = Field(default_factory=dict)
    user_max_attempts: int = Field(default=3, ge=1)
    max_user_turns: int = Field(default=12, ge=1)
    grading: Literal["all", "fraction"] = "all"


class ConversationTask(BaseModel):
    """The fields of a row that say who the user is; the model never sees them."""

    persona: str
    goal: str
    facts: dict[str, Fact] = Field(min_length=1)

    def character(self) -> Character:
        """The person to play."""
        return Character(self.persona, self.goal, self.facts)


class ConversationVerifyRequest(ConversationTask, BaseVerifyRequest):
    """A row with the agent's response."""

    id: str | int | None = None
    category: str | None = None
    opening: str | None = None
    difficulty: int | None = None


class ConversationVerifyResponse(ConversationVerifyRequest, BaseVerifyResponse):
    """The row with its reward and the reasons for it."""

    accuracy: float
    fraction_right: float
    submitted: bool
    user_turns: int
    wrong_fields: list[str]
    guessed_fields: list[str]


class UserTurn(BaseModel):
    """What the user says next, if anything."""

    messages: list[dict[str, str]]
    done: bool


class ConversationServer(SimpleResourcesServer):
    """Lets the user speak, accepts what the assistant submits, and compares it with what the user knows."""

    config: ConversationConfig
    _user: SimulatedUser = PrivateAttr()

    seed_session: ClassVar[Any] = refuse_invalid_rows(ConversationTask)

    def model_post_init(self, context: Any, /) -> None:
        """Choose the user."""
        super().model_post_init(context)
        config = self.config
        if config.user_model_server is None:
            self._user = ScriptedUser()
        else:
            self._user = ModelUser(
                config.user_model_server,
                self.server_client,
                TEMPLATE.read_text("utf-8"),
                params=config.user_responses_create_params,
                attempts=config.user_max_attempts,
            )

    def setup_webserver(self) -> FastAPI:
        """Add the user's turn and the tool."""
        app = super().setup_webserver()
        app.post("/next_turn")(self.next_turn)
        app.post(f"/{SUBMIT}")(self.submit)
        return app

    async def submit(self, body: Any = Body()) -> dict[str, str]:
        """Accept a submission, without saying whether it is right: the assistant must not try until it is."""
        del body
        return {"status": "received"}

    async def next_turn(self, body: ConversationVerifyRequest) -> UserTurn:
        """Let the user speak, unless something was submitted or they have lost patience."""
        turns = turns_of(body.opening, body.response)
        said = sum(turn.is_user for turn in turns)
        if submitted_in(body.response) is not None or said >= self.config.max_user_turns:
            return UserTurn(messages=[], done=True)
        text = await self._user.answer(body.character(), turns)
        if text is None:
            return UserTurn(messages=[], done=True)
        return UserTurn(messages=[{"role": "user", "content": text}], done=False)

    async def verify(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: ConversationVerifyRequest
    ) -> ConversationVerifyResponse:
        """Compare the last submission with what the user knows."""
        submitted = submitted_in(body.response)
        found = submitted or {}
        guessed = guessed_fields(body)
        wrong = [name for name, fact in body.facts.items() if name not in found or not same(found[name], fact.value)]
        wrong += [name for name in guessed if name not in wrong]
        wrong += [f"{name[:60]} (not asked for)" for name in list(found)[:20] if name not in body.facts]
        fraction = max(0.0, 1 - len(wrong) / len(body.facts)) if submitted is not None else 0.0
        accuracy = float(submitted is not None and not wrong)
        return ConversationVerifyResponse(
            **dict(body),
            reward=accuracy if self.config.grading == "all" else fraction,
            accuracy=accuracy,
            fraction_right=fraction,
            submitted=submitted is not None,
            user_turns=sum(turn.is_user for turn in turns_of(body.opening, body.response)),
            wrong_fields=wrong,
            guessed_fields=guessed,
        )


def turns_of(opening: str | None, response: NeMoGymResponse) -> list[Turn]:
    """Who said what, beginning with the opening; what the assistant says between two tool calls is one turn."""
    turns = [Turn(is_user=True, text=opening)] if opening else []
    for item in response.output:
        role = getattr(item, "role", None)
        if role not in {"user", "assistant"}:
            continue
        # What the assistant only thinks of asking, the user can't hear.
        text = text_of(item) if role == "user" else without_reasoning(text_of(item))
        if turns and turns[-1].is_user is (role == "user"):
            turns[-1] = Turn(turns[-1].is_user, f"{turns[-1].text}\n{text}")
        else:
            turns.append(Turn(role == "user", text))
    return turns


def text_of(item: Any) -> str:
    """The text of a message."""
    content = item.content
    return content if isinstance(content, str) else "".join(getattr(part, "text", "") for part in content)


def guessed_fields(body: ConversationVerifyRequest) -> list[str]:
    """Fields that were not mentioned before they were submitted: the assistant did not ask, the user did not say."""
    output = body.response.output
    last = max((index for index, item in enumerate(output) if _is_submission(item)), default=None)
    if last is None:
        return []
    turns = turns_of(body.opening, body.response.model_copy(update={"output": output[:last]}))
    said = " ".join(turn.text for turn in turns if turn.is_user).casefold()
    asked = " ".join(turn.text for turn in turns if not turn.is_user)[-MAX_ASKED:].casefold()
    return [
        name
        for name, fact in body.facts.items()
        if str(fact.value).casefold() not in said and not any(word in asked for word in fact.asked_by)
    ]


def submitted_in(response: NeMoGymResponse) -> dict[str, Any] | None:
    """The arguments of the last submission; None if there is none that can be read."""
    texts = [item.arguments for item in response.output if _is_submission(item)]
    try:
        arguments = orjson.loads(texts[-1]) if texts and len(texts[-1]) <= MAX_ARGUMENTS else None
    except orjson.JSONDecodeError:
        return None
    return arguments if isinstance(arguments, dict) else None


def _is_submission(item: Any) -> TypeGuard[NeMoGymResponseFunctionToolCall]:
    return isinstance(item, NeMoGymResponseFunctionToolCall) and item.name == SUBMIT


def same(value: Any, expected: Any) -> bool:
    """Whether two values are the same; case and outer spaces do not matter, and 1 is not true."""
    if isinstance(expected, str):
        return isinstance(value, str) and value.strip().casefold() == expected.strip().casefold()
    if isinstance(expected, bool):
        return value is expected
    return type(value) in {int, float} and bool(value == expected)


if __name__ == "__main__":
    ConversationServer.run_webserver()
