"""An environment in one file: tasks, tools and a verify function.

    letters = nemo_gym.Environment(tasks=[{"prompt": "How many r are in strawberry?", "expected": 3}])

    @letters.tool
    def spell(word: str) -> list[str]: ...

    @letters.verify
    def score(task, response): ...

An ``Environment`` only describes; ``server_class`` makes an ordinary resources server of it, with the same routes as
one written by hand. Functions may be sync (they run in threads) or async. A parameter named ``state`` receives what
``setup`` returned for the rollout, and one named ``task`` the rollout's task; the model sees neither.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, NotRequired, Required, TypeVar, get_type_hints

from fastapi import Body, FastAPI, Request, Response
from pydantic import ConfigDict, Field, PrivateAttr, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.errors import ConfigError
from nemo_gym.schemas.rows import RESPONSES_CREATE_PARAMS_KEY_NAME
from nemo_gym.servers.mcp_tools import AGENT_ROUTES
from nemo_gym.servers.middleware.sessions import SESSION_ID_KEY, SessionStates
from nemo_gym.servers.scoring import call_author, task_of, verify_handler

Task = Mapping[str, Any]
Function = TypeVar("Function", bound=Callable[..., Any])
Tasks = Iterable[Task] | Callable[[], Iterable[Task]]
Prompt = str | Callable[[Task], Any]

_PROMPT: Final = "prompt"
_GIVEN: Final = frozenset({"state", "task"})  # parameters of tools that the environment fills in


class _PlainSchema(GenerateJsonSchema):
    """JSON Schema without titles, which only repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call, and the type of its arguments."""

    name: str
    function: Callable[..., Any]
    arguments: Any  # a TypedDict, because the parameters of a function may have names that a model class can't have
    given: frozenset[str]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Tool":
        """Read the signature of a function."""
        name = function.__name__
        if name in AGENT_ROUTES or not name.isidentifier():
            raise ConfigError(f"a tool can't be called {name!r}", hint="rename it: that route has another meaning")
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
        fields = {each.name: _field(each, hints, name) for each in parameters.values() if each.name not in _GIVEN}
        make_typed_dict: Any = TypedDict  # which type checkers allow only with literals
        arguments = make_typed_dict(name, fields)
        arguments.__pydantic_config__ = ConfigDict(extra="forbid")
        tool = cls(name, function, arguments, _GIVEN & parameters.keys())
        try:
            tool.definition()
        except PydanticUserError as error:
            problem = str(error).partition("\n")[0].partition(". ")[0]
            raise ConfigError(
                f"tool {name}: {problem}", hint="annotate its parameters with types that JSON has"
            ) from None
        return tool

    def definition(self) -> dict[str, Any]:
        """The tool as a model request lists it."""
        schema = TypeAdapter(self.arguments).json_schema(schema_generator=_PlainSchema)
        schema.pop("title", None)
        about = inspect.getdoc(self.function)
        described = {"description": about} if about else {}
        return {"type": "function", "name": self.name, **described, "parameters": schema}


def _field(parameter: inspect.Parameter, hints: Mapping[str, Any], tool: str) -> Any:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise ConfigError(f"tool {tool}: a model can't name the parameter {parameter}", hint="give it a plain name")
    kind = hints.get(parameter.name, Any)
    if parameter.default is parameter.empty:
        return Required[kind]
    return NotRequired[Annotated[kind, Field(json_schema_extra={"default": to_jsonable_python(parameter.default)})]]


class Environment:
    """Tasks, tools and a verify function.

    ``tasks``     dictionaries, or a function that returns or yields them. ``prompt`` is the input of the model: text,
                  or a list of messages. All other fields are the author's.
    ``prompt``    for tasks without such a field: a template (``"Question: {question}"``), or a function of the task.
    ``system``    a system message in front of every prompt.
    ``agent``     the folder of the agent that works on the tasks.
    ``max_steps`` how many model calls a rollout may take.
    """

    def __init__(
        self,
        tasks: Tasks = (),
        *,
        name: str = "",
        prompt: Prompt | None = None,
        system: str | None = None,
        agent: str = "simple_agent",
        max_steps: int | None = None,
    ) -> None:
        self.name = name
        self.agent = agent
        self.max_steps = max_steps
        self.tools: dict[str, Tool] = {}
        self.file = _file_of_caller()
        self._tasks = tasks
        self._prompt = prompt
        self._system = system
        self.setup_function: Callable[..., Any] | None = None
        self.verify_function: Callable[..., Any] | None = None
        self.metrics_function: Callable[..., Any] | None = None
        self.attacks: dict[str, Callable[..., Any]] = {}
        self.known_holes: dict[str, str] = {}  # why an attack may get a reward, by its name or a pattern

    # ---- decorators --------------------------------------------------------------------------------------------------
    def tool(self, function: Function) -> Function:
        """Offer a function to the model. Its type hints become the schema, its docstring the description."""
        tool = Tool.of(function)
        self.tools[tool.name] = tool
        return function

    def setup(self, function: Function) -> Function:
        """Make the state of each rollout: ``setup(task)`` or ``setup()``."""
        _refuse_unless_callable(function, "setup", "(task)", at_most=1)
        self.setup_function = function
        return function

    def verify(self, function: Function) -> Function:
        """Score a rollout: ``verify(task, response)`` or ``verify(task, response, state)``.

        It returns the reward, or a dictionary with the reward and further fields, of which numbers are averaged.
        """
        self.verify_function = function
        return function

    def metrics(self, function: Function) -> Function:
        """Compute metrics of all rollouts, given the rollouts of each task as lists of dictionaries."""
        _refuse_unless_callable(function, "metrics", "(tasks)", at_least=1, at_most=1)
        self.metrics_function = function
        return function

    def attack(self, function: Function) -> Function:
        """Try to get a reward for nothing: ``attack(sight)`` returns texts, or items, that must not be rewarded.

        ``ng_check_environment <file> +attack=true`` plays them. ``sight.prompt`` is what an agent is asked, and
        ``sight.tools`` are the tools that it has.
        """
        self.attacks[function.__name__] = function
        return function

    # ---- what the servers use ----------------------------------------------------------------------------------------
    def rows(self, tasks: Tasks | None = None) -> Iterator[dict[str, Any]]:
        """The rows of a task file, for these tasks or for the environment's own."""
        chosen = self._tasks if tasks is None else tasks
        definitions = [tool.definition() for tool in self.tools.values()]
        for number, task in enumerate(chosen() if callable(chosen) else chosen, start=1):
            if not isinstance(task, Mapping):
                raise ConfigError(
                    f"task {number} is not a dictionary but {type(task).__name__}: {task!r:.100}",
                    hint="give dictionaries: one split of a dataset with several, table.to_dict('records') of pandas",
                )
            yield self._row(task, definitions, number)

    def _row(self, task: Task, tools: list[dict[str, Any]], number: int) -> dict[str, Any]:
        params = dict(task.get(RESPONSES_CREATE_PARAMS_KEY_NAME) or {})
        if "input" not in params:
            params["input"] = self._input(task, number)
        if tools:
            params.setdefault("tools", tools)
        return {**task, RESPONSES_CREATE_PARAMS_KEY_NAME: params}

    def _input(self, task: Task, number: int) -> list[Any]:
        try:
            given = task[_PROMPT] if self._prompt is None else _filled(self._prompt, task)
        except KeyError as error:
            raise ConfigError(
                f"task {number} has no field {error}; its fields are: {', '.join(map(str, task))}",
                hint="give every task a prompt, or say how to make one: Environment(prompt='{question}')",
            ) from None
        messages = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        return [{"role": "system", "content": self._system}, *messages] if self._system else messages

    def server_class(self) -> type["EnvironmentServer"]:
        """A resources server with this environment's tools and verify function."""
        if self.verify_function is None:
            raise ConfigError(
                f"the environment {self.name or ''} has no verify function".replace("  ", " "),
                hint="decorate a function with @<environment>.verify; it takes (task, response) and returns the reward",
            )
        own = {"environment": self, "attacks": self.attacks, "known_holes": self.known_holes, "code": self.file}
        return type("EnvironmentServer", (EnvironmentServer,), own | {"__module__": __name__})

    async def seeded(self, task: Task) -> Any:
        """The state of a new rollout."""
        if self.setup_function is None:
            return None
        parameters = _signature(self.setup_function).parameters.values()
        takes_task = any(each.default is each.empty or each.name == "task" for each in parameters)
        return await call_author(self.setup_function, *([task] if takes_task else []))

    @property
    def is_stateful(self) -> bool:
        """Whether rollouts have a state that tools and verify share."""
        return self.setup_function is not None

    @property
    def needs_session(self) -> bool:
        """Whether a rollout must be remembered between its calls."""
        return self.is_stateful or any(tool.given for tool in self.tools.values())


@dataclass(slots=True)
class _RolloutState:
    task: dict[str, Any]
    state: Any


class EnvironmentServerConfig(BaseResourcesServerConfig):
    """``file`` is where the environment is defined, for the processes that have to load it."""

    file: str | None = None


class EnvironmentServer(SimpleResourcesServer):
    """The resources server of an ``Environment``."""

    code: ClassVar[Path | None]  # the file of the environment
    environment: ClassVar[Environment]
    config: EnvironmentServerConfig
    _states: SessionStates[_RolloutState] = PrivateAttr(default_factory=SessionStates)
    _own_metrics: list[str] = PrivateAttr(default_factory=list)  # names of the author's metrics

    def setup_webserver(self) -> FastAPI:
        """Add a route for each tool to the standard ones."""
        if self.environment.needs_session and (self.config.num_workers or 1) > 1:
            raise ConfigError(
                f"{self.config.name}: num_workers would spread the calls of a rollout over processes that do not share"
                " its state",
                hint="leave out num_workers; +workers=… uses all cores, because each worker has the whole environment",
            )
        app = super().setup_webserver()
        for tool in self.environment.tools.values():
            app.post(f"/{tool.name}", description=inspect.getdoc(tool.function) or "")(self._route(tool))
        return app

    async def seed_session(self, request: Request, body: dict[str, Any]) -> BaseSeedSessionResponse:  # type: ignore[override]
        """Make the state of the rollout."""
        if self.environment.needs_session:
            task = task_of(body)
            state = _RolloutState(task, await self.environment.seeded(task))
            self._states[request.session[SESSION_ID_KEY]] = state
        return BaseSeedSessionResponse()

    @property
    def verify(self) -> Callable[..., Any]:
        """The author's function as a handler."""
        environment = self.environment
        assert environment.verify_function is not None
        return verify_handler(
            environment.verify_function,
            owner=f"environment {self.config.name}",
            body=None,
            state_of=self._take_state if environment.is_stateful else None,
        )

    async def get_reverify_mode(self) -> ReverifyMode:
        """Saved rollouts can be scored again unless their score depends on a state that is gone."""
        return ReverifyMode.UNSUPPORTED if self.environment.is_stateful else ReverifyMode.STATELESS

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """Compute the author's metrics, if there are any."""
        author = self.environment.metrics_function
        found = dict(author(tasks)) if author is not None else super().compute_metrics(tasks)
        self._own_metrics = [name for name, value in found.items() if isinstance(value, int | float | str)]
        return found

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        """The means, and what the author computed."""
        own = {name: agent_metrics[name] for name in self._own_metrics if name in agent_metrics}
        return super().get_key_metrics(agent_metrics) | own

    def _take_state(self, request: Request) -> Any:
        found = self._states.pop(request.session[SESSION_ID_KEY], None)
        if found is None:
            raise LookupError("this rollout has no state: its session was never seeded, or was verified before")
        return found.state

    def _route(self, tool: Tool) -> Callable[..., Any]:
        async def call_tool(request: Request, body: dict[str, Any] = Body()) -> Any:
            given: dict[str, Any] = {}
            if tool.given:
                found = self._states[request.session[SESSION_ID_KEY]]
                given = {name: getattr(found, name) for name in tool.given}
            result = await call_author(tool.function, **body, **given)
            # Text reaches the model as it is, not as a JSON string in quotes.
            return Response(result, media_type="text/plain") if isinstance(result, str) else result

        call_tool.__annotations__["body"] = tool.arguments  # the route takes the type of its body from here
        return call_tool


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature; an empty one for types such as ``dict``, which have none and can be called without arguments."""
    try:
        return inspect.signature(function)
    except ValueError:
        return inspect.Signature()


def _refuse_unless_callable(
    function: Callable[..., Any], kind: str, form: str, *, at_least: int = 0, at_most: int
) -> None:
    """Refuse a function that can't be called with so many values, before a rollout is paid for that needs it."""
    signature = _signature(function)
    for number in range(at_least, at_most + 1):
        with suppress(TypeError):
            signature.bind(*[None] * number)
            return
    raise ConfigError(f"{kind}: {function.__name__}{signature} can't be called", hint=f"write it with {form}")


def _filled(prompt: Prompt, task: Task) -> Any:
    return prompt.format_map(task) if isinstance(prompt, str) else prompt(task)


def _file_of_caller() -> Path | None:
    """The file in which an environment is being defined; None in a notebook or at a prompt."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame.f_back if frame is not None else None
    path = Path(frame.f_globals.get("__file__") or "") if frame is not None else Path()
    return path.resolve() if path.suffix == ".py" and path.is_file() else None
