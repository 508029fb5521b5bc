"""Makes the demo pair: `python -m models.demo.train --corpus DIR --out OUT`.

`--generated-only` in place of `--corpus` takes no outside text. It trains the tokenizer, then the
target, then distils the draft, and writes both folders and the loss curve. A run that was stopped
goes on with `--resume`. Seeds are fixed; threads and hardware still change the last bits of the
weights.
"""

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from models.demo.data.mixture import TASKS, Mixture, make_batch
from models.demo.training.samples import distillation_loss, make_mixed_batch, sample_replies
from models.demo.training.tokenizer import VOCAB_SIZE, save_tokenizer, train_tokenizer
from models.demo.training.training import (
    DRAFT_SHAPE,
    FAMILIES,
    TARGET_SHAPE,
    Model,
    Shape,
    deepened,
    in_family,
    load_model,
    new_model,
    plot_losses,
    reply_loss,
    save_checkpoint,
)
from models.distill.batches import Batch
from models.distill.fit import Saves, Schedule, fit, keep_freed_memory

SEED = 20
TOKENIZER_TEXTS = 30_000


@dataclass(frozen=True)
class Plan:
    """Everything a run depends on besides its data."""

    out: Path
    work: Path
    num_steps: int
    num_draft_steps: int
    num_sampled_tokens: int
    step_tokens: int
    resume: bool
    dtype: torch.dtype = torch.bfloat16  # type of the forward pass
    compile: bool = True  # pays from some hundred steps on
    target_shape: Shape = TARGET_SHAPE
    draft_shape: Shape = DRAFT_SHAPE
    start: Path | None = None  # folder of a pair whose tokenizer and weights are trained on
    draft_start: Path | None = None  # checkpoint that the draft begins as, in place of the pair's
    is_draft_new: bool = False  # the draft begins with random weights, also beside a start
    family: str | None = None  # one of FAMILIES; None: as the start has it, or a Llama
    seed: int = SEED
    target_lr: float = 2e-3
    draft_lr: float = 4e-3
    vocab_size: int = VOCAB_SIZE
    num_tokenizer_texts: int = TOKENIZER_TEXTS


def make_pair(plan: Plan, mixture: Mixture) -> None:
    """Train both models and write `target/`, `draft/` and `loss.png` under `plan.out`."""
    tokenizer = _tokenizer(plan, mixture)
    mixture = mixture.with_pieces(tokenizer)
    target = _model(plan, "target", tokenizer)
    draft = _model(plan, "draft", tokenizer)
    if not plan.resume:  # something loadable from the first minute on
        save_checkpoint(target, tokenizer, plan.out / "target")
        save_checkpoint(draft, tokenizer, plan.out / "draft")
    curves = {"target": train_target(plan, mixture, tokenizer, target)}
    curves["draft (distillation)"] = distil_draft(plan, mixture, tokenizer, target, draft)
    plot_losses(curves, plan.out / "loss.png")


def _model(plan: Plan, name: str, tokenizer: PreTrainedTokenizerFast) -> Model:
    """Return the target or the draft in float32, from its start or with random weights."""
    shape, seed = {
        "target": (plan.target_shape, plan.seed),
        "draft": (plan.draft_shape, plan.seed + 1),
    }[name]
    folder = None if plan.start is None else plan.start / name
    if name == "draft":
        folder = None if plan.is_draft_new else plan.draft_start or folder
    if folder is None:
        return new_model(shape, tokenizer, seed, plan.family or "llama")
    model = load_model(folder, torch.float32)
    if plan.family is not None:
        model = in_family(model, tokenizer, plan.family)
    return deepened(model, shape.num_hidden_layers, seed)


def _tokenizer(plan: Plan, mixture: Mixture) -> PreTrainedTokenizerFast:
    if plan.start is not None:
        return PreTrainedTokenizerFast.from_pretrained(plan.start / "target")
    folder = plan.work / "tokenizer"
    if plan.resume and (folder / "tokenizer.json").exists():
        return PreTrainedTokenizerFast.from_pretrained(folder)
    rng = random.Random(plan.seed)
    chats = [mixture.draw(rng) for _ in range(plan.num_tokenizer_texts)]
    tokenizer = train_tokenizer(
        (text for chat in chats for text, _ in chat.segments()), plan.vocab_size
    )
    save_tokenizer(tokenizer, folder)
    return tokenizer


def _logits_of(plan: Plan, model: Model) -> Callable[[Tensor], Tensor]:
    """Return the forward pass over float32 weights, in `plan.dtype`, compiled where asked."""
    compiled = torch.compile(model, dynamic=False) if plan.compile else model

    def forward(input_ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=plan.dtype == torch.bfloat16):
            logits: Tensor = compiled(input_ids=input_ids, use_cache=False).logits
        return logits

    return forward


def train_target(
    plan: Plan, mixture: Mixture, tokenizer: PreTrainedTokenizerFast, target: Model
) -> list[float]:
    """Train the target in place, with a usable checkpoint written at every save."""
    schedule = Schedule(
        plan.num_steps, peak_lr=plan.target_lr, num_warmup_steps=min(150, plan.num_steps // 10 + 1)
    )
    logits_of = _logits_of(plan, target)

    def loss_of(batch: Batch) -> Tensor:
        return reply_loss(logits_of(batch.input_ids), batch)

    return fit(
        target,
        schedule,
        make_batch=lambda step: make_batch(mixture, tokenizer, plan.seed, step, plan.step_tokens),
        loss_of=loss_of,
        saves=Saves(
            path=plan.work / "target.pt",
            resume=plan.resume,
            on_save=lambda: save_checkpoint(target, tokenizer, plan.out / "target"),
        ),
    )


def distil_draft(
    plan: Plan,
    mixture: Mixture,
    tokenizer: PreTrainedTokenizerFast,
    target: Model,
    draft: Model,
) -> list[float]:
    """Train the draft in place on the target's distributions."""
    path = plan.work / "samples.pt"
    if plan.resume and path.exists():
        samples = torch.load(path, weights_only=True)
    else:
        served = load_model(plan.out / "target", torch.bfloat16)
        samples = sample_replies(served, tokenizer, mixture, plan.num_sampled_tokens, plan.seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(samples, path)
    schedule = Schedule(
        plan.num_draft_steps,
        peak_lr=plan.draft_lr,
        num_warmup_steps=min(100, plan.num_draft_steps // 10 + 1),
    )
    teacher_of, student_of = _logits_of(plan, target), _logits_of(plan, draft)

    def loss_of(batch: Batch) -> Tensor:
        with torch.no_grad():
            teacher_logits = teacher_of(batch.input_ids)
        return distillation_loss(student_of(batch.input_ids), teacher_logits, batch)

    return fit(
        draft,
        schedule,
        make_batch=lambda step: make_mixed_batch(
            samples, mixture, tokenizer, plan.seed, step, plan.step_tokens
        ),
        loss_of=loss_of,
        saves=Saves(
            path=plan.work / "draft.pt",
            resume=plan.resume,
            on_save=lambda: save_checkpoint(draft, tokenizer, plan.out / "draft"),
        ),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Train the demo pair.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--corpus", type=Path, help="folder of stories and word lists")
    source.add_argument("--generated-only", action="store_true", help="use no outside text")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,  # by default it would replace the shipped pair
        help="where target/ and draft/ go; models/demo has the shipped pair",
    )
    parser.add_argument(
        "--work", type=Path, default=Path("build/demo"), help="where the state to resume from goes"
    )
    parser.add_argument("--steps", type=int, default=4000, help="steps of the target")
    parser.add_argument("--draft-steps", type=int, default=2000, help="steps of the draft")
    parser.add_argument(
        "--sampled-tokens", type=int, default=400_000, help="tokens sampled from the target"
    )
    parser.add_argument("--step-tokens", type=int, default=4096, help="tokens of one step")
    parser.add_argument(
        "--start", type=Path, help="folder of a pair to train on from, in place of random weights"
    )
    draft = parser.add_mutually_exclusive_group()
    draft.add_argument(
        "--draft-start", type=Path, help="checkpoint to train the draft on from, not the pair's"
    )
    draft.add_argument(
        "--draft-shape",
        type=int,
        nargs=4,
        metavar=("HIDDEN", "LAYERS", "HEADS", "FFN"),
        help="a new draft of this shape, with random weights",
    )
    parser.add_argument("--family", choices=tuple(FAMILIES), help="of both models")
    parser.add_argument("--seed", type=int, default=SEED, help="of random weights and of the text")
    parser.add_argument("--target-lr", type=float, default=2e-3, help="peak rate of the target")
    parser.add_argument("--draft-lr", type=float, default=4e-3, help="peak rate of the draft")
    parser.add_argument("--task", choices=TASKS, default="demo", help="what the text is for")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--float32",
        action="store_true",
        help="pass in float32: faster on a CPU without bfloat16 instructions",
    )
    parser.add_argument("--no-compile", action="store_true", help="for few steps on a busy machine")
    parser.add_argument("--resume", action="store_true", help="go on from the state under --work")
    return parser


def main() -> None:
    """Run the whole training from the command line."""
    parser = _parser()
    arguments = parser.parse_args()
    try:
        mixture = Mixture.load(arguments.corpus, task=arguments.task)
    except ValueError as error:
        parser.error(f"--corpus: {error}")
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    shape = arguments.draft_shape
    plan = Plan(
        out=arguments.out,
        work=arguments.work,
        num_steps=arguments.steps,
        num_draft_steps=arguments.draft_steps,
        num_sampled_tokens=arguments.sampled_tokens,
        step_tokens=arguments.step_tokens,
        resume=arguments.resume,
        dtype=torch.float32 if arguments.float32 else torch.bfloat16,
        compile=not arguments.no_compile,
        start=arguments.start,
        draft_start=arguments.draft_start,
        draft_shape=DRAFT_SHAPE if shape is None else Shape(*shape),
        is_draft_new=shape is not None,
        family=arguments.family,
        seed=arguments.seed,
        target_lr=arguments.target_lr,
        draft_lr=arguments.draft_lr,
    )
    make_pair(plan, mixture)


if __name__ == "__main__":
    main()
