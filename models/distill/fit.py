"""One resumable training loop, for whatever trains.

Weights and optimiser state stay in float32; the forward pass may run in bfloat16. Invariants: the
learning rate follows the step, never the clock. State replaces the old one in one rename, so a
reader never sees half a file.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from models.distill.batches import Batch

_TRIM_EVERY = 20  # steps


@dataclass(frozen=True)
class Schedule:
    """Optimiser settings: linear warm-up, then a cosine down to a twentieth of the peak."""

    num_steps: int
    peak_lr: float
    num_warmup_steps: int
    save_every_steps: int = 100
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0

    def lr(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        if step < self.num_warmup_steps:
            return self.peak_lr * (step + 1) / self.num_warmup_steps
        progress = (step - self.num_warmup_steps) / max(1, self.num_steps - self.num_warmup_steps)
        return self.peak_lr * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def _optimizer(model: nn.Module, schedule: Schedule) -> torch.optim.AdamW:
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    groups = [
        {"params": matrices, "weight_decay": schedule.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=schedule.peak_lr, betas=(0.9, 0.95), fused=True)


@dataclass(frozen=True, kw_only=True)
class Saves:
    """The file of a training that may be interrupted, and its use.

    Attributes:
        path: file that holds it.
        resume: whether to go on from it where it exists.
        on_save: called after it was saved.
    """

    path: Path
    resume: bool
    on_save: Callable[[], None] | None = None


def fit(
    model: nn.Module,
    schedule: Schedule,
    make_batch: Callable[[int], Batch],
    loss_of: Callable[[Batch], Tensor],
    saves: Saves,
) -> list[float]:
    """Trains `model` in place and returns the loss of every step.

    Args:
        model: float32 weights.
        schedule: steps and rates.
        make_batch: the batch of a step, a function of the step alone.
        loss_of: the loss to be minimised.
        saves: where the state goes, and where it may come from.
    """
    state_path = saves.path
    optimizer = _optimizer(model, schedule)
    losses: list[float] = []
    if saves.resume and state_path.exists():
        state = torch.load(state_path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        losses = state["losses"]
    if len(losses) >= schedule.num_steps and saves.on_save is not None:  # nothing is left to do
        saves.on_save()
    model.train()
    bar = tqdm(
        range(len(losses), schedule.num_steps),
        initial=len(losses),
        total=schedule.num_steps,
        mininterval=5,
    )
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr(step)
        loss = loss_of(make_batch(step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), schedule.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        bar.set_postfix(loss=f"{sum(losses[-50:]) / len(losses[-50:]):.3f}", refresh=False)
        if (step + 1) % _TRIM_EVERY == 0:
            _return_freed_memory()
        if (step + 1) % schedule.save_every_steps == 0 or step + 1 == schedule.num_steps:
            _save_state(model, optimizer, losses, state_path)
            if saves.on_save is not None:
                saves.on_save()
    model.eval()
    return losses


def _save_state(
    model: nn.Module, optimizer: torch.optim.AdamW, losses: list[float], path: Path
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}, fresh
    )
    os.replace(fresh, path)
    path.with_suffix(".losses.json").write_text(json.dumps([round(loss, 4) for loss in losses]))


def keep_freed_memory() -> None:
    """Make glibc reuse freed blocks; where pages are dear, fresh ones cost most of a step."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def _return_freed_memory() -> None:
    """Give free pages back: blocks of many sizes leave ever more between those in use."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
