"""Functions as agents that bring a client or a framework of their own: ``async def solve(task, session)``.

The session has the address and the key of the attempt (``nemo_gym.programs.session``). What the function returns as
text is its answer; without it, the last text of the main chain counts.
"""

import inspect
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from nemo_gym.api.environment_file import find_environment_file, import_user_file
from nemo_gym.api.gateway_agents import GatewayAgent, GatewayTask, Work
from nemo_gym.base_responses_api_agent import Json
from nemo_gym.capture.gateway import AttemptReport
from nemo_gym.errors import ConfigError, nearest
from nemo_gym.programs.attempt_folder import AttemptFolders
from nemo_gym.programs.endings import TAIL_CHARS, Unscored, judge_calls, judge_refusals
from nemo_gym.programs.session import AttemptSession, SessionTools
from nemo_gym.schemas.rows import RESPONSES_CREATE_PARAMS_KEY_NAME, FailureClass
from nemo_gym.servers.attempts import OpenedAttempt
from nemo_gym.servers.scoring import task_of

logger = logging.getLogger(__name__)

SessionFunction = Callable[[Json, AttemptSession], Awaitable[Any]]
SESSION: Final = "session"
_ERROR: Final = "error"  # among the facts: what the function raised


def takes_session(function: Callable[..., Any]) -> bool:
    """Whether an agent function has the form ``(task, session)``."""
    names = list(inspect.signature(function).parameters)
    return len(names) == 2 and names[1] == SESSION


def load_agent_function(place: str) -> SessionFunction:
    """The function that ``my_agent.py:solve`` names."""
    file, _, name = place.rpartition(":")
    module = import_user_file(find_environment_file(file).resolve())
    function = getattr(module, name, None)
    if not inspect.iscoroutinefunction(function) or not takes_session(function):
        known = [key for key, value in vars(module).items() if inspect.iscoroutinefunction(value)]
        near = nearest(name, {*known} - {name})
        raise ConfigError(
            f"{file} has no `async def {name}(task, session)`",
            hint=f"did you mean {' or '.join(near)}?" if near else "write the function, or correct its name",
        )
    loaded: SessionFunction = function
    return loaded


class SessionAgent(GatewayAgent):
    """An agent whose work is done by a function with a session."""

    async def solve(self, task: Json, session: AttemptSession) -> Any:
        """Call the function."""
        raise NotImplementedError

    async def work(self, task: GatewayTask, attempt: OpenedAttempt) -> Work:
        """Let the function work in a folder of its own."""
        with AttemptFolders().open() as folder:
            folder.write(task.workspace_files)
            done, started = Work(facts={"name": type(self).__name__}), time.monotonic()
            session = self.session(task, attempt, folder.workspace)
            try:
                answer = await self.solve(task_of(task.row), session)
                done.answer = answer if isinstance(answer, str) else None
            except Exception as error:  # the boundary to the user's function
                logger.debug("%s failed", type(self).__name__, exc_info=error)
                done.facts[_ERROR] = "".join(traceback.format_exception(error))[-TAIL_CHARS:]
            finally:
                await session.close()
            done.facts["seconds"] = round(time.monotonic() - started, 3)
            changes = folder.changes()
            if task.workspace_files or changes.diff:
                done.workspace = changes.as_fields()
            return done

    def session(self, task: GatewayTask, attempt: OpenedAttempt, workspace: Path) -> AttemptSession:
        """The session of an attempt."""

        async def call(name: str, arguments: Mapping[str, Any]) -> str:
            reply = await self.post_resources(f"/{name}", dict(arguments), task.cookies)
            task.cookies = reply.cookies
            content: bytes = await reply.read()
            return content.decode(errors="replace")

        path = task.mcp_path()
        return AttemptSession(
            base_url=attempt.base_url,
            root_url=attempt.root_url,
            api_key=attempt.api_key,
            model=self.model_name,
            tools=SessionTools(call, list(task.row[RESPONSES_CREATE_PARAMS_KEY_NAME].get("tools") or ())),
            workspace=workspace,
            mcp_url=None if path is None else self.address_of(self.config.resources_server.name) + path,
        )

    def judge(self, work: Work, report: AttemptReport) -> Unscored | None:
        """Why the work is not scored: the endpoint failed last, we refused a request, or the function raised."""
        error = work.facts.get(_ERROR)
        crashed = Unscored(FailureClass.AGENT_CRASH, f"the function raised {error.splitlines()[-1]}") if error else None
        return judge_calls(report) or judge_refusals(report) or crashed


def session_agent(function: SessionFunction) -> type[SessionAgent]:
    """The agent server of a function."""

    async def solve(self: SessionAgent, task: Json, session: AttemptSession) -> Any:
        del self
        return await function(task, session)

    members = {"solve": solve, "__module__": __name__}
    return type(getattr(function, "__name__", "function"), (SessionAgent,), members)
