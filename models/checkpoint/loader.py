"""Loads a Hugging Face checkpoint as a model on this device, or refuses it by name.

Loads any causal language model that routes its attention through transformers' AttentionInterface.
It reads safetensors only, and never runs code from the checkpoint. A model that cannot be served
correctly is refused by name first (`models/checkpoint/architecture.py`). Where several ranks share
the model, each reads and keeps its own part only. The back-end lays the weights out for its machine
(`models/cpu/setup.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    modeling_utils,
)
from transformers.distributed.configuration_utils import DistributedConfig

from models.attention.features import layer_windows
from models.attention.interface import ATTENTION_NAME
from models.checkpoint.architecture import refuse_unsupported
from models.checkpoint.float8 import as_stored, give_scales, is_float8, kept_as_stored, unscaled
from models.checkpoint.packed import is_packed, load_packed, packing_of
from models.checkpoint.packed_shapes import as_packed
from models.checkpoint.stored_shapes import check_stored_shapes, quiet, refuse_unfitting
from models.checkpoint.stored_weights import check_weights, weight_files
from models.checkpoint.token_ids import read_token_ids
from models.config import EngineConfig, QuantizationName
from models.files import naming, read_json
from models.layers.rotary import fix_rotary_tables
from models.parallel.layers import make_local
from models.parallel.plan import divides_heads, tensor_parallel_plan
from models.parallel.ranks import TensorParallel
from models.text.vocabulary import DrawableIds


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded model, or this rank's part of it, and what the engines need to know of it."""

    model: PreTrainedModel
    num_columns: int  # columns of the logits, padding included; ids that may be read
    drawable: DrawableIds
    num_layers: int
    num_heads: int  # this rank's, as the key heads
    num_key_heads: int
    head_dim: int
    windows: tuple[int | None, ...]  # each layer's attention window
    eos_ids: tuple[int, ...]  # ids that end a generation, as the checkpoint's own files name them
    quantization: QuantizationName | None  # the config's, or what the weights are stored in
    has_scales: bool  # linear layers that are stored in float8 hold its numbers, and `scales`
    ranks: TensorParallel | None = None  # those that share the model


@dataclass(frozen=True, slots=True)
class KeySizes:
    """Attention layers and heads that a rank has."""

    num_layers: int
    num_heads: int
    num_key_heads: int
    head_dim: int


def key_sizes(hf_config: PreTrainedConfig, world_size: int) -> KeySizes:
    """Return the heads that each of `world_size` ranks keeps, from the config alone."""
    text = hf_config.get_text_config()
    num_heads = text.num_attention_heads
    num_shares = world_size if divides_heads(tensor_parallel_plan(hf_config)) else 1
    return KeySizes(
        num_layers=text.num_hidden_layers,
        num_heads=num_heads // num_shares,
        num_key_heads=(getattr(text, "num_key_value_heads", None) or num_heads) // num_shares,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // num_heads,
    )


def kv_bytes_per_token(
    sizes: KeySizes | Checkpoint, itemsize: int, num_head_layers: int = 0
) -> int:
    """Bytes of the keys and values of one token in all layers of one rank, each of `itemsize`.

    `num_head_layers` are of what drafts with the model, as wide as its own.
    """
    return (
        2 * (sizes.num_layers + num_head_layers) * sizes.num_key_heads * sizes.head_dim * itemsize
    )


def load_checkpoint(config: EngineConfig, ranks: TensorParallel | None = None) -> Checkpoint:
    """Read, check and place the model that `config` names, or this rank's part of it.

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
    asked = config.quantization
    config = as_packed(config)
    hf_config = read_config(config.model_path)
    refuse_unsupported(hf_config, config)
    check_weights(Path(config.model_path))
    check_stored_shapes(config)
    has_scales = is_float8(hf_config)
    config = as_stored(config, hf_config)
    keeps_scales = has_scales and config.quantization == "fp8"
    as_types: AbstractContextManager[None] = nullcontext()
    if keeps_scales:
        as_types = kept_as_stored(Path(config.model_path), world_size)
    with quiet(), pieces_of_memory(), as_types:
        if is_packed(hf_config):
            model = load_packed(unscaled(hf_config), config, packing_of(hf_config))
        else:
            model = _load_weights(unscaled(hf_config), config)
    if ranks is not None:
        make_local(model, model.tp_plan, ranks)
    if has_scales:
        rank = 0 if ranks is None else ranks.rank
        give_scales(model, weight_files(Path(config.model_path)), rank, are_kept=keeps_scales)
    text = hf_config.get_text_config()
    sizes = key_sizes(hf_config, world_size)
    fix_rotary_tables(model, config.max_model_len)
    ids = read_token_ids(config, hf_config)
    return Checkpoint(
        model=model,
        num_columns=ids.num_columns,
        drawable=ids.drawable,
        num_layers=sizes.num_layers,
        num_heads=sizes.num_heads,
        num_key_heads=sizes.num_key_heads,
        head_dim=sizes.head_dim,
        windows=layer_windows(text),
        eos_ids=ids.eos_ids,
        quantization=asked or config.quantization,
        has_scales=keeps_scales,
        ranks=ranks,
    )


def read_config(model_path: str) -> PreTrainedConfig:
    """Read the checkpoint's own configuration.

    Raises:
        ValueError: there is no checkpoint at `model_path`, or of a kind transformers lacks.
    """
    path = Path(model_path)
    if not path.is_dir():
        raise ValueError(f"model_path {model_path!r} is not a directory")
    file = path / "config.json"
    if not file.is_file():
        raise ValueError(f"model_path {model_path!r} has no config.json")
    weight_files(path)
    read_json(file)
    with naming(file):
        return AutoConfig.from_pretrained(model_path, trust_remote_code=False)


@contextmanager
def pieces_of_memory() -> Iterator[None]:
    """Have transformers take device memory weight by weight.

    It would take the whole model's as one piece first, to be quick. torch gives a piece back only
    when all of it is free. So weights that are joined or rounded later would give nothing back.
    """
    name = "caching_allocator_warmup"
    kept = getattr(modeling_utils, name)
    setattr(modeling_utils, name, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        setattr(modeling_utils, name, kept)


def _load_weights(hf_config: PreTrainedConfig, config: EngineConfig) -> PreTrainedModel:
    sharing: dict[str, Any] = {}
    if config.tensor_parallel_size > 1:
        sharing["distributed_config"] = DistributedConfig(tp_size=config.tensor_parallel_size)
    elif torch.device(config.device).type != "cpu":
        sharing["device_map"] = {"": config.device}  # straight there, not by way of host memory
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
    refuse_unfitting(Path(config.model_path), loaded[1])
    return model.to(torch.device(config.device)).eval()  # a rank's part is where it belongs already
