"""An MTP head for a frozen model: one decoder layer that guesses on from the target's last state.

Its row at position p joins the state that gave token p with that token and gives the state for
token p + 1; a draft's further steps take the head's own state in place of the target's. Training
does the same: step n of every row attends to what the steps before it would have left in the
cache, which is rows of true states up to n - 1 places before it and one row of each step since
(DeepSeek-V3 2412.19437 2.2; one layer again and again as in FastMTP 2509.18362).

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
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm, rotate_half

from models.demo.data.mixture import Batch
from models.demo.training.distill import KL_SHARE
from models.demo.training.heads import coupled, fast_products, states_of

_STEP_DECAY = 0.6  # weight of a step's loss beside that of the step before it
_HYBRID_RATE = 3.0  # how fast lk_hybrid turns from divergence to distance as acceptance grows
LOSSES = ("kl", "lk_hybrid", "nla")


class _Keys(NamedTuple):
    """What one step leaves for later ones, each [B, H, L, D]."""

    keys: Tensor
    values: Tensor


class MtpLayer(nn.Module):
    """The layer; it begins as the target's last one.

    Args:
        target: a model of Llama's layers, whose embedding and output layer it shares.
    """

    def __init__(self, target: LlamaForCausalLM) -> None:
        super().__init__()
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
        """One step of all rows: states [B, L, F] that give the next tokens' logits.

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
        query = query * cos + rotate_half(query) * sin
        key = key * cos + rotate_half(key) * sin
        num_groups = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(num_groups, dim=1) for each in (key, value))
        earlier.append(_Keys(key, value))
        attended = _attention(query, earlier, attention.scaling)
        return attention.o_proj(attended.transpose(1, 2).flatten(2))


def _attention(query: Tensor, steps: list[_Keys], scale: float) -> Tensor:
    """Attention [B, H, L, D] of the newest step's rows: to the first step's keys up to as many
    places back as there were steps since, and to one key of each of these."""
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
    """Each row has what `places` rows before it had."""
    return _Keys(*(F.pad(each, (0, 0, places, 0))[:, :, : each.shape[2]] for each in step))


def _steps(
    layer: MtpLayer, target: LlamaForCausalLM, batch: Batch, states: Tensor, num_steps: int
) -> Iterator[Tensor]:
    """Of each step the states [B, L, F] that should give the logits the target gives there."""
    tokens = target.model.embed_tokens(batch.input_ids)
    earlier: list[_Keys] = []
    for _ in range(num_steps):
        states = layer(F.pad(states, (0, 0, 1, 0))[:, :-1], tokens, earlier)
        yield states


def mtp_loss(
    layer: MtpLayer, target: LlamaForCausalLM, batch: Batch, kind: str, num_steps: int
) -> Tensor:
    """The mean of `num_steps` steps' losses, later ones counting less.

    Args:
        layer: what trains.
        target: frozen.
        batch: its text.
        kind: one of `LOSSES`: `kl` is the divergence as a draft model learns by, `lk_hybrid` turns
            from it to the total variation as acceptance grows, `nla` is -log acceptance.
        num_steps: the longest draft it is trained for.
    """
    states, whole = states_of(target, batch.input_ids)
    total, weight = whole.new_zeros((), dtype=torch.float32), 1.0
    sum_of_weights = 0.0
    with fast_products():
        for number, own in enumerate(_steps(layer, target, batch, states, num_steps)):
            rows = slice(number, -1)  # a step more has no true state behind the first ones
            logits = target.lm_head(own[:, rows])
            total = total + weight * _loss(logits, whole[:, rows], batch, number, kind)
            sum_of_weights += weight
            weight *= _STEP_DECAY
    return total / sum_of_weights


def _loss(logits: Tensor, wanted: Tensor, batch: Batch, first: int, kind: str) -> Tensor:
    """Of one step, by the rows from `first` on."""
    ids, weights = batch.input_ids[:, 1 + first :], batch.weights[:, 1 + first :]
    student = torch.log_softmax(logits.float(), dim=-1)
    teacher = torch.log_softmax(wanted.float(), dim=-1)
    divergence = (teacher.exp() * (teacher - student)).sum(dim=-1)
    if kind == "kl":
        surprise = -student.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        losses = KL_SHARE * divergence + (1 - KL_SHARE) * surprise
    else:
        accepted = torch.minimum(student.exp(), teacher.exp()).sum(dim=-1)
        share = torch.exp(-_HYBRID_RATE * accepted.detach())
        hybrid = share * divergence + (1 - share) * (1 - accepted)
        losses = hybrid if kind == "lk_hybrid" else -accepted.clamp_min(1e-6).log()
    return (losses * weights).sum() / weights.sum()


@torch.no_grad()
def mtp_acceptance(
    layer: MtpLayer, target: LlamaForCausalLM, batch: Batch, num_steps: int
) -> list[tuple[float, float]]:
    """Of each step how often its token would be the target's, given that those before it were:
    greedy, and under shared noise at temperature 1 (the expectation over the noise).

    Steps are given the text's tokens: those before a step count as right.
    """
    states, whole = states_of(target, batch.input_ids)
    found = []
    for number, own in enumerate(_steps(layer, target, batch, states.float(), num_steps)):
        rows = slice(number, -1)
        is_reply = batch.weights[:, 1 + number :].flatten() == 1.0
        theirs = torch.softmax(whole[:, rows].float(), dim=-1).flatten(0, 1)[is_reply]
        logits = F.linear(own[:, rows], target.get_output_embeddings().weight)
        drafted = torch.softmax(logits.float(), dim=-1).flatten(0, 1)[is_reply]
        same = (theirs.argmax(1) == drafted.argmax(1)).float().mean()
        shared = torch.stack([coupled(p, q) for p, q in zip(theirs, drafted, strict=True)]).mean()
        found.append((float(same), float(shared)))
    return found


def save_mtp(layer: MtpLayer, target: LlamaForCausalLM, folder: Path, num_steps: int) -> None:
    """Write it in bfloat16 as an MTP folder of `speculators`."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        f"mtp_layers.0.{name}": value.bfloat16().contiguous()
        for name, value in layer.state_dict().items()
    }
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
