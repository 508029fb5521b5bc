"""Tiny random GGUF files beside the checkpoint folders that they must be read as."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from tests.cases.tokenizers import byte_level

_TEXT = [
    "the quick brown fox jumps over the lazy dog, and 12 of 345 dogs slept  on  6 mats.",
    "def add(first, second):\n    return first + second  # 2 numbers\n",
    "Anna, Bob and Carla don't pay $62.29; they'll pay 7 or 8. Überraschung: naïve café!",
]
HARD_TEXTS = [*_TEXT, "  6 12, 2026-11-22\n\n  x=1", "a<|im_end|>b", "   ", "déjà 二十 4"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 2.0**-17,  # the file says it as a float32
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_CONFIGS: dict[str, Any] = {
    "llama": (LlamaConfig, {"tie_word_embeddings": True}, gguf.MODEL_ARCH.LLAMA),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": False}, gguf.MODEL_ARCH.QWEN2),
    "qwen3": (Qwen3Config, {"tie_word_embeddings": True, "head_dim": 128}, gguf.MODEL_ARCH.QWEN3),
}


def tokenizer(cut: str = "smollm") -> Tokenizer:
    """A byte-level BPE that cuts as llama.cpp's `cut` does."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    pieces = level if cut == "gpt-2" else pre_tokenizers.Sequence([digits, level])
    return byte_level(_TEXT * 4, SPECIAL, vocab_size=384, cut=pieces)


def write_pair(
    root: Path,
    *,
    architecture: str = "llama",
    kind: Kind = Kind.F32,
    cut: str = "smollm",  # "sentencepiece": not a byte-level tokenizer
    dtype: torch.dtype = torch.float32,
    extra: dict[str, Any] | None = None,  # settings
    extra_tensor: str = "",
    llama3_factor: float = 0.0,
    tensors_a_part: int = 0,
) -> tuple[Path, Path]:
    """A GGUF file with matrices of type `kind`, and the folder with the weights it stands for; in
    parts of so many tensors it is the first part."""
    words = tokenizer("gpt-2" if cut == "sentencepiece" else cut)
    make, more, arch = _CONFIGS[architecture]
    if llama3_factor:
        more = {**more, "rope_parameters": llama3_rope(llama3_factor)}
    config = make(**{**_SIZES, **more, "vocab_size": words.get_vocab_size()})
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config).to(torch.float32)
    file = root / f"tiny-{architecture}-{kind.name}.gguf"
    writer = gguf.GGUFWriter(str(file), architecture, split_max_tensors=tensors_a_part)
    _add_settings(writer, config, architecture)
    if cut == "sentencepiece":
        _add_sentencepiece(writer, words.get_vocab_size())
    else:
        _add_tokenizer(writer, words, cut)
    for name, value in (extra or {}).items():
        writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
    if llama3_factor:
        writer.add_tensor("rope_freqs.weight", _llama3_table(llama3_factor))
    if extra_tensor:
        writer.add_tensor(extra_tensor, np.ones(16, np.float32))
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    state = model.state_dict()
    for name in sorted(state):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        base, _, suffix = name.rpartition(".")
        weight = state[name].numpy()
        stored = kind if weight.ndim == 2 else Kind.F32
        packed = gguf.quantize(weight, stored)
        read = torch.from_numpy(np.copy(gguf.dequantize(packed, stored)))
        state[name].copy_(read.reshape(weight.shape))
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        num_heads = heads.get(base.rpartition(".")[2])
        if architecture == "llama" and num_heads is not None:
            packed = _permuted(packed, num_heads)
        writer.add_tensor(f"{names.get_name(base)}.{suffix}", packed, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    folder = root / f"{file.stem}-folder"
    file = min(root.glob(f"{file.stem}-*-of-*.gguf"), default=file)
    model.to(dtype).save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    return file, folder


def llama3_rope(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def _llama3_table(factor: float, head_dim: int = 16) -> np.ndarray:
    """What rotary frequencies are divided by: waves longer than 8192 wholly, below 2048 not."""
    table = []
    for pair in range(head_dim // 2):
        wave = 2 * math.pi * 10000.0 ** (2 * pair / head_dim)
        share = (8192 / wave - 1.0) / (4.0 - 1.0)
        between = 1 / ((1 - share) / factor + share)
        table.append(1.0 if wave < 2048 else factor if wave > 8192 else between)
    assert len(set(table)) == 3
    return np.array(table, np.float32)


def _permuted(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of queries and keys as llama.cpp wants them: pairs that rotate side by side."""
    parted = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, rows.shape[1])
    return np.ascontiguousarray(parted.swapaxes(1, 2)).reshape(rows.shape)


def _add_settings(writer: gguf.GGUFWriter, config: LlamaConfig, architecture: str) -> None:
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    assert config.num_key_value_heads is not None
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    if architecture == "llama":
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)


def _add_tokenizer(writer: gguf.GGUFWriter, words: Tokenizer, cut: str) -> None:
    model = json.loads(words.to_str())["model"]
    by_id = sorted(model["vocab"].items(), key=lambda item: item[1])
    tokens = [token for token, _ in by_id]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL else normal for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


SENTENCEPIECE = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
SENTENCEPIECE += [
    *"\u2581acehinorst",
    "th",
    "the",
    "\u2581the",
    "\u2581c",
    "at",
    "\u2581cat",
    "\u2581on",
]


def _add_sentencepiece(writer: gguf.GGUFWriter, num_tokens: int) -> None:
    """As Llama 2 and Mistral have it: pieces with scores, bytes for what has no piece."""
    tokens = [*SENTENCEPIECE]
    tokens += [f"unused{number}" for number in range(num_tokens - len(tokens))]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256
    kinds += [gguf.TokenType.NORMAL] * (num_tokens - len(kinds))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(number) for number in range(num_tokens)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)
