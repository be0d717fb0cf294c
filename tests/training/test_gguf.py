"""Weights between GGUF and transformers, judged by what the engine and torch make of them."""

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra train")
pytest.importorskip("gguf", reason="needs the extra train")
pytest.importorskip("torch", reason="needs the extra train")

import gguf
import torch

from nemo_gym.errors import ConfigError
from nemo_gym.training.gguf import load_model, load_tokenizer, to_halves, to_neighbours, write_gguf
from responses_api_models.local_model.engine import EnginePlan, start_engine
from responses_api_models.local_model.weights import SMOLLM2, cache_folder, ensure_weights
from tests.training.tiny import tiny_gguf

PROMPT = [1, 84, 85, 86, 200, 40, 41, 42, 7, 9]


async def engine_log_probs(path: Path, prompt: list[int], *, top: int = 10_000) -> dict[int, float]:
    """The engine's log-probability of every token after a prompt."""
    engine = await asyncio.to_thread(start_engine, path, EnginePlan(1, 512, 1))
    try:
        # Scores are listed for text that is complete; the grammar limits what is written, not what is listed.
        body = {"prompt": prompt, "n_predict": 1, "n_probs": top, "grammar": "root ::= [a-z]"}
        answer = await engine.post("/completion", body)
    finally:
        await engine.close()
    return {one["id"]: one["logprob"] for one in answer["completion_probabilities"][0]["top_logprobs"]}


def torch_log_probs(model: Any, prompt: list[int]) -> Any:
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1].float(), -1)


def test_rows_are_reordered_and_back() -> None:
    rows = np.arange(2 * 8 * 3).reshape(16, 3)
    assert to_neighbours(rows, 2)[:8, 0].tolist() == [0, 12, 3, 15, 6, 18, 9, 21]
    assert (to_halves(to_neighbours(rows, 2), 2) == rows).all()


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
async def test_torch_and_the_engine_agree_about_a_file(architecture: str, tied: bool, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "model.gguf", architecture, tied=tied)
    engine = await engine_log_probs(path, PROMPT)
    ours = torch_log_probs(load_model(path), PROMPT)
    assert len(engine) == len(ours)
    assert max(abs(ours[token].item() - score) for token, score in engine.items()) < 0.02


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
async def test_the_engine_reads_what_torch_wrote(architecture: str, tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path / "model.gguf", architecture)
    model = load_model(source)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    ours = torch_log_probs(model, PROMPT)
    written = write_gguf(model, tmp_path / "changed.gguf", like=source, precision="F32")
    engine = await engine_log_probs(written, PROMPT)
    assert max(abs(ours[token].item() - score) for token, score in engine.items()) < 0.02


@pytest.mark.parametrize(("precision", "error"), [("F32", 0.0), ("F16", 0.001), ("Q8_0", 0.004)])
def test_what_is_written_comes_back(tiny_model: Path, tmp_path: Path, precision: Any, error: float) -> None:
    model = load_model(tiny_model)
    again = load_model(write_gguf(model, tmp_path / "again.gguf", like=tiny_model, precision=precision))
    for name, values in model.state_dict().items():
        assert (values - again.state_dict()[name]).abs().max() <= error * values.abs().max(), name
    fields = [gguf.GGUFReader(path).fields for path in (tiny_model, tmp_path / "again.gguf")]
    kept = [{key: field.contents() for key, field in one.items() if key.startswith("tokenizer")} for one in fields]
    assert kept[0] == kept[1]
    assert [path.name for path in tmp_path.iterdir()] == ["again.gguf"]


def test_a_tied_model_stays_tied(tiny_model: Path, tmp_path: Path) -> None:
    model = load_model(tiny_model)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    written = write_gguf(model, tmp_path / "again.gguf", like=tiny_model)
    assert "output.weight" not in {tensor.name for tensor in gguf.GGUFReader(written).tensors}


def test_the_tokenizer_comes_along(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(tiny_model)
    ids = tokenizer("to a tea")["input_ids"]
    assert tokenizer.decode(ids) == "to a tea"
    assert tokenizer.eos_token == "<|im_end|>"
    assert "im_start" in tokenizer.chat_template


@pytest.mark.parametrize("content", [b"", b"not a model", b"GGUF" + bytes(40)], ids=["empty", "text", "torn"])
def test_files_that_are_not_models_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ConfigError):
        load_model(tmp_path / "x.gguf")


def test_a_missing_file_and_an_unknown_architecture_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model(tmp_path / "none.gguf")
    with pytest.raises(ConfigError, match="architecture 'gpt2'"):
        load_model(tiny_gguf(tmp_path / "other.gguf", "gpt2"))


def test_a_model_of_another_shape_is_refused_and_nothing_is_left(tiny_model: Path, tmp_path: Path) -> None:
    model = load_model(tiny_model)
    model.resize_token_embeddings(300)
    with pytest.raises(ConfigError, match=r"token_embd.weight has the shape \(300, 64\)"):
        write_gguf(model, tmp_path / "x.gguf", like=tiny_model)
    assert not list(tmp_path.iterdir())


async def test_the_embedded_model_says_the_same_in_torch(tmp_path: Path) -> None:
    """The engine also quantises what flows through the model, so the two differ by a little."""
    path = await ensure_weights(SMOLLM2, cache_folder(os.environ))
    prompt = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 30, 2, 198, 1, 4093, 198, 19556, 30]
    model = load_model(path)
    ours = torch_log_probs(model, prompt)
    engine = await engine_log_probs(path, prompt, top=50)
    weights = torch.tensor(list(engine.values())).exp()
    differences = torch.tensor([abs(ours[token].item() - score) for token, score in engine.items()])
    assert (weights * differences).sum() / weights.sum() < 0.1
    assert ours.argmax().item() == max(engine, key=engine.__getitem__)
    written = write_gguf(model, tmp_path / "again.gguf", like=path)
    back = torch_log_probs(load_model(written), prompt)
    assert (ours.exp() * (ours - back)).sum() < 0.01  # Kullback-Leibler
