"""Medusa heads for a frozen model: what is trained, by what loss, and how they are written.

Head i learns the distribution that the target itself will have i + 1 places behind the token that
its state gives, along text sampled from the target: mostly by the divergence of the two, as a draft
model does. Only the residual layers train; the output layer is the target's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from models.demo.data.mixture import Batch
from models.demo.training.distill import KL_SHARE


class ResidualHeads(nn.Module):
    """Heads of one residual layer each, which begin as nothing: the state itself.

    Args:
        num_heads: of them.
        width: of the target's states.
    """

    def __init__(self, num_heads: int, width: int) -> None:
        super().__init__()
        layers = [nn.Linear(width, width) for _ in range(num_heads)]
        for layer in layers:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(layers)
        self.width = width

    def forward(self, states: Tensor) -> Iterator[Tensor]:
        """Of each head the states its logits are given by, of the same shape."""
        for layer in self.layers:
            yield states + F.silu(layer(states))


@torch.no_grad()
def states_of(target: LlamaForCausalLM, input_ids: Tensor) -> tuple[Tensor, Tensor]:
    """The target's last states [rows, length, F] and their logits [rows, length, V]."""
    with fast_products():
        states = target.model(input_ids=input_ids, use_cache=False).last_hidden_state
        return states, target.lm_head(states)


def fast_products() -> torch.autocast:
    """Products of bfloat16 where the processor has them."""
    return torch.autocast(
        "cpu", torch.bfloat16, enabled=torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def heads_loss(heads: ResidualHeads, target: LlamaForCausalLM, batch: Batch) -> Tensor:
    """The mean over the heads of KL_SHARE * KL(target || head) + the rest * cross entropy."""
    states, whole = states_of(target, batch.input_ids)
    losses = []
    with fast_products():
        for place, own in enumerate(heads(states), start=1):
            logits = target.lm_head(own[:, : -1 - place])
            losses.append(_loss(logits, whole[:, place:-1], batch, place))
    return torch.stack(losses).mean()


def _loss(logits: Tensor, wanted: Tensor, batch: Batch, place: int) -> Tensor:
    """Of one head: `wanted` are the target's own logits, one row for each of `logits`."""
    student = torch.log_softmax(logits.float(), dim=-1)
    teacher = torch.log_softmax(wanted.float(), dim=-1)
    divergence = (teacher.exp() * (teacher - student)).sum(dim=-1)
    ids = batch.input_ids[:, 1 + place :]
    surprise = -student.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    weights = batch.weights[:, 1 + place :]
    return ((KL_SHARE * divergence + (1 - KL_SHARE) * surprise) * weights).sum() / weights.sum()


@torch.no_grad()
def acceptance(
    heads: ResidualHeads, target: LlamaForCausalLM, batch: Batch
) -> list[tuple[float, float]]:
    """Of each head how often its token would be the target's: greedy, and under shared noise at
    temperature 1 (the expectation over the noise)."""
    states, whole = states_of(target, batch.input_ids)
    found = []
    for place, own in enumerate(heads(states.float()), start=1):
        theirs = torch.softmax(whole[:, place:-1].float(), dim=-1).flatten(0, 1)
        logits = F.linear(own[:, : -1 - place], target.get_output_embeddings().weight)
        drafted = torch.softmax(logits.float(), dim=-1).flatten(0, 1)
        is_reply = batch.weights[:, 1 + place :].flatten() == 1.0
        theirs, drafted = theirs[is_reply], drafted[is_reply]
        same = (theirs.argmax(1) == drafted.argmax(1)).float().mean()
        shared = torch.stack([coupled(p, q) for p, q in zip(theirs, drafted, strict=True)]).mean()
        found.append((float(same), float(shared)))
    return found


def coupled(p: Tensor, q: Tensor) -> Tensor:
    """The chance that argmax(log p + g) is argmax(log q + g): sum over x of
    1 / sum over y of max(p_y / p_x, q_y / q_x). An x that one of them hardly says adds nothing."""
    is_likely = (p > 1e-4) & (q > 1e-6)
    own_p, own_q = p[is_likely, None], q[is_likely, None]
    return (1.0 / torch.maximum(p / own_p, q / own_q).sum(dim=1)).sum()


def save_heads(heads: ResidualHeads, folder: Path) -> None:
    """Write them in bfloat16, in vLLM's spelling of a Medusa folder."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        f"blocks.{index}.layers.0.{kind}": value.bfloat16().contiguous()
        for index, layer in enumerate(heads.layers)
        for kind, value in layer.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": heads.width,
        "num_heads": len(heads.layers),
        "num_hidden_layers": 1,
        "medusa_fc_bias": True,
        "original_lm_head": True,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
