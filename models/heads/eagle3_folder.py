"""Reads a folder of an EAGLE-3 head, in either of its two spellings (`eagle3_config.py`).

Weights by name, first those that both spellings share:

    fc.weight [F, 3F]; norm.weight; lm_head.weight [N, F]; d2t [N], t2d [V] bool where N < V
    original     midlayer.NAME, *.safetensors or pytorch_model.bin
    speculators  layers.0.NAME; input_norm.weight with norm_before_fc, fc_norm.I.weight with fc_norm
    NAME         hidden_norm, input_layernorm, post_attention_layernorm, mlp.*, self_attn.* whose
                 q_proj, k_proj and v_proj take [embedding ; state]
    optional     embed_tokens.weight; without it the target's
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from models.heads.draft_ids import draft_ids
from models.heads.eagle3 import Eagle3Parts
from models.heads.eagle3_config import read_eagle3_config
from models.heads.folder import stored_weights
from models.layers.family import refuse_other_families


def read_eagle3(
    folder: Path, model: PreTrainedModel, device: torch.device | None = None
) -> Eagle3Parts:
    """Read the head of a folder for a target, in its type.

    Args:
        folder: of the head.
        model: the target, or its shape on the meta device.
        device: of the weights; None: the model's.

    Raises:
        ValueError: the folder holds no such head, or one for another target; names the key.
    """
    refuse_other_families(model, "EAGLE-3 heads")
    name = f"heads {str(folder)!r}"
    stored = {_modern(key): value for key, value in stored_weights(folder).items()}
    target: Any = model.config
    config = read_eagle3_config(folder, target, has_embedding="embed_tokens.weight" in stored)
    parts = Eagle3Parts(config, model)
    ids = _draft_ids(name, stored, config.draft_vocab_size, target.vocab_size)
    weights, device = {}, device or model.device
    for key, weight in parts.state_dict().items():
        found = stored.pop(key, None)
        if found is None:
            raise ValueError(f"{name} lacks {key}")
        if found.shape != weight.shape:
            raise ValueError(
                f"{name}: {key} has shape {list(found.shape)}, its config and the target need "
                f"{list(weight.shape)}"
            )
        weights[key] = found.to(device, model.dtype)
    if stored:
        raise ValueError(f"{name} has {min(stored)}, which is no part of an EAGLE-3 head")
    parts.load_state_dict(weights, assign=True)
    parts.requires_grad_(requires_grad=False).eval()
    parts.draft_ids = ids if ids is None or device.type == "meta" else ids.to(device)
    return parts


def _modern(key: str) -> str:
    """Return the newer spelling of a key."""
    return key.replace("midlayer.", "layers.0.", 1) if key.startswith("midlayer.") else key


def _draft_ids(
    name: str, stored: dict[str, Tensor], num_ids: int, vocab_size: int
) -> Tensor | None:
    offsets, marks = stored.pop("d2t", None), stored.pop("t2d", None)
    if offsets is None and num_ids != vocab_size:
        raise ValueError(f"{name} lacks d2t: it drafts {num_ids} ids, the target has {vocab_size}")
    if offsets is not None and offsets.shape != (num_ids,):
        raise ValueError(f"{name}: d2t has shape {list(offsets.shape)}, expected [{num_ids}]")
    ids = draft_ids(name, offsets, vocab_size)
    if marks is None:
        return ids
    if marks.shape != (vocab_size,):
        raise ValueError(f"{name}: t2d has shape {list(marks.shape)}, expected [{vocab_size}]")
    marked = marks.nonzero().flatten()
    if ids is not None and not marked.equal(ids.sort().values):
        raise ValueError(f"{name}: t2d marks other ids than d2t names")
    return ids
