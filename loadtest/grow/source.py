"""A Llama checkpoint as something to grow: its parts, its sizes, and what it may be grown to.

Reads the files themselves, not a model, so weights stay bit for bit what they are. A model that
this project does not know how to grow is refused by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig

from models.checkpoint.loader import read_config

Weights = dict[str, Tensor]

EMBEDDING = "model.embed_tokens.weight"
LAST_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"
LAYER_NORMS = ("input_layernorm", "post_attention_layernorm")
# Per matrix of a layer: what its rows and columns are, and whether new entries may be random
# because they only meet zeros. The other two write to the residual stream.
LAYER_MATRICES = {
    "self_attn.q_proj": ("heads", "hidden", True),
    "self_attn.k_proj": ("key_heads", "hidden", True),
    "self_attn.v_proj": ("key_heads", "hidden", True),
    "self_attn.o_proj": ("hidden", "heads", False),
    "mlp.gate_proj": ("ffn", "hidden", True),
    "mlp.up_proj": ("ffn", "hidden", True),
    "mlp.down_proj": ("hidden", "ffn", False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The sizes of a Llama that growing may change, each named as in its config.json."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int


SIZES = fields(ModelSize)


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint that can be grown, as it is on disk.

    Attributes:
        path: its directory.
        config: its configuration.
        weights: by name, in the dtype of the file; without `lm_head` where that is tied.
    """

    path: Path
    config: LlamaConfig
    weights: Weights

    @classmethod
    def load(cls, path: Path) -> Source:
        """Read a checkpoint directory.

        Raises:
            ValueError: there is none, or it has a part that this module does not know how to grow.
        """
        if not path.is_dir():
            raise ValueError(f"source {str(path)!r} is not a directory")
        config = read_config(str(path))
        if not isinstance(config, LlamaConfig):
            raise ValueError(
                f"source {str(path)!r} cannot be grown: it is of model type "
                f"{config.model_type!r}; only 'llama' is known"
            )
        _refuse_unknown(path, config)
        weights = _read_weights(path)
        if config.tie_word_embeddings:
            weights.pop(LM_HEAD, None)
        source = cls(path, config, weights)
        _check_weights(source)
        return source

    @property
    def size(self) -> ModelSize:
        """Its own size: growing to it changes nothing."""
        return ModelSize(**{field.name: getattr(self.config, field.name) for field in SIZES})

    @property
    def head_dim(self) -> int:
        """The dimension of every head, before and after growing."""
        size = self.size
        return self.config.head_dim or size.hidden_size // size.num_attention_heads

    @property
    def lm_head(self) -> Tensor:
        """[vocab_size, hidden_size], the embedding where that is shared."""
        return self.weights[EMBEDDING if self.config.tie_word_embeddings else LM_HEAD]


def check_size(source: Source, size: ModelSize) -> None:
    """Check that `source` can be grown to `size`.

    Raises:
        ValueError: names the field, its limit and its value.
    """
    old = source.size
    for field in SIZES:
        least, value = getattr(old, field.name), getattr(size, field.name)
        if value < least:
            raise ValueError(f"{field.name} must be at least the source's {least}, got {value}")
    if size.hidden_size % size.num_attention_heads:
        raise ValueError(
            f"hidden_size must be a multiple of num_attention_heads ({size.num_attention_heads}), "
            f"got {size.hidden_size}"
        )
    if size.num_attention_heads % size.num_key_value_heads:
        raise ValueError(
            f"num_attention_heads must be a multiple of num_key_value_heads "
            f"({size.num_key_value_heads}), got {size.num_attention_heads}"
        )
    needed = old.num_key_value_heads * key_head_repeats(old, size)
    if size.num_key_value_heads < needed:
        raise ValueError(
            f"num_key_value_heads must be at least {needed} when "
            f"{size.num_attention_heads // size.num_key_value_heads} query heads share one, "
            f"got {size.num_key_value_heads}"
        )


def axis_lengths(source: Source, size: ModelSize) -> dict[str, int]:
    """Rows or columns of each kind that LAYER_MATRICES names, once grown to `size`."""
    head_dim = source.head_dim
    return {
        "vocab": source.config.vocab_size,
        "hidden": size.hidden_size,
        "ffn": size.intermediate_size,
        "heads": size.num_attention_heads * head_dim,
        "key_heads": size.num_key_value_heads * head_dim,
    }


def key_head_repeats(old: ModelSize, new: ModelSize) -> int:
    """Return how many new key heads replace an old one, so that its queries find room."""
    group = old.num_attention_heads // old.num_key_value_heads
    new_group = new.num_attention_heads // new.num_key_value_heads
    return -(-group // new_group)


def _refuse_unknown(path: Path, config: LlamaConfig) -> None:
    reason = ""
    if config.attention_bias or config.mlp_bias:
        reason = "biases (attention_bias or mlp_bias), whose growing is not built"
    elif getattr(config, "quantization_config", None) is not None:
        reason = "quantised weights; grow the unquantised ones"
    if reason:
        raise ValueError(f"source {str(path)!r} cannot be grown: it has {reason}")


def _read_weights(path: Path) -> Weights:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    else:
        names = {"model.safetensors"}
    weights: Weights = {}
    for name in sorted(names):
        if not (path / name).is_file():
            raise ValueError(f"source {str(path)!r} has no {name}")
        weights.update(load_file(path / name))
    # Tables that old checkpoints store and that follow from the configuration.
    return {name: value for name, value in weights.items() if "rotary_emb" not in name}


def _check_weights(source: Source) -> None:
    lengths = axis_lengths(source, source.size)
    hidden, table = [lengths["hidden"]], [lengths["vocab"], lengths["hidden"]]
    expected = {EMBEDDING: table, LAST_NORM: hidden}
    if not source.config.tie_word_embeddings:
        expected[LM_HEAD] = table
    for layer in range(source.size.num_hidden_layers):
        for part, (rows, cols, _) in LAYER_MATRICES.items():
            expected[f"model.layers.{layer}.{part}.weight"] = [lengths[rows], lengths[cols]]
        for part in LAYER_NORMS:
            expected[f"model.layers.{layer}.{part}.weight"] = hidden
    got = {name: list(value.shape) for name, value in source.weights.items()}
    for name in sorted(expected.keys() | got.keys()):
        if expected.get(name) != got.get(name):
            raise ValueError(
                f"weight {name!r} of source {str(source.path)!r} should have shape "
                f"{expected.get(name, 'none')}, got {got.get(name, 'none')}"
            )
