"""Converts weights in both directions between GGUF, which the embedded engine runs, and transformers.

A model written here and read back has the same logits up to the precision of the chosen type. The two formats differ
in the names of tensors; in the order of the rows of q and k in the llama family (llama.cpp rotates neighbours 2i and
2i+1, transformers i and i + d/2); in output embeddings, which GGUF omits when they equal the input embeddings; and in
quantised blocks. A written file takes its metadata, tokenizer and chat template from the file that the model came from.
It is written beside its destination and renamed, so it is either complete or absent.
"""

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from nemo_gym.errors import ConfigError

Precision = Literal["Q8_0", "F16", "F32"]
Array = np.ndarray[Any, Any]

# Architectures whose tensors map one to one, with whether their rotary pairs are neighbours in GGUF.
PAIRS_ARE_NEIGHBOURS: Final = {"llama": True, "qwen2": False, "qwen3": False}
FILE_TYPES: Final = {
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "F32": gguf.LlamaFileType.ALL_F32,
}
SUFFIXES: Final = (".weight", ".bias")
EMBEDDINGS: Final = "token_embd.weight"
HEAD: Final = "output.weight"
SPECIAL_TOKENS: Final = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
# The writer sets these itself.
OWN_FIELDS: Final = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


@dataclass(frozen=True, slots=True)
class _Shape:
    """The properties of a model that the conversion needs."""

    architecture: str
    layers: int
    heads: int
    kv_heads: int

    def heads_of(self, name: str) -> int | None:
        """The number of heads whose rows have to be reordered in this tensor; None if it stays as it is."""
        if not PAIRS_ARE_NEIGHBOURS[self.architecture]:
            return None
        return {"attn_q": self.heads, "attn_k": self.kv_heads}.get(name.split(".")[-2])

    def names(self) -> gguf.TensorNameMap:
        """The names of this architecture's tensors, from transformers' to GGUF's."""
        return _names(self.architecture, self.layers)


def load_model(path: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32) -> Any:
    """The model of a GGUF file as a transformers model, in evaluation mode; quantised weights are expanded."""
    reader = _open(Path(path))
    shape = _shape(reader, Path(path))
    with torch.device("meta"):  # without memory for weights that are replaced at once
        model = AutoModelForCausalLM.from_config(_config(reader, shape))
    names = {_gguf_name(shape, name): name for name in model.state_dict()}
    state = {}
    for tensor in reader.tensors:
        if tensor.name not in names:
            raise ConfigError(
                f"{path}: tensor {tensor.name} has no place in a {shape.architecture} model of transformers",
                hint="rotary scaling and adapters inside a file are not supported: convert it with llama.cpp's tools",
            )
        state[names[tensor.name]] = _to_torch(tensor, shape).to(dtype)
    if HEAD not in (tensor.name for tensor in reader.tensors):
        state["lm_head.weight"] = state[names[EMBEDDINGS]]
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    _fill_buffers(model, _config(reader, shape))
    return model.eval()


def load_tokenizer(path: str | os.PathLike[str]) -> Any:
    """The tokenizer of a GGUF file, with its chat template.

    It is meant for reading what was generated. Training uses the ids that the engine reports and needs no tokenizer.
    """
    file = Path(path)
    reader = _open(file)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # Some versions of transformers take the first token of a sequence for its last one.
    for name, key in SPECIAL_TOKENS.items():
        if (token := _value(reader, f"tokenizer.ggml.{key}_token_id")) is not None:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(int(token)))
    return tokenizer


def write_gguf(
    model: Any, path: str | os.PathLike[str], *, like: str | os.PathLike[str], precision: Precision = "Q8_0"
) -> Path:
    """Write a transformers model as GGUF, with the metadata and the tokenizer of ``like``.

    Matrices get the given precision, norms and biases stay in 32 bits.
    """
    source, target = _open(Path(like)), Path(path)
    shape = _shape(source, Path(like))
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    writer = gguf.GGUFWriter(part, shape.architecture)
    try:
        _copy_metadata(source, writer)
        writer.add_file_type(FILE_TYPES[precision])
        if precision == "Q8_0":
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        expected = {tensor.name: tuple(reversed(tensor.shape.tolist())) for tensor in source.tensors}
        for name, values in _tensors(model, shape):
            _check_shape(name, values.shape, expected.get(name), Path(like))
            _add_tensor(writer, name, values, precision)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with part.open("rb") as file:
            os.fsync(file.fileno())
        return part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@functools.lru_cache(maxsize=8)
def _names(architecture: str, layers: int) -> gguf.TensorNameMap:
    known = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    return gguf.get_tensor_name_map(known[architecture], layers)


# ---- reading ---------------------------------------------------------------------------------------------------------
def _open(path: Path) -> gguf.GGUFReader:
    try:
        return gguf.GGUFReader(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="name a GGUF file") from error
    except (ValueError, IndexError) as error:
        raise ConfigError(f"{path} is not a GGUF file ({error})", hint="name a GGUF file, or fetch it again") from error


def _value(reader: gguf.GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.fields.get(key)
    return default if field is None else field.contents()


def _shape(reader: gguf.GGUFReader, path: Path) -> _Shape:
    architecture = _value(reader, "general.architecture")
    if architecture not in PAIRS_ARE_NEIGHBOURS:
        raise ConfigError(
            f"{path} holds a model of the architecture {architecture!r}",
            hint=f"supported are {', '.join(PAIRS_ARE_NEIGHBOURS)}; others: llama.cpp's convert_hf_to_gguf.py",
        )
    heads = _value(reader, f"{architecture}.attention.head_count")
    return _Shape(
        architecture=architecture,
        layers=_value(reader, f"{architecture}.block_count"),
        heads=heads,
        kv_heads=_value(reader, f"{architecture}.attention.head_count_kv", heads),
    )


def _config(reader: gguf.GGUFReader, shape: _Shape) -> Any:
    prefix = shape.architecture
    scaling = _value(reader, f"{prefix}.rope.scaling.type", "none")
    if scaling != "none":
        raise ConfigError(f"rotary scaling {scaling!r} is not supported", hint="use a model without it")
    width = _value(reader, f"{prefix}.embedding_length")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    return AutoConfig.for_model(
        prefix,
        vocab_size=int(tensors[EMBEDDINGS].shape[1]),
        hidden_size=width,
        intermediate_size=_value(reader, f"{prefix}.feed_forward_length"),
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=_value(reader, f"{prefix}.attention.key_length", width // shape.heads),
        max_position_embeddings=_value(reader, f"{prefix}.context_length"),
        rms_norm_eps=float(_value(reader, f"{prefix}.attention.layer_norm_rms_epsilon")),
        rope_parameters={"rope_type": "default", "rope_theta": _value(reader, f"{prefix}.rope.freq_base", 10_000.0)},
        tie_word_embeddings=HEAD not in tensors,
        bos_token_id=_value(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_value(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_value(reader, "tokenizer.ggml.padding_token_id"),
    )


def _to_torch(tensor: gguf.ReaderTensor, shape: _Shape) -> torch.Tensor:
    values = gguf.dequantize(tensor.data, tensor.tensor_type)
    heads = shape.heads_of(tensor.name)
    if heads is not None:
        values = to_halves(values, heads)
    return torch.from_numpy(np.array(values, dtype=np.float32))


def _fill_buffers(model: Any, config: Any) -> None:
    """Fill in what the file does not contain (the rotary frequencies), taken from a newly built small model."""
    # A model on the meta device has no values in its buffers either. They depend on the width, not on the layers.
    config.num_hidden_layers, config.vocab_size, config.pad_token_id = 0, 1, None
    for name, values in AutoModelForCausalLM.from_config(config).named_buffers():
        owner, _, attribute = name.rpartition(".")
        model.get_submodule(owner).register_buffer(attribute, values, persistent=False)


# ---- writing ---------------------------------------------------------------------------------------------------------
def _gguf_name(shape: _Shape, name: str) -> str:
    found: str | None = shape.names().get_name(name, try_suffixes=SUFFIXES)
    if found is None:
        raise ConfigError(
            f"{name} has no place in a GGUF file of the architecture {shape.architecture}",
            hint="merge adapters into the model first (peft: merge_and_unload)",
        )
    return found


def _tensors(model: Any, shape: _Shape) -> Iterator[tuple[str, Array]]:
    for name, tensor in model.state_dict().items():
        target = _gguf_name(shape, name)
        if target == HEAD and model.config.tie_word_embeddings:
            continue
        values = tensor.detach().to("cpu", torch.float32).numpy()
        heads = shape.heads_of(target)
        yield target, values if heads is None else to_neighbours(values, heads)


def _copy_metadata(source: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for key, field in source.fields.items():
        if key.startswith(OWN_FIELDS):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, sub_type=inner)


def _check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...] | None, like: Path) -> None:
    """Refuse a model of another size, because the metadata of ``like`` would not describe it."""
    if shape != expected:
        raise ConfigError(
            f"{name} has the shape {shape}, in {like} it is {expected}",
            hint="name the GGUF file that the model was loaded from, or one of the same model",
        )


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: Array, precision: Precision) -> None:
    kind = gguf.GGMLQuantizationType[precision]
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    if values.ndim == 1:
        kind = gguf.GGMLQuantizationType.F32
    elif values.shape[-1] % block:  # quantised types store rows in blocks
        kind = gguf.GGMLQuantizationType.F16
    packed = gguf.quantize(np.ascontiguousarray(values, dtype=np.float32), kind)
    writer.add_tensor(name, packed, raw_dtype=kind)


# ---- rotary pairs ----------------------------------------------------------------------------------------------------
def to_neighbours(values: Array, heads: int) -> Array:
    """Reorder rows for llama.cpp: pairs that rotate together (i, i + d/2) become neighbours (2i, 2i + 1)."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def to_halves(values: Array, heads: int) -> Array:
    """Reorder rows for transformers; the inverse of ``to_neighbours``."""
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)
