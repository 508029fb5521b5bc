"""A small draft model for any target: a Llama with the target's tokenizer.

Its embedding, which serves as its output layer too, begins as the projection of the target's to its
main directions. So tokens that are alike to the target are alike to the draft from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from models.distill.student import Step
from models.distill.teacher import Lesson, Teacher

_EMBEDDING_SPREAD = 0.02  # standard deviation that Llama's embeddings begin with


@dataclass(frozen=True, kw_only=True)
class DraftSizes:
    """Sizes of a draft model, as its config will have them."""

    hidden_size: int = 192
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    intermediate_size: int = 512


class DraftStudent:
    """A draft model that trains.

    Args:
        teacher: its target, without `draft_ids`: a draft model speaks of all tokens.
        tokenizer: the target's.
        sizes: of the draft.
        seed: of its first weights.
    """

    decay = 1.0

    def __init__(
        self, teacher: Teacher, tokenizer: PreTrainedTokenizerBase, sizes: DraftSizes, seed: int
    ) -> None:
        target: Any = teacher.model
        torch.manual_seed(seed)
        self._target, self._tokenizer = target, tokenizer
        self.module = LlamaForCausalLM(
            LlamaConfig(
                **asdict(sizes),
                vocab_size=teacher.vocab_size,
                max_position_embeddings=target.config.max_position_embeddings,
                tie_word_embeddings=True,
                bos_token_id=target.config.bos_token_id,
                eos_token_id=target.config.eos_token_id,
                pad_token_id=target.config.pad_token_id,
            )
        )
        embedding = target.get_input_embeddings().weight.detach().float()
        with torch.no_grad():
            self.module.model.embed_tokens.weight.copy_(_compressed(embedding, sizes.hidden_size))

    def steps(self, lesson: Lesson) -> Iterator[Step]:
        """See `Student`: it drafts by itself, so the next token is all it learns."""
        model: Any = self.module
        inner = model.model(input_ids=lesson.input_ids, use_cache=False)
        yield Step(0, inner.last_hidden_state, model.lm_head.weight)

    def save(self, folder: Path) -> None:
        """See `Student`: an ordinary checkpoint in bfloat16."""
        copy = LlamaForCausalLM(self.module.config)
        copy.load_state_dict(self.module.state_dict())
        ends = self._target.generation_config
        copy.generation_config = GenerationConfig(
            eos_token_id=ends.eos_token_id, pad_token_id=ends.pad_token_id
        )
        copy.bfloat16().save_pretrained(folder)
        self._tokenizer.save_pretrained(folder)


def _compressed(embedding: Tensor, width: int) -> Tensor:
    """[V, width] of an embedding [V, F]; further columns are noise where F is less."""
    centred = embedding - embedding.mean(dim=0)
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)
    kept = centred @ directions[:, :width]
    kept = _EMBEDDING_SPREAD * kept / kept.std().clamp_min(1e-6)
    missing = _EMBEDDING_SPREAD * torch.randn(len(kept), width - kept.shape[1])
    return torch.cat([kept, missing], dim=1)
