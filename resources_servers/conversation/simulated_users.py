"""Simulated users: a model that plays a person, or rules that answer what was asked.

Both know facts that the assistant has to find out. Neither keeps anything between turns: what was said is in the
conversation.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.config_types import ModelServerRef
from nemo_gym.errors import RolloutError
from nemo_gym.openai_utils import NeMoGymResponse, answer_text
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status

END: Final = "[[END]]"
MAX_HEARD: Final = 4_000
MAX_SAID: Final = 2_000
# A person does not list everything they know at once, even when asked to.
MAX_FACTS_AT_ONCE: Final = 2


class Fact(BaseModel):
    """Something that the user knows: what it is called, how it is said, and which words ask for it."""

    model_config = ConfigDict(extra="forbid")

    value: Any
    say: str
    asked_by: list[str] = Field(min_length=1)


class Turn(NamedTuple):
    """One side of the conversation and what it said."""

    is_user: bool
    text: str


class Character(NamedTuple):
    """Who the user is, what they want, and what they know."""

    persona: str
    goal: str
    facts: dict[str, Fact]


class SimulatedUser(Protocol):
    """Somebody who can be talked to."""

    async def answer(self, character: Character, turns: Sequence[Turn]) -> str | None:
        """What the user says next; None if they have nothing left to say."""


class UserError(RolloutError):
    """The simulated user does not answer, so the rollout can't go on. It fails; the policy is not to blame."""


class ScriptedUser:
    """Says what it knows when a question contains the right words."""

    async def answer(self, character: Character, turns: Sequence[Turn]) -> str | None:
        """The facts that were asked for, those that were not mentioned yet first; None after a farewell."""
        heard = _words(turns[-1].text[-MAX_HEARD:] if turns else "")
        said = " ".join(turn.text for turn in turns if turn.is_user)
        asked = [fact for fact in character.facts.values() if any(word in heard for word in fact.asked_by)]
        asked.sort(key=lambda fact: fact.say in said)
        if asked:
            return " ".join(fact.say for fact in asked[:MAX_FACTS_AT_ONCE])
        if "goodbye" in heard:
            return None
        return "What do you need to know?"


class ModelUser:
    """Any model server, playing the character."""

    def __init__(
        self, server: ModelServerRef, client: ServerClient, template: str, *, params: dict[str, Any], attempts: int
    ) -> None:
        self._server = server
        self._client = client
        self._template = template
        self._params = params
        self._attempts = attempts

    async def answer(self, character: Character, turns: Sequence[Turn]) -> str | None:
        """What the model says in the user's place."""
        request = {**self._params, "input": self._messages(character, turns)}
        for _ in range(self._attempts):
            reply = await self._client.post(server_name=self._server.name, url_path="/v1/responses", json=request)
            await raise_for_status(reply)
            said = answer_text(NeMoGymResponse.model_validate(await get_response_json(reply))).strip()
            if said:
                ended = END in said
                said = said.replace(END, "").strip()[:MAX_SAID]
                return None if ended and not said else said
        raise UserError(f"simulated user {self._server.name}: no answer ({self._attempts} attempts)")

    def _messages(self, character: Character, turns: Sequence[Turn]) -> list[dict[str, str]]:
        facts = "\n".join(f"- {name}: {fact.say}" for name, fact in character.facts.items())
        prompt = self._template.format(persona=character.persona, goal=character.goal, facts=facts)
        # Seen from the other side: what the user said are the model's own words.
        said = [
            {"role": "assistant" if turn.is_user else "user", "content": turn.text[-MAX_HEARD:] or "…"}
            for turn in turns
        ]
        return [{"role": "system", "content": prompt}, *said]


def _words(text: str) -> str:
    return re.sub(r"\s+", " ", text.lower())
