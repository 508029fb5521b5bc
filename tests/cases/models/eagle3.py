"""Folders of an EAGLE-3 head for a given target, and what such a head drafts, in plain torch."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

NUM_STEPS = 3
LAYER_IDS = (0, 1, 1)  # of the tiny target, which has two layers
FEW_IDS = (3, 7, 11, 19, 40, 41, 42, 97, 123, 200, 255)
Spelling = Literal["original", "speculators"]
_LAYER = "layers.0."
_QUERY_NORM = f"{_LAYER}self_attn.q_norm.weight"  # of a layer like Qwen3's


def target_of(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def eagle3_weights(
    target: Path,
    *,
    seed: int = 0,
    scale: float = 0.1,
    num_states: int = len(LAYER_IDS),
    ids: Sequence[int] | None = None,
    width: int | None = None,
) -> dict[str, Tensor]:
    """A random head in the spelling of `speculators`; `ids` are what it drafts, None: all.

    With another `width` than the target's it has an embedding of its own.
    """
    model = target_of(target)
    config = model.config
    own = width or config.hidden_size
    heads = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    num_ids = config.vocab_size if ids is None else len(ids)
    shapes = {
        "fc.weight": (own, num_states * config.hidden_size),
        "norm.weight": (own,),
        "lm_head.weight": (num_ids, own),
        **{f"{_LAYER}{name}.weight": (own,) for name in ("hidden_norm", "input_layernorm")},
        f"{_LAYER}post_attention_layernorm.weight": (own,),
        f"{_LAYER}self_attn.q_proj.weight": (heads, 2 * own),
        f"{_LAYER}self_attn.k_proj.weight": (keys, 2 * own),
        f"{_LAYER}self_attn.v_proj.weight": (keys, 2 * own),
        f"{_LAYER}self_attn.o_proj.weight": (own, heads),
        f"{_LAYER}mlp.gate_proj.weight": (80, own),
        f"{_LAYER}mlp.up_proj.weight": (80, own),
        f"{_LAYER}mlp.down_proj.weight": (own, 80),
    }
    if own != config.hidden_size:
        shapes["embed_tokens.weight"] = (config.vocab_size, own)
    generator = torch.Generator().manual_seed(seed)
    weights = {
        key: (1.0 if len(shape) == 1 else 0.0) + scale * torch.randn(shape, generator=generator)
        for key, shape in sorted(shapes.items())
    }
    if ids is not None:
        chosen = torch.tensor(ids)
        weights["d2t"] = chosen - torch.arange(num_ids)
        weights["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool)
        weights["t2d"][chosen] = True
    return weights


def early(target: Path, *, scale: float = 0.01) -> dict[str, Tensor]:
    """A head that says what the target's last layer is given, so that it is right now and then."""
    model = target_of(target)
    weights = eagle3_weights(target, scale=scale)
    width = model.config.hidden_size
    weights["fc.weight"][:, -width:] += torch.eye(width)
    weights["norm.weight"] = model.model.norm.weight.detach().clone()
    weights["lm_head.weight"] = model.lm_head.weight.detach().clone()
    return weights


def write_eagle3(
    folder: Path,
    target: Path,
    weights: dict[str, Tensor],
    spelling: Spelling = "speculators",
    **config: object,
) -> Path:
    """As `speculators` writes it, or as the authors' own checkpoints are."""
    folder.mkdir(parents=True, exist_ok=True)
    model = target_of(target).config
    layer = {
        "model_type": "qwen3" if _QUERY_NORM in weights else "llama",
        "hidden_size": len(weights["norm.weight"]),
        "intermediate_size": 80,
        "num_hidden_layers": 1,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "rms_norm_eps": 1e-5,
        "rope_theta": 30_000.0,  # its own
        "hidden_act": "silu",
        "vocab_size": model.vocab_size,
        "max_position_embeddings": 2048,
    }
    fields: dict[str, object] = {
        "draft_vocab_size": len(weights["lm_head.weight"]),
        "eagle_aux_hidden_state_layer_ids": list(LAYER_IDS),
    }
    if spelling == "original":
        fields |= layer | {"architectures": ["LlamaForCausalLMEagle3"]}
        weights = {
            (f"midlayer.{key.removeprefix(_LAYER)}" if key.startswith(_LAYER) else key): value
            for key, value in weights.items()
        }
    else:
        proposal = {"proposal_type": "greedy", "speculative_tokens": NUM_STEPS}
        fields |= {
            "speculators_model_type": "eagle3",
            "speculators_config": {"proposal_methods": [proposal]},
            "transformer_layer_config": layer,
        }
    whole = {key: value for key, value in (fields | config).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(whole))
    save_file(weights, folder / "model.safetensors")
    return folder


class PlainEagle3:
    """The same head over whole texts at once, nothing kept.

    Args:
        target: checkpoint of the target.
        weights: as `eagle3_weights` has them.
        options: flags of the head's config.
    """

    def __init__(
        self,
        target: Path,
        weights: dict[str, Tensor],
        layer_ids: Sequence[int] = LAYER_IDS,
        **options: bool,
    ) -> None:
        self._target = target_of(target)
        self._weights, self._ids, self._options = weights, layer_ids, options

    def draft(
        self, tokens: Sequence[int], num_tokens: int, unknown: Collection[int] = ()
    ) -> list[int]:
        """The likeliest ids behind `tokens`, each by the ones before it.

        Rows of `unknown`, and the first, have zeros for the state before them.
        """
        ids = list(tokens)
        states = F.pad(self._fused(tokens)[:-1], (0, 0, 1, 0))
        states[list(unknown)] = 0.0
        for _ in range(num_tokens):
            last = self._out(states, ids)[-1:]
            normed = self._norm("norm", last)
            logits = self._times("lm_head", normed)[0]
            best = int(logits.argmax())
            offsets = self._weights.get("d2t")
            ids.append(best if offsets is None else best + int(offsets[best]))
            given = normed if self._options.get("norm_output") else last
            states = torch.cat([states, given])
        return ids[len(tokens) :]

    @torch.no_grad()
    def _fused(self, tokens: Sequence[int]) -> Tensor:
        out = self._target.model(torch.tensor([tokens]), output_hidden_states=True)
        inputs = [out.hidden_states[index][0] for index in self._ids]
        if self._options.get("fc_norm"):
            inputs = [self._norm(f"fc_norm.{i}", rows) for i, rows in enumerate(inputs)]
        joined = torch.cat(inputs, dim=-1)
        if self._options.get("norm_before_fc"):
            joined = self._norm("input_norm", joined)
        return self._times("fc", joined)

    @torch.no_grad()
    def _out(self, states: Tensor, ids: Sequence[int]) -> Tensor:
        config = self._target.config
        own = self._weights.get("embed_tokens.weight")
        embedding = self._target.get_input_embeddings().weight if own is None else own
        normed = self._norm(f"{_LAYER}hidden_norm", states)
        tokens = self._norm(f"{_LAYER}input_layernorm", embedding[torch.tensor(ids)])
        rows = torch.cat([tokens, normed], dim=-1)
        query, key, value = (
            self._times(f"{_LAYER}self_attn.{name}_proj", rows)
            .unflatten(-1, (-1, config.head_dim))
            .transpose(0, 1)
            for name in "qkv"
        )
        if _QUERY_NORM in self._weights:
            query = self._norm(f"{_LAYER}self_attn.q_norm", query)
            key = self._norm(f"{_LAYER}self_attn.k_norm", key)
        groups = config.num_attention_heads // config.num_key_value_heads
        query, key = _rotated(query), _rotated(key).repeat_interleave(groups, dim=0)
        value = value.repeat_interleave(groups, dim=0)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out = self._times(f"{_LAYER}self_attn.o_proj", attended.transpose(0, 1).flatten(1))
        out = out + (normed if self._options.get("norm_before_residual") else states)
        rows = self._norm(f"{_LAYER}post_attention_layernorm", out)
        gate, up = (self._times(f"{_LAYER}mlp.{name}_proj", rows) for name in ("gate", "up"))
        return out + self._times(f"{_LAYER}mlp.down_proj", F.silu(gate) * up)

    def _times(self, name: str, rows: Tensor) -> Tensor:
        return rows @ self._weights[f"{name}.weight"].T

    def _norm(self, name: str, rows: Tensor) -> Tensor:
        return F.rms_norm(rows, rows.shape[-1:], self._weights[f"{name}.weight"], 1e-5)


def _rotated(rows: Tensor) -> Tensor:  # [heads, T, D]
    _, length, size = rows.shape
    rates = 30_000.0 ** -(torch.arange(0, size, 2) / size)
    angles = torch.arange(length)[:, None] * rates
    cos, sin = (torch.cat([each, each], dim=-1) for each in (angles.cos(), angles.sin()))
    first, second = rows.chunk(2, dim=-1)
    return rows * cos + torch.cat([-second, first], dim=-1) * sin
