"""An MTP head for a frozen model: one decoder layer that guesses on from the target's last state.

Its row at position p joins the state that gave token p with that token. It gives the state for
token p + 1. Further steps of a draft take the head's own state in place of the target's. Training
does the same. Step n of every row attends to the keys that the steps before it would have left in
the cache. These are rows of true states up to n - 1 places before it, and one row per step since.
Sources: DeepSeek-V3 2412.19437 2.2; one layer again and again as in FastMTP 2509.18362.

Shape letters: B rows of the batch, L length, F hidden size, H heads, K key heads, D head size.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm, rotate_half

from models.distill.student import Step
from models.distill.teacher import Lesson, Teacher
from models.layers.family import can_take_apart


class _Keys(NamedTuple):
    """Keys and values that one step leaves for later ones, each [B, H, L, D]."""

    keys: Tensor
    values: Tensor


class MtpLayer(nn.Module):
    """The layer; it begins as the target's last one.

    Args:
        target: a model of the Llama family, whose embedding and output layer it shares.

    Raises:
        ValueError: the target is of another family.
    """

    def __init__(self, target: Any) -> None:
        super().__init__()
        if not can_take_apart(target):
            raise ValueError(
                "MTP heads can be trained for Llama, Mistral, Qwen2 and Qwen3, "
                f"not for {target.config.model_type}"
            )
        config = target.config
        width, epsilon = config.hidden_size, config.rms_norm_eps
        last = copy.deepcopy(target.model.layers[-1]).requires_grad_(True)
        self.token_layernorm = LlamaRMSNorm(width, eps=epsilon)
        self.hidden_layernorm = LlamaRMSNorm(width, eps=epsilon)
        self.input_proj = nn.Linear(2 * width, width, bias=False)
        with torch.no_grad():
            nn.init.normal_(self.input_proj.weight, std=0.5 * width**-0.5)
            self.input_proj.weight[:, :width] += 0.5 * torch.eye(width)
        self.input_layernorm = last.input_layernorm
        self.self_attn = last.self_attn
        self.post_attention_layernorm = last.post_attention_layernorm
        self.mlp = last.mlp
        self.final_layernorm = copy.deepcopy(target.model.norm).requires_grad_(True)
        self._rotary: Any = [target.model.rotary_emb]  # no part of what trains

    def forward(self, states: Tensor, tokens: Tensor, earlier: list[_Keys]) -> Tensor:
        """Compute a step of all rows: states [B, L, F] that give the next tokens' logits.

        Args:
            states: [B, L, F] row p has the state that gave token p.
            tokens: [B, L, F] the tokens' embeddings.
            earlier: keys of the steps before this one; its own are appended.
        """
        joined = torch.cat([self.hidden_layernorm(states), self.token_layernorm(tokens)], dim=-1)
        mixed = self.input_proj(joined)
        mixed = mixed + self._attend(self.input_layernorm(mixed), earlier)
        mixed = mixed + self.mlp(self.post_attention_layernorm(mixed))
        return self.final_layernorm(mixed)

    def _attend(self, mixed: Tensor, earlier: list[_Keys]) -> Tensor:
        attention = self.self_attn
        num_rows, length, _ = mixed.shape
        split = (num_rows, length, -1, attention.head_dim)
        query, key, value = (
            product(mixed).view(split).transpose(1, 2)
            for product in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        places = torch.arange(length).unsqueeze(0)
        cos, sin = (each.unsqueeze(1) for each in self._rotary[0](mixed, places))
        if hasattr(attention, "q_norm"):  # Qwen3
            query, key = attention.q_norm(query), attention.k_norm(key)
        query = query * cos + rotate_half(query) * sin
        key = key * cos + rotate_half(key) * sin
        num_groups = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(num_groups, dim=1) for each in (key, value))
        earlier.append(_Keys(key, value))
        attended = _attention(query, earlier, attention.scaling)
        return attention.o_proj(attended.transpose(1, 2).flatten(2))


def _attention(query: Tensor, steps: list[_Keys], scale: float) -> Tensor:
    """Compute attention [B, H, L, D] of the newest step's rows.

    A row sees keys of the first step, up to as many places back as there were steps since. It also
    sees one key of each of these steps.
    """
    length, num_since = query.shape[2], len(steps) - 1
    first = steps[0]
    may_see = torch.ones(length, length, dtype=torch.bool).tril(-num_since)
    scores = (query @ first.keys.transpose(2, 3) * scale).float()
    scores = scores.masked_fill(~may_see, -torch.inf)
    own = [_shifted(step, num_since - number) for number, step in enumerate(steps[1:], start=1)]
    own_scores = [(query * step.keys).sum(-1, keepdim=True).float() * scale for step in own]
    weights = torch.softmax(torch.cat([scores, *own_scores], dim=-1), dim=-1).to(query.dtype)
    attended = weights[..., :length] @ first.values
    for number, step in enumerate(own):
        attended = attended + weights[..., length + number, None] * step.values
    return attended


def _shifted(step: _Keys, places: int) -> _Keys:
    """Shift the rows: each gets the content of the row `places` before it."""
    return _Keys(*(F.pad(each, (0, 0, places, 0))[:, :, : each.shape[2]] for each in step))


class MtpStudent:
    """An MTP head that trains.

    Args:
        teacher: its target.
        num_steps: the longest draft it is trained for.
    """

    decay = 0.6

    def __init__(self, teacher: Teacher, num_steps: int) -> None:
        self._teacher, self._num_steps = teacher, num_steps
        self.module = MtpLayer(teacher.model).float()

    def steps(self, lesson: Lesson) -> Iterator[Step]:
        """See `Student`; a step more has no true state behind one more of the first places."""
        tokens = self._teacher.embed(lesson.input_ids)
        earlier: list[_Keys] = []
        states = lesson.states
        for number in range(self._num_steps):
            states = self.module(F.pad(states, (0, 0, 1, 0))[:, :-1], tokens, earlier)
            yield Step(number, states, self._teacher.output)

    def save(self, folder: Path) -> None:
        """See `Student`."""
        save_mtp(self.module, self._teacher, folder, self._num_steps)


def save_mtp(layer: MtpLayer, teacher: Teacher, folder: Path, num_steps: int) -> None:
    """Write it in bfloat16 as an MTP folder of `speculators`."""
    target: Any = teacher.model
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        f"mtp_layers.0.{name}": value.bfloat16().contiguous()
        for name, value in layer.state_dict().items()
    }
    if teacher.draft_ids is not None:
        weights["d2t"] = teacher.draft_ids - torch.arange(len(teacher.draft_ids))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["MtpSpeculator"],
        "speculators_model_type": "mtp",
        "num_nextn_predict_layers": 1,
        "num_speculative_steps": num_steps,
        "transformer_layer_config": target.config.to_diff_dict(),
        "speculators_config": {
            "algorithm": "mtp",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": num_steps}],
            "verifier": {"architectures": target.config.architectures, "name_or_path": None},
        },
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
