"""A model that scores: for verifiers that can't decide by themselves.

    self._judge = Judge(self.config.judge, self.server_client)
    verdict = await self._judge.ask(question=…, expected=…, answer=…)

A judge that can't be reached, or that says nothing which can be read, is a ``JudgeError``: the rollout fails as a
``verifier_error`` and is tried again. It never becomes a reward of 0.
"""

import asyncio
from typing import Any, Final

from pydantic import ValidationError

from nemo_gym.errors import RolloutError
from nemo_gym.schemas.responses import NeMoGymResponse
from nemo_gym.schemas.rows import FAILURE_CLASS_HEADER
from nemo_gym.servers import http_errors
from nemo_gym.servers.client import GymClient
from nemo_gym.servers.faults import first_cause
from nemo_gym.servers.verdicts import JudgeConfig, Verdict, settle

VERIFIER_ERROR: Final = "verifier_error"
RESPONSES_PATH: Final = "/v1/responses"
SHOWN: Final = 300


class JudgeError(RolloutError):
    """There is no verdict. Its headers tell every server in between what kind of failure this is."""

    def __init__(self, message: str, *, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.headers = {FAILURE_CLASS_HEADER: VERIFIER_ERROR}
        if retry_after:
            self.headers["Retry-After"] = retry_after


class Judge:
    """One judge, with a limit of its own on how much it is asked at once."""

    def __init__(self, config: JudgeConfig, client: GymClient) -> None:
        self.config = config
        self._client = client
        self._slots = asyncio.Semaphore(config.max_concurrent_requests)

    async def ask(self, **values: Any) -> Verdict:
        """The verdict on these values, one for each field of the prompt. Raises ``JudgeError`` if there is none."""
        if missing := self.config.fields - values.keys():
            raise TypeError(f"the judge's prompt needs {', '.join(sorted(missing))}")
        swap = self.config.swap
        if swap is None:
            return await self._decide(values)
        first, second = await asyncio.gather(self._decide(values), self._decide(swap.swapped(values)))
        verdict = settle(self.config, first, second)
        if verdict is None:
            raise self._error(
                f"said {first.label!r}, and {second.label!r} when {' and '.join(swap.fields)} were swapped"
            )
        return verdict

    async def _decide(self, values: dict[str, Any]) -> Verdict:
        request = {**self.config.responses_create_params, "input": self.config.messages(values)}
        text = ""
        for _ in range(self.config.max_attempts):
            async with self._slots:
                text = await self._answer(request)
            label = self.config.label_in(text)
            if label is not None:
                return Verdict(label, self.config.labels[label], (text,))
        tries = f" ({self.config.max_attempts} attempts)" if self.config.max_attempts > 1 else ""
        known = ", ".join(map(repr, self.config.labels))
        raise self._error(f"none of the labels {known} in its answer{tries}: {text[-SHOWN:]!r}")

    async def _answer(self, request: dict[str, Any]) -> str:
        name = self.config.model_server.name
        try:
            reply = await self._client.post(server_name=name, url_path=RESPONSES_PATH, json=request)
            content = await reply.read()
        except http_errors.RequestFailedError as error:
            raise self._error(str(error)) from error
        if not reply.ok:
            raise self._error(
                f"status {reply.status}: {first_cause(content)[:SHOWN]}", retry_after=reply.headers.get("Retry-After")
            )
        try:
            response = NeMoGymResponse.model_validate_json(content)
        except ValidationError as error:
            raise self._error(f"no response ({error.error_count()} mistakes): {content[:SHOWN]!r}") from error
        return response.output_text

    def _error(self, reason: str, *, retry_after: str | None = None) -> JudgeError:
        return JudgeError(f"judge {self.config.model_server.name}: {reason}", retry_after=retry_after)
