"""A model of shapes alone: what its layers are, without weights."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel


def shapes_of(
    config: PreTrainedConfig, dtype: torch.dtype, attention: str | None = None
) -> PreTrainedModel:
    """Return a model of this config on torch's "meta" device, whole even if ranks share it.

    Args:
        config: of any causal language model.
        dtype: of its weights.
        attention: the name that its layers look up; None: transformers' default.
    """
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
        )
    return model
