"""Questions about a database: the model writes a query, which must return what a reference query returns."""

import re
from typing import Any, Final, Literal

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SessionStates,
    SimpleResourcesServer,
)
from nemo_gym.openai_utils import answer_text
from nemo_gym.process_pool import CallLimitError, ProcessPool, WorkerError
from nemo_gym.server_utils import SESSION_ID_KEY

# A query has its own limit; this one is for everything around it, and for reference queries.
CPU_LIMIT_S: Final = 60.0
MEMORY_MB: Final = 4096
MAX_QUERY: Final = 10_000
_START: Final = re.compile(r"^[ \t]*(?:select|with)\b", re.IGNORECASE | re.MULTILINE)
_WORD: Final = re.compile(r"\b(?:select|with)\b", re.IGNORECASE)
FENCE: Final = "```"


class SqlQueriesConfig(BaseResourcesServerConfig):
    """Limits of a query, and how many run at once."""

    max_rows: int = Field(default=10_000, ge=1)
    max_seconds: float = Field(default=1.0, gt=0)
    processes: int = Field(default=2, ge=1)


class SqlQueriesTask(BaseModel):
    """The fields of a row that say what is expected. The query must be right on every one of the databases."""

    databases: list[str] = Field(min_length=1, max_length=10)
    reference_query: str
    dialect: Literal["sqlite", "duckdb"] = "sqlite"
    ordered: bool = False


class SqlQueriesVerifyRequest(SqlQueriesTask, BaseVerifyRequest):
    """A row with the agent's response."""

    id: str | int | None = None
    question: str | None = None
    difficulty: int | None = None


class SqlQueriesVerifyResponse(SqlQueriesVerifyRequest, BaseVerifyResponse):
    """The row with its reward and the reasons for it."""

    accuracy: float
    executed: bool
    extracted_query: str | None
    reason: str | None


class RunQueryRequest(BaseModel):
    """Arguments of the tool."""

    query: str


class RowError(ValueError):
    """The row's database or reference query does not work: nothing can be scored with it."""


class SqlQueriesServer(SimpleResourcesServer):
    """Runs queries in separate processes."""

    config: SqlQueriesConfig
    _sessions: SessionStates[SqlQueriesTask] = PrivateAttr(default_factory=SessionStates)
    _pool: ProcessPool = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Prepare for processes; they are started by the first queries."""
        super().model_post_init(context)
        self._pool = ProcessPool(
            "resources_servers.sql_queries.database_process:answer_request",
            size=self.config.processes,
            time_limit_s=CPU_LIMIT_S,
            memory_mb=MEMORY_MB,
        )

    def setup_webserver(self) -> FastAPI:
        """Add the tool to the standard routes."""
        app = super().setup_webserver()
        app.post("/run_query")(self.run_query)
        return app

    async def close(self) -> None:
        """End the processes now; otherwise they end with the program."""
        await self._pool.close()

    async def seed_session(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: SqlQueriesTask
    ) -> BaseSeedSessionResponse:
        """Run the reference query: a row that does not work is refused before it costs a model call."""
        await self._ask("check", body, query="")
        self._sessions[request.session[SESSION_ID_KEY]] = body
        return BaseSeedSessionResponse()

    async def run_query(self, request: Request, body: RunQueryRequest) -> dict[str, Any]:
        """Show the model the first rows that its query returns."""
        task = self._sessions.get(request.session[SESSION_ID_KEY])
        if task is None:
            return {"error": "the rollout has not begun"}
        if len(body.query) > MAX_QUERY:
            return {"error": f"the query is longer than {MAX_QUERY} characters"}
        answer = await self._ask("run", task, query=body.query)
        return {"error": answer["error"]} if "error" in answer else answer

    async def verify(  # type: ignore[override]  # the route takes its parameters from this signature
        self, request: Request, body: SqlQueriesVerifyRequest
    ) -> SqlQueriesVerifyResponse:
        """Run the query on every database and compare what it returns."""
        self._sessions.pop(request.session.get(SESSION_ID_KEY, ""), None)
        query = extract_query(answer_text(body.response, reasoning_tags=self.config.reasoning_tags, last_message=True))
        answer: dict[str, Any] = {"equal": False, "error": "no query"}
        if query is not None:
            answer = await self._ask("compare", body, query=query)
        return SqlQueriesVerifyResponse(
            **dict(body),
            reward=float(answer["equal"]),
            accuracy=float(answer["equal"]),
            executed="error" not in answer,
            extracted_query=query,
            reason=answer.get("error") or answer.get("reason"),
        )

    async def _ask(
        self, what: Literal["check", "run", "compare"], task: SqlQueriesTask, *, query: str
    ) -> dict[str, Any]:
        request = {
            "do": what,
            "dialect": task.dialect,
            "databases": task.databases,
            "reference": task.reference_query,
            "ordered": task.ordered,
            "query": query,
            "max_rows": self.config.max_rows,
            "seconds": self.config.max_seconds,
        }
        answer = await self._answer(request)
        if "broken" in answer:
            raise RowError(answer["broken"])
        return answer

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask, and ask once more if a process died: an earlier query may have damaged it."""
        try:
            return dict(await self._pool.call(request))
        except CallLimitError:
            if request["do"] != "check":
                return {"equal": False, "error": "the query takes too long"}
        except WorkerError:
            pass
        return dict(await self._pool.call(request))


def extract_query(text: str) -> str | None:
    """The query in an answer: the last code fence, otherwise what begins with SELECT or WITH.

    It takes linear time, and omits the semicolon at the end. None if there is none, or one of unreasonable length.
    """
    query = _fenced(text)
    if query is None:
        found = _START.search(text) or _WORD.search(text)
        query = text[found.start() :] if found else None
    if query is None:
        return None
    query = query.strip().rstrip(";").rstrip()
    return query if 0 < len(query) <= MAX_QUERY else None


def _fenced(text: str) -> str | None:
    end = text.rfind(FENCE)
    start = text.rfind(FENCE, 0, end) if end > 0 else -1
    if start < 0:
        return None
    inside = text[start + len(FENCE) : end]
    first, newline, rest = inside.partition("\n")
    # What follows the opening fence on its line is the name of the language.
    return rest if newline and (not first.strip() or first.strip().isalnum()) else inside


if __name__ == "__main__":
    SqlQueriesServer.run_webserver()
