"""One resumable training loop for both models, and how a checkpoint folder is written.

Weights and optimiser state stay in float32; the forward pass may run in bfloat16. Invariants: the
learning rate follows the step, never the clock; state and checkpoints replace the old ones in one
rename, so a reader never sees half a file.
"""

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from models.demo.data.mixture import Batch
from models.demo.training.tokenizer import MAX_LENGTH, save_tokenizer


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; heads and `intermediate_size` divide by 4, and none exceeds 1024."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int


TARGET_SHAPE = Shape(
    hidden_size=256, num_hidden_layers=8, num_attention_heads=4, intermediate_size=704
)
DRAFT_SHAPE = Shape(
    hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=352
)


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


def new_model(shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Return a Llama model with random weights and tied embeddings."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        **asdict(shape),
        vocab_size=len(tokenizer),
        num_key_value_heads=shape.num_attention_heads,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        rms_norm_eps=1e-5,
    )
    return LlamaForCausalLM(config)


def deepened(model: LlamaForCausalLM, num_layers: int, seed: int) -> LlamaForCausalLM:
    """Return `model` with further layers before its last one, which change nothing at first.

    Their output projections are zero, so training begins with what the model can do already.
    """
    num_more = num_layers - model.config.num_hidden_layers
    if num_more <= 0:
        return model
    torch.manual_seed(seed)
    config = LlamaConfig.from_dict(model.config.to_dict() | {"num_hidden_layers": num_layers})
    deeper = LlamaForCausalLM(config)
    last = model.config.num_hidden_layers - 1
    for layer in deeper.model.layers[last:-1]:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    for old, new in zip(
        model.model.layers, [*deeper.model.layers[:last], deeper.model.layers[-1]], strict=True
    ):
        new.load_state_dict(old.state_dict())
    deeper.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    deeper.model.norm.load_state_dict(model.model.norm.state_dict())
    return deeper


def save_checkpoint(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    """Write an ordinary bfloat16 checkpoint to `folder`, each file by rename."""
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        max_length=MAX_LENGTH,
    )
    copy.bfloat16().save_pretrained(fresh)
    for path in fresh.glob("*.safetensors"):
        path.chmod(0o644)
    save_tokenizer(tokenizer, fresh)
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(fresh.iterdir()):
        path.replace(folder / path.name)
    fresh.rmdir()


def reply_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Weighted cross entropy of every next token; `logits` are [rows, length, vocab]."""
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), batch.input_ids[:, 1:].flatten(), reduction="none"
    )
    weights = batch.weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


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
    """What happens to the state of a training that may be interrupted.

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


def plot_losses(curves: dict[str, list[float]], path: Path, smooth: int = 50) -> None:
    """Draw running means of the losses over the steps as a small PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), dpi=100)
    for name, losses in curves.items():
        means = [
            sum(losses[max(0, i - smooth) : i + 1]) / len(losses[max(0, i - smooth) : i + 1])
            for i in range(len(losses))
        ]
        axes.plot(means, label=name, linewidth=1)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.set_ylim(0, 3)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
