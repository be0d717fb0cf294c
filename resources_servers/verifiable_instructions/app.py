"""Instructions that a program can verify, of the kinds of IFEval and IFBench, strictly and loosely."""

import asyncio
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, model_validator

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
    refuse_invalid_rows,
)
from nemo_gym.openai_utils import answer_text
from resources_servers.verifiable_instructions.registry import MAX_TEXT, check, read_instructions

# Longer answers are checked in a thread, so that other rollouts do not wait. So are languages, which takes longer.
SHORT: Final = 4_000
LANGUAGE_CHECKS: Final = frozenset(
    {"language:response_language", "change_case:english_capital", "change_case:english_lowercase"}
)


# pydantic's plugin for mypy names the arguments of __init__ after the fields, and **kwargs is one of its own.
class InstructionRow(BaseModel):  # type: ignore[no-redef]
    """The instructions of a row: names, and the parameters of each."""

    instruction_id_list: list[str]
    kwargs: list[dict[str, Any] | None]
    grading_mode: Literal["binary", "fraction"] = "binary"

    @model_validator(mode="after")
    def _check(self) -> Self:
        read_instructions(self.instruction_id_list, self.kwargs)
        return self


class VerifiableInstructionsConfig(BaseResourcesServerConfig):
    """Which of the two verdicts is rewarded; both are in the result."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS
    grading: Literal["strict", "loose"] = "strict"


class VerifiableInstructionsSeedSessionRequest(InstructionRow, BaseSeedSessionRequest):  # type: ignore[no-redef]
    """A row that can't be verified is refused before it costs a model call."""


class VerifiableInstructionsVerifyRequest(InstructionRow, BaseVerifyRequest):  # type: ignore[no-redef]
    """A row with the agent's response."""

    id: int | None = None
    key: int | str | None = None
    prompt: str | None = None


class VerifiableInstructionsVerifyResponse(VerifiableInstructionsVerifyRequest, BaseVerifyResponse):  # type: ignore[no-redef]
    """The score and the verdict on each instruction."""

    accuracy: float
    follow_all_instructions: bool
    follow_instruction_list: list[bool]
    follow_all_instructions_loose: bool
    follow_instruction_list_loose: list[bool]
    instruction_accuracy: float
    instruction_accuracy_loose: float
    reason: str


class VerifiableInstructionsServer(SimpleResourcesServer):
    """Checks the answer against every instruction of a row."""

    config: VerifiableInstructionsConfig

    seed_session: ClassVar[Any] = refuse_invalid_rows(VerifiableInstructionsSeedSessionRequest)

    async def verify(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: VerifiableInstructionsVerifyRequest
    ) -> VerifiableInstructionsVerifyResponse:
        """Reward an answer that follows all instructions, or the share that it follows."""
        instructions = read_instructions(body.instruction_id_list, body.kwargs)
        text = answer_text(body.response, reasoning_tags=self.config.reasoning_tags)
        if len(text) <= SHORT and not LANGUAGE_CHECKS.intersection(body.instruction_id_list):
            followed = check(text, instructions)
        else:
            followed = await asyncio.to_thread(check, text, instructions)
        strict, loose = (sum(verdicts) / len(verdicts) for verdicts in followed)
        share = strict if self.config.grading == "strict" else loose
        return VerifiableInstructionsVerifyResponse(
            **dict(body),
            reward=share if body.grading_mode == "fraction" else float(share == 1.0),
            accuracy=float(share == 1.0),
            follow_all_instructions=all(followed.strict),
            follow_instruction_list=followed.strict,
            follow_all_instructions_loose=all(followed.loose),
            follow_instruction_list_loose=followed.loose,
            instruction_accuracy=strict,
            instruction_accuracy_loose=loose,
            reason=_reason(text, body.instruction_id_list, followed.strict),
        )


def _reason(text: str, names: list[str], followed: list[bool]) -> str:
    if len(text) > MAX_TEXT:
        return f"the answer is longer than {MAX_TEXT} characters"
    broken = [name for name, passed in zip(names, followed, strict=True) if not passed]
    return f"not followed: {', '.join(broken)}" if broken else "all instructions are followed"


if __name__ == "__main__":
    VerifiableInstructionsServer.run_webserver()
