"""Tasks of the package reasoning-gym, scored by its own scorers."""

import importlib.util
from typing import Any, ClassVar, Final

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.errors import ConfigError
from nemo_gym.openai_utils import answer_text
from nemo_gym.process_pool import CallLimitError, ProcessPool
from nemo_gym.server_utils import close_with_app

INSTALL: Final = "pip install 'rollout-gym[environments]', or -r resources_servers/reasoning_gym/requirements.txt"
MAX_ANSWER: Final = 20_000


class TaskMetadata(BaseModel):
    """What the generator recorded about the task; other fields are for the scorer."""

    model_config = ConfigDict(extra="allow")

    source_dataset: str


class ReasoningGymConfig(BaseResourcesServerConfig):
    """The limits of one scoring."""

    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS
    time_limit_s: float = Field(default=5.0, gt=0, le=60)
    memory_mb: int = Field(default=1024, ge=64)
    processes: int = Field(default=2, ge=1)


class ReasoningGymSeedSessionRequest(BaseSeedSessionRequest):
    """A row that can't be scored is refused before it costs a model call."""

    question: str
    metadata: TaskMetadata


class ReasoningGymVerifyRequest(BaseVerifyRequest):
    """A row with the agent's response."""

    model_config = ConfigDict(extra="allow")

    question: str
    answer: str | None = None
    metadata: TaskMetadata
    difficulty: int | None = None


class ReasoningGymVerifyResponse(ReasoningGymVerifyRequest, BaseVerifyResponse):
    """The score and what it is based on."""

    task_name: str
    score: float
    accuracy: float
    extracted_answer: str
    reason: str


class ReasoningGymServer(SimpleResourcesServer):
    """Scores answers in processes that can be ended."""

    config: ReasoningGymConfig

    _pool: ProcessPool = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Prepare the processes, none of which is started yet."""
        super().model_post_init(context)
        self._pool = ProcessPool(
            "resources_servers.reasoning_gym.scoring:score",
            size=self.config.processes,
            time_limit_s=self.config.time_limit_s,
            memory_mb=self.config.memory_mb,
            install=INSTALL,
        )

    def setup_webserver(self) -> FastAPI:
        """Build the standard app; the processes end with it."""
        if importlib.util.find_spec("reasoning_gym") is None:
            raise ConfigError("the package 'reasoning-gym' is not installed", hint=INSTALL)
        app = super().setup_webserver()
        close_with_app(app, self._pool.close)
        return app

    async def seed_session(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: ReasoningGymSeedSessionRequest
    ) -> BaseSeedSessionResponse:
        """Find out whether the installed package has the scorer."""
        checked = await self._pool.call(None, body.model_dump())
        if "unknown" in checked:
            raise HTTPException(422, f"the package has no scorer for metadata.source_dataset {checked['unknown']!r}")
        return BaseSeedSessionResponse()

    async def verify(  # type: ignore[override]  # the route takes its body type from this signature
        self, body: ReasoningGymVerifyRequest
    ) -> ReasoningGymVerifyResponse:
        """Give the score that the package gives."""
        answer = extract_answer(answer_text(body.response, reasoning_tags=self.config.reasoning_tags))
        score, reason = await self._score(answer, body)
        verdict = {
            "reward": score,
            "task_name": body.metadata.source_dataset,
            "score": score,
            "accuracy": float(score >= 1.0),
            "extracted_answer": answer[:MAX_ANSWER],
            "reason": reason,
        }
        # A saved rollout that is verified again has an older verdict in its fields.
        return ReasoningGymVerifyResponse(**{**dict(body), **verdict})

    async def _score(self, answer: str, body: ReasoningGymVerifyRequest) -> tuple[float, str]:
        if len(answer) > MAX_ANSWER:
            return 0.0, f"the answer is longer than {MAX_ANSWER} characters"
        entry = {"question": body.question, "answer": body.answer, "metadata": body.metadata.model_dump()}
        try:
            scored = await self._pool.call(answer, entry)
        except CallLimitError as error:
            return 0.0, f"scoring {error}"
        if "unknown" in scored:
            raise HTTPException(422, f"the package has no scorer for metadata.source_dataset {scored['unknown']!r}")
        return scored["score"], scored["reason"]


def extract_answer(text: str) -> str:
    r"""The content of the last ``<answer>``, else of the last ``\boxed{}``, else all of it."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end if end >= 0 else None)
    if start >= 0:
        return text[start + len("<answer>") : end if end > start else None].strip()
    box = text.rfind("\\boxed{")
    if box >= 0:
        content = _closed(text[box + len("\\boxed{") : box + MAX_ANSWER])
        if content is not None:
            return content.strip()
    return text.strip()


def _closed(text: str) -> str | None:
    depth = 1
    for position, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[:position]
    return None


if __name__ == "__main__":
    ReasoningGymServer.run_webserver()
