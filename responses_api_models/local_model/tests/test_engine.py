"""Engines are planned for the machine, refuse files that are not models, and end when their process does."""

import asyncio
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from responses_api_models.local_model.engine import (
    EngineError,
    EnginePlan,
    _parameters,
    check_model,
    plan_engines,
    require_xllamacpp,
    start_engine,
)
from responses_api_models.local_model.engine_pool import EnginePool

MEGABYTE, GIGABYTE = 10**6, 10**9


def test_small_models_get_two_threads_at_most() -> None:
    plans = plan_engines(model_bytes=98 * MEGABYTE, slots=4, context=8192, cores=8)
    assert plans == [EnginePlan(slots=4, context=8192, threads=2)]


def test_large_models_get_all_cores() -> None:
    assert plan_engines(model_bytes=5 * GIGABYTE, slots=4, context=8192, cores=8) == [EnginePlan(4, 8192, 8)]


def test_a_single_core_gets_a_single_thread() -> None:
    assert plan_engines(model_bytes=MEGABYTE, slots=4, context=8192, cores=1) == [EnginePlan(4, 8192, 1)]


def test_slots_are_divided_without_loss() -> None:
    plans = plan_engines(model_bytes=MEGABYTE, slots=5, context=5000, cores=64, engines=3, threads=2)
    assert [plan.slots for plan in plans] == [2, 2, 1]
    assert {plan.context // plan.slots for plan in plans} == {1000}
    assert len(plan_engines(model_bytes=MEGABYTE, slots=1, context=100, cores=64, engines=3)) == 1


def test_layers_and_template_reach_the_engine(tmp_path: Path) -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    settings = {"gpu_layers": 3, "template": "{{ messages }}"}
    [plan] = plan_engines(model_bytes=MEGABYTE, slots=1, context=100, cores=1, **settings)  # type: ignore[arg-type]
    parameters = _parameters(xllamacpp, tmp_path / "x.gguf", plan, "key")
    assert (parameters.n_gpu_layers, parameters.chat_template) == (3, "{{ messages }}")
    plain = _parameters(xllamacpp, tmp_path / "x.gguf", EnginePlan(1, 100, 1), "key")
    assert (plain.n_gpu_layers, plain.chat_template) == (xllamacpp.CommonParams().n_gpu_layers, "")


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.gguf cannot be read: No such file"):
        check_model(tmp_path / "nothing.gguf")


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"something else")
    with pytest.raises(ConfigError, match="is not a GGUF file"):
        check_model(tmp_path / "model.safetensors")


def test_a_damaged_model_is_named(torn: Path) -> None:
    with pytest.raises(ConfigError, match=r"torn\.gguf cannot be loaded: it is damaged"):
        start_engine(torn, EnginePlan(1, 512, 1))


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ConfigError, match="xllamacpp") as caught:
        require_xllamacpp()
    assert caught.value.hint == "pip install 'rollout-gym[local]'"


async def test_a_pool_that_is_closed_ends_its_engines_and_can_start_anew(weights: Path) -> None:
    async def model() -> Path:
        return weights

    pool = EnginePool(model, lambda _: [EnginePlan(1, 512, 1)])
    await pool.load()
    engine = (await pool._current()).engines[0]
    prompt = await pool.tokenize("Hello")
    generating = asyncio.create_task(pool.generate(prompt, {"n_predict": 400, "ignore_eos": True}))
    await asyncio.sleep(0.2)
    await pool.close()
    with pytest.raises(EngineError, match="has ended"):
        await generating
    with pytest.raises(EngineError, match="has ended"):
        await engine.post("/tokenize", {"content": "Hello"})
    assert await pool.tokenize("Hello") == prompt
    await pool.close()


def run(program: str, weights: Path) -> "subprocess.Popen[str]":
    code = textwrap.dedent(program).replace("MODEL", repr(str(weights)))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


START = """
    import asyncio
    from pathlib import Path
    from responses_api_models.local_model.engine import EnginePlan
    from responses_api_models.local_model.engine_pool import EnginePool

    async def model():
        return Path(MODEL)

    pool = EnginePool(model, lambda path: [EnginePlan(1, 512, 1)])
"""


def test_a_process_ends_with_an_engine_that_was_never_asked(weights: Path) -> None:
    process = run(START + "    asyncio.run(pool.load())\n    print('loaded')", weights)
    out, err = process.communicate(timeout=120)
    assert (out, err, process.returncode) == ("loaded\n", "", 0)


def test_an_interrupt_ends_a_process_in_the_middle_of_a_generation(weights: Path) -> None:
    process = run(
        START
        + """
    async def main():
        await pool.load()
        print('loaded', flush=True)
        await pool.generate([1, 2, 3], {'n_predict': 400, 'ignore_eos': True})
        print('finished')

    asyncio.run(main())
    """,
        weights,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loaded\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert out == ""
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode != 0
