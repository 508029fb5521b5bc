"""An MTP head: one decoder layer that drafts token after token from the target's states.

Its row at position p joins the state that gave token p with that token's embedding. It gives the
state for token p + 1. The target's own output layer makes logits of it. The next row takes this
state in place of the target's. So one layer drafts as many tokens as are wanted, each with keys in
the KV cache. Sources: DeepSeek-V3 2412.19437 2.2, FastMTP 2509.18362.

Folders are those of `speculators`, model_type mtp:

    config.json     num_nextn_predict_layers (1), num_speculative_steps, and beside them
                    speculators_config.proposal_methods with speculative_tokens
    *.safetensors   mtp_layers.0.NAME.weight: token_layernorm, hidden_layernorm, input_proj,
                    final_layernorm, and all of a decoder layer like the target's; optionally
                    d2t [N]: the ids that it drafts, each less its place, in place of all

Shape letters: R rows, n rows whose logits are wanted, F hidden size, N draft ids, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from models.heads.config import proposed_tokens, read_heads_config
from models.heads.draft_ids import draft_ids
from models.heads.folder import stored_weights
from models.layers.family import refuse_other_families

_PREFIX = "mtp_layers.0."


class MtpParts(nn.Module):
    """The weights of an MTP head for one target.

    Args:
        model: the target, or its shape on the meta device; its last layer says what the head's is.
        device: of the weights; None: the model's.

    Raises:
        ValueError: the target is not of a family whose layers are known.
    """

    def __init__(self, model: PreTrainedModel, device: torch.device | None = None) -> None:
        super().__init__()
        config: Any = model.config
        refuse_other_families(model, "MTP heads")
        inner: Any = model.model
        width, epsilon = config.hidden_size, config.rms_norm_eps
        norm = type(inner.norm)
        like = {"dtype": model.dtype, "device": model.device}
        self.token_layernorm = norm(width, eps=epsilon).to(**like)
        self.hidden_layernorm = norm(width, eps=epsilon).to(**like)
        self.input_proj = nn.Linear(2 * width, width, bias=False, **like)
        self.layer = copy.deepcopy(inner.layers[-1])
        self.layer.self_attn.layer_idx = config.num_hidden_layers
        self.final_layernorm = norm(width, eps=epsilon).to(**like)
        output: Any = model.get_output_embeddings()
        self.vocab_size = output.out_features
        self.draft_ids: Tensor | None = None  # [N]; None: all
        self.num_tokens = 1
        if device is not None:
            self.to_empty(device=device)

    def named_weights(self) -> dict[str, nn.Parameter]:
        """Return the weights by the keys of the folder, without their prefix."""
        return {name.removeprefix("layer."): value for name, value in self.named_parameters()}

    @property
    def num_bytes(self) -> int:
        """The most bytes that it takes beside the target.

        They include the rows of the output layer that it drafts, packed anew or rounded.
        """
        weights = list(self.parameters())
        num_outputs = self.vocab_size if self.draft_ids is None else len(self.draft_ids)
        return sum(weight.nbytes for weight in weights) + num_outputs * weights[0].nbytes

    @property
    def projections(self) -> tuple[Tensor, Tensor]:
        """[F, F] of the states and of the embeddings."""
        weight = self.input_proj.weight.detach()
        width = len(weight)
        return weight[:, :width].contiguous(), weight[:, width:].contiguous()


def read_mtp(folder: Path, model: PreTrainedModel, device: torch.device | None = None) -> MtpParts:
    """Read the MTP head of a folder for a target, in its type and on its device or another.

    Raises:
        ValueError: the folder holds no such head, or one for another target; names the key.
    """
    config = read_heads_config(folder)
    name = f"heads {str(folder)!r}"
    if (num_layers := config.get("num_nextn_predict_layers", 1)) != 1:
        raise ValueError(f"{name}: num_nextn_predict_layers must be 1, got {num_layers!r}")
    parts = MtpParts(model, device)
    parts.num_tokens = proposed_tokens(name, config, 1)
    stored = stored_weights(folder)
    parts.draft_ids = draft_ids(name, stored.pop("d2t", None), parts.vocab_size)
    fill(parts, stored, name, lambda part: f"{_PREFIX}{part}")
    return parts


def fill(
    parts: MtpParts, stored: Mapping[str, Tensor], name: str, key_of: Callable[[str], str]
) -> None:
    """Give a head its weights.

    Args:
        parts: of the head.
        stored: weights by the keys of their folder.
        name: of the folder, for refusals.
        key_of: the folder's key for one of `named_weights`.

    Raises:
        ValueError: one is missing, has another shape, or is no part of a head; names its key.
    """
    left = dict(stored)
    with torch.no_grad():
        for part, weight in parts.named_weights().items():
            key = key_of(part)
            found = left.pop(key, None)
            if found is None:
                raise ValueError(f"{name} lacks {key}")
            if found.shape != weight.shape:
                raise ValueError(
                    f"{name}: {key} has shape {list(found.shape)}, "
                    f"the target needs {list(weight.shape)}"
                )
            weight.copy_(found)
    if left:
        raise ValueError(f"{name} has {min(left)}, which is no part of an MTP head")


class MtpForward:
    """`DraftLayer` by transformers' own layer.

    Args:
        parts: as they were read, or this rank's share of their layer.
        model: the target, which its embedding is asked of.
        output: makes logits [n, V] of states [n, F].
    """

    takes_states = True

    def __init__(self, parts: MtpParts, model: PreTrainedModel, output: nn.Module) -> None:
        self._parts, self._model, self._output = parts, model, output
        self.num_tokens, self.num_bytes = parts.num_tokens, parts.num_bytes
        self._states = self.hidden = torch.empty(0)

    def take(self, states: Tensor) -> None:
        """See `DraftLayer`."""
        self._states = states

    @torch.inference_mode()
    def __call__(
        self, token_ids: Tensor, positions: Tensor, paged: Any, keep: Tensor | None
    ) -> Tensor:
        """See `DraftLayer`."""
        parts, model = self._parts, self._model
        tokens = model.get_input_embeddings()(token_ids)
        normed = [parts.hidden_layernorm(self._states), parts.token_layernorm(tokens)]
        rows = parts.input_proj(torch.cat(normed, dim=-1)).unsqueeze(0)
        inner: Any = model.model
        places = inner.rotary_emb(rows, position_ids=positions.unsqueeze(0))
        rows = parts.layer(rows, position_embeddings=places, paged=paged, use_cache=False)[0]
        self.hidden = parts.final_layernorm(rows if keep is None else rows[keep])
        logits: Tensor = self._output(self.hidden)
        return logits.float()
