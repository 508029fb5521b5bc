"""An EAGLE-3 head: one decoder layer that drafts from states of several of the target's layers.

Rows that go into some layers of the target are fused into one state. There are three layers by
default: an early, a middle and a late one. The head's row at position p joins the state of the row
that gave token p with that token's embedding. Queries, keys and values are made of both side by
side. The layer's output is the state for the next row. Its own norm and output layer make logits of
it, for some of the target's ids (2503.01840). The place of those rows, their growth and their
rollback are the same as for an MTP head (`mtp.py`).

Shape letters: R rows, n rows whose logits are wanted, F hidden size, N draft ids, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from models.heads.draft_ids import on_all_ids
from models.heads.eagle3_config import Eagle3Config
from models.layers.shapes import shapes_of


class Eagle3Parts(nn.Module):
    """The weights of a head for one target; on no device until they are given.

    Args:
        config: of the head.
        model: the target, or its shape on the meta device.

    Attributes:
        draft_ids: [N], what the logits are of; None: all ids.
    """

    def __init__(self, config: Eagle3Config, model: PreTrainedModel) -> None:
        super().__init__()
        self.config = config
        self.draft_ids: Tensor | None = None
        target: Any = model.config
        inner = _one_layer(config.layer, model)
        width, num_states = config.layer.hidden_size, len(config.layer_ids)
        self.make_rotary = type(inner.rotary_emb)

        def norm(size: int) -> nn.Module:
            made: nn.Module = type(inner.norm)(size, eps=config.layer.rms_norm_eps)
            return made

        with torch.device("meta"):
            self.input_norm = (
                norm(num_states * target.hidden_size) if config.norm_before_fc else None
            )
            self.fc_norm = (
                nn.ModuleList(norm(target.hidden_size) for _ in range(num_states))
                if config.fc_norm
                else None
            )
            self.fc: Any = nn.Linear(num_states * target.hidden_size, width, bias=False)
            layer = inner.layers[0]
            layer.hidden_norm = norm(width)
            for name in ("q_proj", "k_proj", "v_proj"):
                was = getattr(layer.self_attn, name)
                made = nn.Linear(2 * width, was.out_features, bias=was.bias is not None)
                setattr(layer.self_attn, name, made)
            layer.self_attn.layer_idx = target.num_hidden_layers
            self.layers = nn.ModuleList([layer])
            self.norm = norm(width)
            self.lm_head: Any = nn.Linear(width, config.draft_vocab_size, bias=False)
            self.embed_tokens: Any = (
                nn.Embedding(target.vocab_size, width) if config.has_embedding else None
            )

    def leave_fusing(self) -> None:
        """Forget what fuses states: of ranks that share the target its leader does."""
        self.fc, self.input_norm, self.fc_norm = nn.Identity(), None, None

    @property
    def num_bytes(self) -> int:
        """Bytes beside the target."""
        return sum(weight.nbytes for weight in self.parameters())


class Eagle3Forward:
    """`DraftLayer` by torch's and transformers' own operations.

    Args:
        parts: with their weights.
        model: the target, whose embedding serves where the head has none.
    """

    takes_states = True

    def __init__(self, parts: Eagle3Parts, model: PreTrainedModel) -> None:
        self._parts = parts
        self._layer: Any = parts.layers[0]
        self._vocab_size: int = model.config.vocab_size
        self.num_tokens, self.num_bytes = parts.config.num_tokens, parts.num_bytes
        self._embedding: Any = parts.embed_tokens or model.get_input_embeddings()
        self._rotary: Any = parts.make_rotary(parts.config.layer).to(model.device)
        self._states = self.hidden = torch.empty(0)

    @torch.inference_mode()
    def fused(self, inputs: Tensor) -> Tensor:
        """States [R, F] of what went into the target's layers, [R, 3F] side by side."""
        parts = self._parts
        if parts.fc_norm is not None:
            pieces = inputs.chunk(len(parts.fc_norm), dim=-1)
            normed = [norm(piece) for norm, piece in zip(parts.fc_norm, pieces, strict=True)]
            inputs = torch.cat(normed, dim=-1)
        if parts.input_norm is not None:
            inputs = parts.input_norm(inputs)
        states: Tensor = parts.fc(inputs)
        return states

    def take(self, states: Tensor) -> None:
        """See `DraftLayer`."""
        self._states = states

    @torch.inference_mode()
    def __call__(
        self, token_ids: Tensor, positions: Tensor, paged: Any, keep: Tensor | None
    ) -> Tensor:
        """See `DraftLayer`."""
        parts, layer = self._parts, self._layer
        tokens = layer.input_layernorm(self._embedding(token_ids))
        normed = layer.hidden_norm(self._states)
        rows = torch.cat([tokens, normed], dim=-1).unsqueeze(0)
        places = self._rotary(rows, position_ids=positions.unsqueeze(0))
        attended = layer.self_attn(
            hidden_states=rows, position_embeddings=places, attention_mask=None, paged=paged
        )[0][0]
        before = normed if parts.config.norm_before_residual else self._states
        if keep is not None:
            attended, before = attended[keep], before[keep]
        out = before + attended
        out = out + layer.mlp(layer.post_attention_layernorm(out))
        last = parts.norm(out)
        self.hidden = last if parts.config.norm_output else out
        return on_all_ids(parts.lm_head(last).float(), parts.draft_ids, self._vocab_size)


def _one_layer(config: PreTrainedConfig, model: PreTrainedModel) -> Any:
    """Shapes of a model of this one layer, whose attention is the target's."""
    target: Any = model.config
    shape: Any = shapes_of(config, model.dtype, target._attn_implementation)
    return shape.model
