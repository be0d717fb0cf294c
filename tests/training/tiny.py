"""Random models of a few thousand weights as GGUF files, with a real tokenizer, that the real engine can run."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

WIDTH, LAYERS, HEADS, KV_HEADS, INNER, CONTEXT = 64, 2, 4, 2, 128, 512
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_gguf(path: Path, architecture: str = "llama", *, seed: int = 0, tied: bool = True) -> Path:
    """Write a model in 32 bits, in the order and with the names of llama.cpp."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if architecture == "llama":
        writer.add_rope_dimension_count(WIDTH // HEADS)
    else:
        writer.add_key_length(WIDTH // HEADS)
        writer.add_value_length(WIDTH // HEADS)
    vocabulary = _add_tokenizer(writer)
    for name, values in _tensors(architecture, vocabulary, seed, tied=tied):
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter) -> int:
    tokens = [*SPECIAL, *_byte_letters(), "Ġt", "Ġa"]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control] * len(SPECIAL) + [normal] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["Ġ t", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    return len(tokens)


def _byte_letters() -> list[str]:
    """One printable letter for each byte, as GPT-2 writes them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def _tensors(architecture: str, vocabulary: int, seed: int, *, tied: bool) -> list[tuple[str, Any]]:
    random = np.random.default_rng(seed)
    narrow = WIDTH // HEADS * KV_HEADS
    found = [("token_embd.weight", random.normal(0, 0.3, (vocabulary, WIDTH)))]
    for n in range(LAYERS):
        shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (narrow, WIDTH), "attn_v": (narrow, WIDTH)}
        shapes |= {"attn_output": (WIDTH, WIDTH), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH)}
        shapes |= {"ffn_down": (WIDTH, INNER)}
        found += [(f"blk.{n}.{name}.weight", random.normal(0, 0.2, shape)) for name, shape in shapes.items()]
        found += [(f"blk.{n}.{name}.weight", random.uniform(0.5, 1.5, WIDTH)) for name in ("attn_norm", "ffn_norm")]
        if architecture == "qwen2":
            biases = {"attn_q": WIDTH, "attn_k": narrow, "attn_v": narrow}
            found += [(f"blk.{n}.{name}.bias", random.normal(0, 0.2, size)) for name, size in biases.items()]
        if architecture == "qwen3":
            norms = ("attn_q_norm", "attn_k_norm")
            found += [(f"blk.{n}.{name}.weight", random.uniform(0.5, 1.5, WIDTH // HEADS)) for name in norms]
    found.append(("output_norm.weight", random.uniform(0.5, 1.5, WIDTH)))
    if not tied:
        found.append(("output.weight", random.normal(0, 0.3, (vocabulary, WIDTH))))
    return found
