"""Reads config.json of an EAGLE-3 head, in either of its two spellings.

    original     architectures ["LlamaForCausalLMEagle3"]; the layer's fields and draft_vocab_size
                 side by side; options too, or in `eagle_config`
    speculators  speculators_model_type "eagle3"; the layer's fields in `transformer_layer_config`

Layer ids name the layers whose input is a state, from 0. If `eagle_aux_hidden_state_layer_ids` is
missing, they are 2, L / 2 and L - 3 of the target's L layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from models.heads.config import proposed_tokens, read_heads_config

_FAMILY = ("llama", "mistral", "qwen2", "qwen3")
_MAX_STATES = 5
_DEFAULT_TOKENS = 5  # tokens of a draft, if the config proposes nothing
_SAME = ("num_attention_heads", "num_key_value_heads", "head_dim")  # as the target has
_UNSERVED = ("parallel_drafting", "ptd_token_id", "mask_token_id")  # drafts all at once (P-EAGLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config:
    """A head for one target.

    Attributes:
        layer: sizes of its decoder layer.
        layer_ids: of the target's layers whose inputs it reads.
        draft_vocab_size: ids that it drafts.
        num_tokens: of the longest draft.
        norm_before_residual: the layer's residual is the normed state.
        norm_before_fc: states are normed side by side before they are fused.
        fc_norm: each is.
        norm_output: the state for the next row is normed as for logits.
        has_embedding: it has an embedding of its own.
    """

    layer: PreTrainedConfig
    layer_ids: tuple[int, ...]
    draft_vocab_size: int
    num_tokens: int
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    has_embedding: bool


def read_eagle3_config(folder: Path, target: Any, *, has_embedding: bool) -> Eagle3Config:
    """Read the config of a folder for a target.

    Args:
        folder: with config.json.
        target: the target's config.
        has_embedding: whether there is an embedding among the weights.

    Raises:
        ValueError: it is for another target, or asks for what is not served; names the key.
    """
    name = f"heads {str(folder)!r}"
    config = read_heads_config(folder)
    options: dict[str, Any] = config.get("eagle_config") or {}
    options = options | {key: value for key, value in config.items() if value is not None}
    layer = _layer(name, config)
    _refuse_unserved(name, options)
    _check_sizes(name, layer, target, options, has_embedding=has_embedding)
    return Eagle3Config(
        layer=layer,
        layer_ids=_layer_ids(name, options, target.num_hidden_layers),
        draft_vocab_size=_draft_vocab_size(name, options, layer),
        num_tokens=proposed_tokens(name, config, _DEFAULT_TOKENS),
        norm_before_residual=_flag(name, options, "norm_before_residual"),
        norm_before_fc=_flag(name, options, "norm_before_fc"),
        fc_norm=_flag(name, options, "fc_norm"),
        norm_output=_flag(name, options, "norm_output"),
        has_embedding=has_embedding,
    )


def _layer(name: str, config: dict[str, Any]) -> PreTrainedConfig:
    fields = dict(config.get("transformer_layer_config") or config)
    model_type = fields.pop("model_type", "llama")
    if model_type not in _FAMILY:
        raise ValueError(
            f"{name}: model_type must be one of {', '.join(_FAMILY)}, got {model_type!r}"
        )
    if (num_layers := fields.get("num_hidden_layers", 1)) != 1:
        raise ValueError(f"{name}: num_hidden_layers must be 1, got {num_layers!r}")
    layer: PreTrainedConfig = AutoConfig.for_model(model_type, **fields | {"num_hidden_layers": 1})
    return layer


def _refuse_unserved(name: str, options: dict[str, Any]) -> None:
    for key in _UNSERVED:
        if options.get(key):
            raise ValueError(f"{name}: {key} is not served, got {options[key]!r}")
    if options.get("use_aux_hidden_state", True) is not True:
        raise ValueError(f"{name}: use_aux_hidden_state must be true, got false")
    if (scale := options.get("logit_scale", 1.0)) != 1.0:
        raise ValueError(f"{name}: logit_scale must be 1, got {scale!r}")


def _check_sizes(
    name: str, layer: Any, target: Any, options: dict[str, Any], *, has_embedding: bool
) -> None:
    """Check the sizes: its keys lie in the target's cache, and rows of both are joined."""
    for key in _SAME:
        own, wanted = _size(layer, key), _size(target, key)
        if own != wanted:
            raise ValueError(f"{name}: {key} must be the target's, {wanted}, got {own}")
    asked = options.get("target_hidden_size", target.hidden_size)
    if asked != target.hidden_size:
        raise ValueError(
            f"{name}: target_hidden_size must be the target's, {target.hidden_size}, got {asked!r}"
        )
    if layer.hidden_size != target.hidden_size and not has_embedding:
        raise ValueError(
            f"{name} lacks embed_tokens.weight: its hidden_size is {layer.hidden_size}, "
            f"the target's {target.hidden_size}"
        )


def _size(config: Any, key: str) -> int:
    value: int | None = getattr(config, key, None)
    if value is not None:
        return value
    if key == "num_key_value_heads":
        return int(config.num_attention_heads)
    return int(config.hidden_size // config.num_attention_heads)


def _layer_ids(name: str, options: dict[str, Any], num_layers: int) -> tuple[int, ...]:
    key = "eagle_aux_hidden_state_layer_ids"
    found: Any = options.get(key, [2, num_layers // 2, num_layers - 3])
    is_list = isinstance(found, list) and 1 <= len(found) <= _MAX_STATES
    if not is_list or not all(isinstance(one, int) and 0 <= one < num_layers for one in found):
        raise ValueError(
            f"{name}: {key} must be 1 to {_MAX_STATES} of the target's layers, 0 to "
            f"{num_layers - 1}, got {found!r}"
        )
    return tuple(found)


def _draft_vocab_size(name: str, options: dict[str, Any], layer: Any) -> int:
    value = options.get("draft_vocab_size", layer.vocab_size)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: draft_vocab_size must be at least 1, got {value!r}")
    return value


def _flag(name: str, options: dict[str, Any], key: str) -> bool:
    value = options.get(key, False)
    if not isinstance(value, bool):
        raise ValueError(f"{name}: {key} must be true or false, got {value!r}")
    return value
