"""The frozen target as a teacher: its states along a text, and what it would say next there.

Shape letters: B rows, L length, F hidden size, V vocabulary, N ids that are drafted, K places whose
next token is learnt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from models.distill.batches import Batch

_PART_PLACES = 256  # places whose logits of the whole vocabulary are there at once


@dataclass(frozen=True, slots=True)
class Lesson:
    """A batch with the target's states and probabilities.

    Attributes:
        input_ids: [B, L] the text.
        states: [B, L, F] the target's last states, normed: what its output layer takes.
        weights: [B, L - 1] how much the token behind each place counts; 0: not at all.
        numbers: [B, L - 1] which of the K rows of `log_probs` is a place's; -1: none.
        log_probs: [K, N] the target's log-probabilities of the ids that are drafted.
        columns: [K] the column of the token that the text goes on with; -1: it is not drafted.
    """

    input_ids: Tensor
    states: Tensor
    weights: Tensor
    numbers: Tensor
    log_probs: Tensor
    columns: Tensor


class Teacher:
    """Asks the target.

    Args:
        model: frozen; of any architecture.
        draft_ids: [N] the ids that are drafted, in rising order; None: all.
        cache_mib: states of rows that were seen are kept in so much memory: of a small head the
            target's pass is most of a step.

    Raises:
        ValueError: the model does more to its logits than its output layer.
    """

    def __init__(
        self, model: PreTrainedModel, draft_ids: Tensor | None = None, cache_mib: int = 0
    ) -> None:
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if (value := getattr(model.config, name, None)) not in (None, 1.0):
                raise ValueError(f"no drafter is trained for a target with {name}, got {value}")
        self.model = model
        self._room = cache_mib << 20
        self._kept: dict[bytes, Tensor] = {}  # by the row's ids
        self.draft_ids = draft_ids
        output: Any = model.get_output_embeddings()
        whole: Tensor = output.weight.detach()
        self.vocab_size = len(whole)
        # Rows of the output layer, [N, F]: what gives a drafting head's logits.
        self.output = whole if draft_ids is None else whole[draft_ids]
        self._column_of = torch.arange(self.vocab_size)
        if draft_ids is not None:
            self._column_of = torch.full((self.vocab_size,), -1)
            self._column_of[draft_ids] = torch.arange(len(draft_ids))

    @torch.no_grad()
    def look(self, batch: Batch) -> Lesson:
        """Run the target on a batch and return the lesson."""
        weights = batch.weights[:, 1:]
        is_learnt = weights > 0
        numbers = torch.full(weights.shape, -1)
        numbers[is_learnt] = torch.arange(int(is_learnt.sum()))
        states = self._states(batch.input_ids)
        parts = [self._log_probs(each) for each in states[:, :-1][is_learnt].split(_PART_PLACES)]
        log_probs = torch.cat(parts)
        columns = self._column_of[batch.input_ids[:, 1:][is_learnt]]
        return Lesson(batch.input_ids, states, weights, numbers, log_probs, columns)

    def _log_probs(self, states: Tensor) -> Tensor:
        model: Any = self.model
        with fast_products():
            logits = model.get_output_embeddings()(states).float()
        drafted = logits if self.draft_ids is None else logits[:, self.draft_ids]
        return drafted - logits.logsumexp(dim=-1, keepdim=True)

    def _states(self, input_ids: Tensor) -> Tensor:
        keys = [row.numpy().tobytes() for row in input_ids]
        if all(key in self._kept for key in keys):
            return torch.stack([self._kept[key] for key in keys])
        model: Any = self.model
        with fast_products():
            states: Tensor = model.base_model(
                input_ids=input_ids, use_cache=False
            ).last_hidden_state
        for key, row in zip(keys, states, strict=True):
            if key not in self._kept and row.nbytes <= self._room:
                self._kept[key] = row.clone()
                self._room -= row.nbytes
        return states

    def embed(self, input_ids: Tensor) -> Tensor:
        """Return the target's embeddings [B, L, F] of tokens."""
        model: Any = self.model
        embedded: Tensor = model.get_input_embeddings()(input_ids)
        return embedded


def fast_products() -> torch.autocast:
    """Products of bfloat16 where the processor has them."""
    return torch.autocast(
        "cpu", torch.bfloat16, enabled=torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def logits_of(states: Tensor, output: Tensor) -> Tensor:
    """Logits [..., N] of states [..., F]."""
    return F.linear(states, output)
