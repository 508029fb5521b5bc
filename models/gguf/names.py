"""Names of a GGUF file's tensors in transformers, and the order of their rows there.

For the architectures of `header.ARCHITECTURES`, which have the same parts. llama.cpp rotates
neighbours where transformers rotates halves. So Llama's queries and keys lie in another order.
"""

from __future__ import annotations

import re
from typing import Any

from models.gguf.header import GgufHeader

_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OF_LAYER = re.compile(r"blk\.(?P<layer>\d+)\.(?P<part>\w+)\.(?P<kind>weight|bias)")


def name_in_transformers(name: str) -> str:
    """Return the name of the tensor `name`, as `model.layers.0.mlp.up_proj.weight`.

    Raises:
        ValueError: it is not known.
    """
    match = _OF_LAYER.fullmatch(name)
    if match and match["part"] in _PARTS:
        return f"model.layers.{match['layer']}.{_PARTS[match['part']]}.{match['kind']}"
    end, _, kind = name.rpartition(".")
    if end in _ENDS and kind == "weight":
        return f"{_ENDS[end]}.{kind}"
    raise ValueError(f"tensor {name!r} is of no part that is known")


def in_order(header: GgufHeader, name: str, rows: Any) -> Any:
    """Return the rows of a tensor in the order that transformers has them.

    Args:
        header: of the file.
        name: of the tensor, in the file.
        rows: [outputs, ...], of numpy.
    """
    key = {"attn_q": "head_count", "attn_k": "head_count_kv"}.get(name.split(".")[-2])
    if header.architecture != "llama" or key is None:
        return rows
    settings = header.settings
    all_heads = settings["llama.attention.head_count"]
    num_heads = settings.get(f"llama.attention.{key}", all_heads)
    pairs = rows.reshape(num_heads, len(rows) // num_heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
