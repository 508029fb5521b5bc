"""Reads the MTP layer that lies in a target's own checkpoint, behind its last layer.

    DeepSeek  model.layers.L.NAME, L the target's number of layers: enorm (of the embedding), hnorm
              (of the state), eh_proj, shared_head.norm
    Qwen      mtp.NAME: pre_fc_norm_embedding, pre_fc_norm_hidden, fc, norm; mtp.layers.0.NAME

and beside them, in both, all of a decoder layer like the target's. Both join the embedding first
and the state behind it; `speculators` joins the state first. Copies of the target's embedding and
output layer may be there (embed_tokens, shared_head.head) and must be equal to them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from models.heads.config import read_heads_config
from models.heads.folder import stored_under
from models.heads.mtp import MtpParts, fill
from models.layers.grouped import as_tensor, weight_of

_QWEN = "mtp."
_DEEPSEEK_NAMES = {
    "token_layernorm.weight": "enorm.weight",
    "hidden_layernorm.weight": "hnorm.weight",
    "input_proj.weight": "eh_proj.weight",
    "final_layernorm.weight": "shared_head.norm.weight",
}
_QWEN_NAMES = {
    "token_layernorm.weight": "pre_fc_norm_embedding.weight",
    "hidden_layernorm.weight": "pre_fc_norm_hidden.weight",
    "input_proj.weight": "fc.weight",
    "final_layernorm.weight": "norm.weight",
}
_COPIES = ("embed_tokens.weight", "shared_head.head.weight")  # copies of the target's own


def read_own_mtp(
    folder: Path, model: PreTrainedModel, device: torch.device | None = None
) -> MtpParts:
    """Read the MTP layer of a target's checkpoint, in the target's type.

    Args:
        folder: of the target.
        model: the target, or its shape on the meta device.
        device: of the weights; None: the model's.

    Raises:
        ValueError: it has none, or one that is not served; names the key.
    """
    name = f"heads checkpoint: {str(folder)!r}"
    config = read_heads_config(folder)
    if (num_layers := config.get("num_nextn_predict_layers", 1)) != 1:
        raise ValueError(f"{name}: num_nextn_predict_layers must be 1, got {num_layers!r}")
    parts, target = MtpParts(model, device), model.config
    deepseek = f"model.layers.{target.num_hidden_layers}."
    stored = stored_under(folder, (deepseek, _QWEN))
    if not stored:
        raise ValueError(f"{name} has no MTP layer: neither {deepseek}* nor {_QWEN}*")
    is_qwen = any(key.startswith(_QWEN) for key in stored)
    prefix, names = (_QWEN, _QWEN_NAMES) if is_qwen else (deepseek, _DEEPSEEK_NAMES)

    def key_of(part: str) -> str:
        in_layer = f"layers.0.{part}" if is_qwen else part
        return prefix + names.get(part, in_layer)

    for part in _COPIES:
        copy = stored.pop(prefix + part, None)
        if copy is not None and not _is_targets(part, copy, model):
            raise ValueError(f"{name}: {prefix}{part} must be equal to the target's own")
    joining = key_of("input_proj.weight")
    if joining in stored:
        stored[joining] = torch.cat(stored[joining].chunk(2, dim=-1)[::-1], dim=-1)
    fill(parts, stored, name, key_of)
    return parts


def _is_targets(part: str, copy: Tensor, model: PreTrainedModel) -> bool:
    """Return whether a copy is the target's own weight; a shape alone is compared by size."""
    layer: Any = (
        model.get_input_embeddings() if part == _COPIES[0] else model.get_output_embeddings()
    )
    own = as_tensor(weight_of(layer))
    if own.shape != copy.shape or own.device.type == "meta":
        return bool(own.shape == copy.shape)
    return bool(own.equal(copy.to(own.device, own.dtype)))
