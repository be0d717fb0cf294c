"""One llama.cpp engine inside this process, and the plan of how many there are.

``xllamacpp`` runs the engine in threads of its own and serves it on a loopback port, which is what we use: waiting for
a socket does not block the event loop, and closing one ends a generation whose result is no longer needed. The port is
protected by a key that only this process knows.
"""

import asyncio
import contextlib
import http.client
import importlib
import importlib.util
import os
import secrets
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import aiohttp
import orjson

from nemo_gym.errors import ConfigError

# Below this size a step is so quick that more than two threads would mostly wait for each other.
SMALL_MODEL_BYTES: Final = 1_000_000_000
SMALL_MODEL_THREADS: Final = 2
BATCH: Final = 128
GGUF_MAGIC: Final = b"GGUF"


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """How one engine is set up: concurrent conversations, tokens of context for all of them together, threads."""

    slots: int
    context: int
    threads: int
    gpu_layers: int | None = None  # None: as many as fit, if there is a GPU
    template: str = ""  # instead of the model's own


def plan_engines(
    *,
    model_bytes: int,
    slots: int,
    context: int,
    cores: int,
    engines: int = 1,
    threads: int | None = None,
    gpu_layers: int | None = None,
    template: str = "",
) -> list[EnginePlan]:
    """Divide slots and context among engines.

    One engine computes the next tokens of all its conversations together, which costs less than several engines do.
    """
    engines = min(engines, slots)
    if threads is None:
        most = SMALL_MODEL_THREADS if model_bytes < SMALL_MODEL_BYTES else cores
        threads = max(1, min(most, cores) // engines)
    shares = [slots // engines + (number < slots % engines) for number in range(engines)]
    return [EnginePlan(share, context // slots * share, threads, gpu_layers, template) for share in shares]


class EngineError(Exception):
    """The engine refused a request; ``status`` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(eq=False)
class Engine:
    """A running engine."""

    url: str
    key: str = field(repr=False)
    context: int  # of one slot
    eos_token: str
    slots: int
    template: str = field(default="", repr=False)
    end: Callable[[], object] = field(default=lambda: None, repr=False)
    _asking: set[aiohttp.ClientSession] = field(default_factory=set, repr=False)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a request to the engine. Cancelling it stops the engine's work on it."""
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=None)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                self._listed(session),
                session.post(self.url + path, data=orjson.dumps(body), headers=headers) as response,
            ):
                content = await response.read()
        except aiohttp.ClientError as error:
            raise EngineError(503, f"the engine has ended ({error})") from error
        return _read_reply(response.status, content)

    async def close(self) -> None:
        """End the engine. It would wait for its open requests, so their connections are closed first."""
        for session in list(self._asking):
            await session.close()
        await asyncio.to_thread(self.end)

    @contextlib.asynccontextmanager
    async def _listed(self, session: aiohttp.ClientSession) -> AsyncIterator[None]:
        self._asking.add(session)
        try:
            yield
        finally:
            self._asking.discard(session)


def _read_reply(status: int, content: bytes) -> Any:
    try:
        reply = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise EngineError(status, content.decode(errors="replace")[:500] or "no reply") from None
    if status != 200:
        raise EngineError(status, str(reply.get("error", {}).get("message", reply)))
    return reply


def start_engine(model: Path, plan: EnginePlan) -> Engine:
    """Load the model and wait until the engine replies. Blocks."""
    check_model(model)
    xllamacpp = _import_xllamacpp()
    _read_ahead(model)
    key = secrets.token_urlsafe(32)
    try:
        server = xllamacpp.Server(_parameters(xllamacpp, model, plan, key))
    except RuntimeError as error:
        raise ConfigError(
            f"{model} cannot be loaded: it is damaged, or xllamacpp {xllamacpp.__version__} does not support it",
            hint="download the file again; the embedded model is downloaded again if you delete it",
        ) from error
    # An engine without any request cannot be ended, because its loop may not have started. So send it one.
    _get(server.listening_address, "/slots", key)
    properties = _get(server.listening_address, "/props", key)
    engine = Engine(
        url=server.listening_address,
        key=key,
        context=properties["default_generation_settings"]["n_ctx"],
        eos_token=properties["eos_token"],
        slots=plan.slots,
        template=properties.get("chat_template") or "",
    )
    # Ended at exit at the latest, or its threads might outlive the interpreter.
    holder = [server]
    engine.end = weakref.finalize(engine, holder.clear)
    return engine


def _read_ahead(model: Path) -> None:
    """Read the file into the system's cache now, because the engine's constructor holds the interpreter's lock."""
    if model.stat().st_size < SMALL_MODEL_BYTES:
        with model.open("rb", buffering=0) as file:
            block = bytearray(1 << 22)
            while file.readinto(block):
                pass


def check_model(model: Path) -> None:
    """Report what is wrong with a model file, as far as that can be seen without loading it."""
    try:
        with model.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ConfigError(
            f"model_path: {model} cannot be read: {error.strerror}", hint="name a GGUF file, or leave model_path out"
        ) from error
    if magic != GGUF_MAGIC:
        raise ConfigError(
            f"model_path: {model} is not a GGUF file",
            hint="use a file that ends in .gguf; other formats can be converted with llama.cpp's tools",
        )


def require_xllamacpp() -> None:
    """Report what to install if a package of the extra ``local`` is missing."""
    for name in ("xllamacpp", "llguidance"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"the local model needs the package {name}", hint="pip install 'rollout-gym[local]'")


def _import_xllamacpp() -> ModuleType:
    require_xllamacpp()
    with _patient_threads():
        return importlib.import_module("xllamacpp")  # 100 MB of code that only a first request needs


@contextlib.contextmanager
def _patient_threads() -> Iterator[None]:
    """Let threads of an engine sleep while they wait. OpenMP reads this setting once, when it is loaded."""
    name = "OMP_WAIT_POLICY"
    if name in os.environ or "xllamacpp" in sys.modules:
        yield
        return
    os.environ[name] = "PASSIVE"
    try:
        yield
    finally:
        del os.environ[name]


def _parameters(xllamacpp: ModuleType, model: Path, plan: EnginePlan, key: str) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.n_parallel = plan.slots
    parameters.n_ctx = plan.context
    parameters.n_batch = parameters.n_ubatch = BATCH
    if plan.gpu_layers is not None:
        parameters.n_gpu_layers = plan.gpu_layers
    if plan.template:
        parameters.chat_template = plan.template
    for threads in (parameters.cpuparams, parameters.cpuparams_batch):
        threads.n_threads = plan.threads
        threads.poll = 0
        threads.priority = xllamacpp.ggml_sched_priority.GGML_SCHED_PRIO_LOW  # the event loop goes first
    parameters.api_keys = [key]
    parameters.n_threads_http = plan.slots + 2
    parameters.prefill_assistant = (
        False  # a completion at the end of a conversation is complete and must not be continued
    )
    parameters.cache_ram_mib = 0
    parameters.fit_params = False  # would read the model twice
    parameters.warmup = False
    parameters.ui = False
    parameters.verbosity = 0
    return parameters


def _get(url: str, path: str, key: str) -> Any:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
        return orjson.loads(connection.getresponse().read())
