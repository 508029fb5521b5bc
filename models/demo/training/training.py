"""The pair's models: their sizes, how they begin, their loss, how a checkpoint folder is written.

Checkpoints replace the old ones in one rename, so a reader never sees half a file.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from models.demo.training.tokenizer import MAX_LENGTH, save_tokenizer
from models.distill.batches import Batch

Model = LlamaForCausalLM | Qwen2ForCausalLM
FAMILIES: Mapping[str, tuple[Callable[..., Any], Callable[..., Model]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),  # biases in the projections of attention
}


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
_SMOOTHED = 50  # steps before each whose losses the plot averages with its own


def new_model(
    shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int, family: str = "llama"
) -> Model:
    """Return a model of a family of `FAMILIES` with random weights and tied embeddings."""
    torch.manual_seed(seed)
    make_config, make = FAMILIES[family]
    config = make_config(
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
    return make(config)


def load_model(folder: Path, dtype: torch.dtype) -> Model:
    """Return a checkpoint of any of `FAMILIES`.

    Raises:
        ValueError: it is of another family.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    if not isinstance(model, Model):
        own = model.config.model_type
        message = f"{str(folder)!r} must be of family {' or '.join(FAMILIES)}, got {own!r}"
        raise ValueError(message)
    return model


def in_family(model: Model, tokenizer: PreTrainedTokenizerFast, family: str) -> Model:
    """Return `model` with a family's parts; biases that it lacked are zero and change nothing.

    Raises:
        ValueError: it has biases, and the family has none.
    """
    own = model.config.model_type
    if own == family:
        return model
    shape = Shape(**{field.name: getattr(model.config, field.name) for field in fields(Shape)})
    other, weights = new_model(shape, tokenizer, 0, family), model.state_dict()
    if lost := sorted(weights.keys() - other.state_dict().keys()):
        message = f"family {family!r} has no place for {lost[0]} of a {own!r} model"
        raise ValueError(message)
    zeros = {name: torch.zeros_like(value) for name, value in other.state_dict().items()}
    other.load_state_dict(zeros | weights)
    return other


def deepened(model: Model, num_layers: int, seed: int) -> Model:
    """Return `model` with further layers before its last one, which change nothing at first.

    Their output projections are zero, so training begins with what the model can do already.
    """
    num_more = num_layers - model.config.num_hidden_layers
    if num_more <= 0:
        return model
    torch.manual_seed(seed)
    settings = model.config.to_dict() | {"num_hidden_layers": num_layers}
    settings.pop("layer_types", None)  # those of the old number of layers; made anew
    config = type(model.config).from_dict(settings)
    deeper = FAMILIES[config.model_type][1](config)
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


def save_checkpoint(model: Model, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write an ordinary bfloat16 checkpoint to `folder`, each file by rename."""
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    copy = FAMILIES[model.config.model_type][1](model.config)
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


def plot_losses(curves: dict[str, list[float]], path: Path) -> None:
    """Draw running means of the losses over the steps as a small PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), dpi=100)
    for name, losses in curves.items():
        means = [fmean(losses[max(0, i - _SMOOTHED) : i + 1]) for i in range(len(losses))]
        axes.plot(means, label=name, linewidth=1)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.set_ylim(0, 3)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
