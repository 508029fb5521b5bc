"""A Hugging Face checkpoint as a model on this device, or one clear refusal.

Loads any causal language model that routes its attention through transformers'
AttentionInterface, from safetensors only, without ever running code from the checkpoint. What
cannot be served correctly is refused here by name; wrong text is worse than no text.
On a CPU linear layers are packed and every layer is made independent of the other rows.
Where several ranks share the model, each reads and keeps its own part only.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.utils import logging as transformers_logging

from models.attention import ATTENTION_NAME
from models.config import EngineConfig
from models.fused_decoder import FusedDecoder, can_fuse
from models.linear import PackedLinear, can_pack, make_rowwise
from models.parallel import TensorParallel
from models.parallel_layers import make_local, num_local_bytes
from models.quantization import Quantizer, refuse_quantized
from models.sharding import divides_heads, refuse_unshardable, tensor_parallel_plan

_ROTARY_ROWS_PER_CALL = 64  # small enough that torch computes them in one thread


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded model, or this rank's part of it, and what the engines need to know of it."""

    model: PreTrainedModel
    vocab_size: int  # columns of the logits, padding columns included
    num_layers: int
    num_heads: int  # of this rank, as the key heads
    num_key_heads: int
    head_dim: int
    weight_bytes: int  # of this rank, quantised where asked, before packing
    eos_ids: tuple[int, ...]  # ids that end a generation, by the checkpoint's own word
    fused: FusedDecoder | None  # the layers taken apart, which are then not in `model`


def load_checkpoint(config: EngineConfig, ranks: TensorParallel | None = None) -> Checkpoint:
    """Read, check, place and pack the model that `config` names, or this rank's part of it.

    Args:
        config: what to load; a `tensor_parallel_size` above 1 needs `ranks` of that number.
        ranks: those that share the model; each of them must call this.

    Raises:
        ValueError: the path, a weight or a feature is missing, the architecture cannot be served
            or shared, or a limit of the config is above that of the checkpoint.
    """
    world_size = 1 if ranks is None else ranks.world_size
    if config.tensor_parallel_size != world_size:
        raise ValueError(
            f"tensor_parallel_size is {config.tensor_parallel_size}, got {world_size} ranks"
        )
    hf_config = read_config(config.model_path)
    refuse_unsupported(hf_config, config)
    quantizer = None if config.quantization is None else Quantizer(getattr(torch, config.dtype))
    transformers_logging.disable_progress_bar()
    model = _load_weights(hf_config, config)
    weight_bytes = num_local_bytes(model)
    if ranks is not None:
        make_local(model, model.tp_plan, ranks)
    text = hf_config.get_text_config()
    num_heads = text.num_attention_heads
    num_shares = world_size if divides_heads(tensor_parallel_plan(hf_config)) else 1
    fix_rotary_tables(model, config.max_model_len)
    fused = None
    if quantizer is not None or (model.device.type == "cpu" and can_pack(model.dtype)):
        make_linear = quantizer or PackedLinear
        if ranks is None and can_fuse(model):
            fused = FusedDecoder(model, config.max_model_len, make_linear)
        else:
            make_rowwise(model, make_linear)
    if quantizer is not None:
        weight_bytes = num_local_bytes(model) + quantizer.num_bytes
    return Checkpoint(
        model=model,
        vocab_size=text.vocab_size,
        num_layers=text.num_hidden_layers,
        num_heads=num_heads // num_shares,
        num_key_heads=(getattr(text, "num_key_value_heads", None) or num_heads) // num_shares,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // num_heads,
        weight_bytes=weight_bytes,
        eos_ids=_eos_ids(model),
        fused=fused,
    )


def read_config(model_path: str) -> PreTrainedConfig:
    """The checkpoint's own configuration.

    Raises:
        ValueError: there is no checkpoint at `model_path`, or of a kind transformers lacks.
    """
    path = Path(model_path)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"model_path {model_path!r} has no config.json")
        if not any(path.glob("*.safetensors")):
            raise ValueError(
                f"model_path {model_path!r} has no .safetensors files; other formats are not read"
            )
    elif path.is_absolute() or model_path.startswith(".") or model_path.count("/") > 1:
        raise ValueError(f"model_path {model_path!r} is not a directory")
    try:
        return AutoConfig.from_pretrained(model_path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"no usable checkpoint at model_path {model_path!r}: {error}") from error


def refuse_unsupported(hf_config: PreTrainedConfig, config: EngineConfig) -> None:
    """Check everything that can be known before weights are read.

    Raises:
        ValueError: names the model type and what it needs that is not served.
    """
    text = hf_config.get_text_config()
    refuse_quantized(hf_config)
    reason = _unsupported_feature(hf_config, text, config.max_model_len)
    if reason:
        raise ValueError(f"model type {hf_config.model_type!r} cannot be served: {reason}")
    refuse_unshardable(hf_config, config.tensor_parallel_size)
    longest = getattr(text, "max_position_embeddings", None)
    if longest is not None and config.max_model_len > longest:
        raise ValueError(
            f"max_model_len must be at most the checkpoint's max_position_embeddings ({longest}), "
            f"got {config.max_model_len}"
        )


def _unsupported_feature(
    hf_config: PreTrainedConfig, text: PreTrainedConfig, max_model_len: int
) -> str:
    if hf_config.is_encoder_decoder:
        return "it has an encoder and a decoder"
    model_class: Any = AutoModelForCausalLM._model_mapping.get(type(hf_config), None)
    if model_class is None:
        return "transformers has no causal language model of this type"
    if model_class._is_stateful:
        return "its layers keep a recurrent state, which cannot be rolled back by length"
    if not model_class._supports_attention_backend:
        return "it does not use transformers' attention interface"
    other_layers = set(getattr(text, "layer_types", None) or ()) - {
        "full_attention",
        "sliding_attention",
    }
    if other_layers:
        return f"layers of type {', '.join(sorted(other_layers))}"
    if _uses_window(text) and text.sliding_window < max_model_len:
        return f"attention in a sliding window of {text.sliding_window} tokens"
    if getattr(text, "attn_logit_softcapping", None) is not None:
        return "soft-capped attention scores"
    if hf_config.model_type == "gpt_oss":
        return "attention sinks"
    if (getattr(text, "rope_parameters", None) or {}).get("rope_type") == "dynamic":
        return "dynamic rope, which lets the longest session change the others"
    return ""


def _uses_window(text: PreTrainedConfig) -> bool:
    if getattr(text, "sliding_window", None) is None:
        return False
    layer_types = getattr(text, "layer_types", None)
    if layer_types is not None:
        return "sliding_attention" in layer_types
    return bool(getattr(text, "use_sliding_window", True))


def _load_weights(hf_config: PreTrainedConfig, config: EngineConfig) -> PreTrainedModel:
    sharing: dict[str, Any] = {}
    if config.tensor_parallel_size > 1:
        sharing["distributed_config"] = DistributedConfig(tp_size=config.tensor_parallel_size)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            config.model_path,
            config=hf_config,
            dtype=getattr(torch, config.dtype),
            attn_implementation=ATTENTION_NAME,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **sharing,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"the weights of model_path {config.model_path!r} cannot be read: {error}"
        ) from error
    model: Any = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise ValueError(
            f"model_path {config.model_path!r} lacks {len(missing)} weights, first {missing[0]!r}"
        )
    return model.to(torch.device(config.device)).eval()  # a rank's part is where it belongs already


def _eos_ids(model: PreTrainedModel) -> tuple[int, ...]:
    generation: Any = model.generation_config
    ids = generation.eos_token_id if generation is not None else None
    if ids is None:
        ids = getattr(model.config.get_text_config(), "eos_token_id", None)
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)


class RotaryTable(nn.Module):
    """Cosines and sines of every position, computed once instead of in every pass.

    So a position's values do not depend on the pass, and rope variants that look at the longest
    position see the same one, the configured maximum, for every session.
    """

    def __init__(self, rotary: nn.Module, num_positions: int, like: Tensor) -> None:
        super().__init__()
        positions = torch.arange(num_positions, device=like.device)
        with torch.inference_mode():
            # The whole range first, for variants that adapt to the longest position seen.
            rotary(like, position_ids=positions.unsqueeze(0))
            parts = [
                rotary(like, position_ids=part.unsqueeze(0))
                for part in positions.split(_ROTARY_ROWS_PER_CALL)
            ]
        self._cos = torch.cat([cos[0] for cos, _ in parts])
        self._sin = torch.cat([sin[0] for _, sin in parts])

    def forward(self, rows: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine, [1, R, D], of `position_ids`, [1, R]."""
        index = position_ids[0]
        return self._cos[index].unsqueeze(0), self._sin[index].unsqueeze(0)


def fix_rotary_tables(model: PreTrainedModel, num_positions: int) -> None:
    """Replace, in place, rotary embeddings that map (rows, position_ids) to (cos, sin)."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if not name.endswith("rotary_emb"):
                continue
            if list(inspect.signature(child.forward).parameters) == ["x", "position_ids"]:
                like = torch.empty(1, 1, 1, dtype=model.dtype, device=model.device)
                setattr(parent, name, RotaryTable(child, num_positions, like))
