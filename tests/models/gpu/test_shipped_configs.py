"""Every shipped GPU config finds a paged kernel and fits on the card that it names.

What stands in for the kernels refuses what the real ones refuse: FlashAttention 2, which torch
brings, pages that are no multiple of 256 and a pass without cumulative key counts;
FlashAttention 3 the opposite. (Read in torch 2.13; `test_varlen_kernel` checks its signature.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig, Qwen2Config

from deployments.config.serve_file import read_serve_file
from models.checkpoint.memory_estimate import memory_estimate
from models.config import EngineConfig
from models.gpu.buckets import MAX_GRAPH_ROWS, BucketPlan
from models.gpu.probe import find_kernel
from models.gpu.reference import reference_varlen_attn
from models.gpu.setup import attention_sizes
from models.kv.budget import CONTEXT_BYTES, graph_bytes, num_kv_blocks, share_for_kv
from tests.models.gpu.test_varlen_kernel import Switch, wrapped

CPU = torch.device("cpu")
CONFIGS = Path(__file__).parents[3] / "configs"
GB = 10**9


def qwen2(hidden: int, wide: int, layers: int, heads: int, key_heads: int, vocab: int) -> Any:
    return Qwen2Config(
        hidden_size=hidden,
        intermediate_size=wide,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        vocab_size=vocab,
        max_position_embeddings=32768,
        tie_word_embeddings=hidden < 2048,
    )


# What the model that a config names is, as its publisher says.
MODELS: dict[str, PreTrainedConfig] = {
    "Qwen/Qwen2.5-0.5B-Instruct": qwen2(896, 4864, 24, 14, 2, 151936),
    "Qwen/Qwen2.5-7B-Instruct": qwen2(3584, 18944, 28, 28, 4, 152064),
    "Qwen/Qwen2.5-14B-Instruct": qwen2(5120, 13824, 48, 40, 8, 152064),
    "Qwen/Qwen2.5-72B-Instruct": qwen2(8192, 29568, 80, 64, 8, 152064),
}
CARDS = {"single-gpu": 24 * GB, "one-node": 40 * GB, "prod": 80 * GB}
# What the largest pass takes for a while: 3 copies of 256 rows of float32 logits and the logits,
# and eight times the widest layer's rows in bfloat16. The engine measures it; this is an estimate.
_LOGIT_COPIES, _WIDE_COPIES = 5, 8


def sections(name: str) -> dict[str, EngineConfig]:
    return dict(read_serve_file(CONFIGS / f"{name}.yaml").config.models)


def flash_attention_2(args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args[1].shape[1] % 256:
        raise RuntimeError("Paged KV cache block size must be divisible by 256")
    if args[4] is None:
        raise RuntimeError("cu_seqlens_q and cu_seqlens_k must be both set or both not set")
    if kwargs["num_splits"] != 1 or args[0].dtype not in (torch.bfloat16, torch.float16):
        raise RuntimeError("not supported")
    return reference_varlen_attn(*args, **kwargs)


def flash_attention_3(args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args[4] is not None:
        raise RuntimeError("cu_seqlens_k must be None with a block table")
    return reference_varlen_attn(*args, **kwargs)


@pytest.mark.parametrize("section", ["target", "draft"])
@pytest.mark.parametrize("name", CARDS)
@pytest.mark.parametrize(
    ("function", "expected"),
    [(flash_attention_2, 256), (flash_attention_3, 64)],
    ids=["FA2", "FA3"],
)
def test_a_paged_kernel_is_found(function: Any, expected: int, name: str, section: str) -> None:
    config = sections(name)[section]
    head_dim = 64 if section == "draft" else 128
    tried = attention_sizes(config, num_heads=4, num_key_heads=2, head_dim=head_dim)
    _, found = find_kernel(Switch(wrapped(function)).features, tried, CPU)
    assert found.block_size == expected
    assert config.attention == "varlen", "it would be served slowly without a word"
    assert BucketPlan(min(config.max_num_batched_tokens, MAX_GRAPH_ROWS)).choose([9] * 32)


@pytest.mark.parametrize("name", CARDS)
def test_what_is_asked_for_fits_on_the_card(name: str, tmp_path: Path) -> None:
    """Each rank alone on its card, and on a single GPU both processes together."""
    used = {
        section: rank_bytes(config, CARDS[name], tmp_path / section)
        for section, config in sections(name).items()
    }
    together = [sum(used.values())] if name == "single-gpu" else list(used.values())
    for num_bytes in together:
        assert num_bytes <= 0.98 * CARDS[name], used


def rank_bytes(config: EngineConfig, card_bytes: int, folder: Path) -> int:
    """What a rank takes of its card; it holds a longest session, or the test fails."""
    model = MODELS[config.model_path]
    model.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"")
    taken = memory_estimate(config.model_copy(update={"model_path": str(folder)}))
    wide: int = model.intermediate_size // config.tensor_parallel_size
    pass_bytes = (
        _LOGIT_COPIES * 256 * 4 * model.vocab_size
        + _WIDE_COPIES * 2 * wide * config.max_num_batched_tokens
    )
    if config.gpu_memory_utilization is None:
        kv_bytes = config.num_blocks * config.block_tokens * taken.kv_bytes_per_token
    else:
        kv_bytes = share_for_kv(config, card_bytes, taken.weight_bytes, pass_bytes)
    num_blocks = num_kv_blocks(config, taken.kv_bytes_per_token, kv_bytes)
    assert num_blocks * config.block_tokens >= config.max_model_len
    return CONTEXT_BYTES + taken.weight_bytes + pass_bytes + graph_bytes(config) + kv_bytes
