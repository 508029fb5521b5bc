"""Trains heads for the demo's target: `python -m models.demo.train_heads --kind mtp --corpus DIR`.

The target stays as it is. Its own answers are sampled first, then the heads learn from them and
from the mixture by turns. A run that was stopped goes on with `--resume`. The heads' acceptance on
held-out text is printed at the end, place by place.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from models.checkpoint.packed import refuse_groups
from models.demo.data.mixture import Mixture, make_batch
from models.demo.training.samples import make_mixed_batch, sample_replies
from models.distill.batches import Batch, Sample
from models.distill.fit import Saves, Schedule, fit
from models.distill.losses import LOSSES
from models.distill.medusa import MedusaStudent
from models.distill.mtp import MtpStudent
from models.distill.student import Student, judge, loss_of
from models.distill.teacher import Teacher

SEED = 22
_HELD_OUT_BATCHES = 4
_HELD_OUT_TOKENS = 2048  # tokens of each batch


def main() -> None:
    """Run it from the command line."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    mixture = Mixture.load(arguments.corpus)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.target)
    mixture = mixture.with_pieces(tokenizer)
    refuse_groups(arguments.target)
    target = LlamaForCausalLM.from_pretrained(arguments.target, dtype=torch.float32).eval()
    target.requires_grad_(False)
    samples = _samples(arguments, target, tokenizer, mixture)
    teacher = Teacher(target)
    make = MtpStudent if arguments.kind == "mtp" else MedusaStudent
    student: Student = make(teacher, arguments.depth)

    def make_step(step: int) -> Batch:
        return make_mixed_batch(samples, mixture, tokenizer, SEED, step, arguments.step_tokens)

    fit(
        student.module,
        Schedule(arguments.steps, peak_lr=arguments.lr, num_warmup_steps=arguments.steps // 20 + 1),
        make_batch=make_step,
        loss_of=lambda batch: loss_of(student, teacher.look(batch), arguments.loss),
        saves=Saves(
            path=arguments.work / f"{arguments.kind}-{arguments.loss}.pt",
            resume=arguments.resume,
            on_save=lambda: student.save(arguments.out),
        ),
    )
    held_out = Mixture.load(arguments.corpus, held_out=True).with_pieces(tokenizer)
    for number in range(_HELD_OUT_BATCHES):
        batch = make_batch(held_out, tokenizer, SEED, number, _HELD_OUT_TOKENS)
        judged = judge(student, teacher.look(batch))
        print(json.dumps([[round(share, 3) for share in step] for step in judged]))


def _samples(
    arguments: argparse.Namespace,
    target: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    mixture: Mixture,
) -> list[Sample]:
    path: Path = arguments.work / "heads-samples.pt"
    if arguments.resume and path.exists():
        kept: list[Sample] = torch.load(path, weights_only=True)
        return kept
    samples = sample_replies(target, tokenizer, mixture, arguments.sampled_tokens, SEED)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(samples, path)
    return samples


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train heads for the demo's target.")
    parser.add_argument("--kind", choices=("medusa", "mtp"), required=True)
    parser.add_argument("--loss", choices=LOSSES, default="kl", help="what they learn by")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--corpus", type=Path, help="folder of stories and word lists")
    source.add_argument("--generated-only", action="store_true", help="use no outside text")
    parser.add_argument("--target", type=Path, default=Path("models/demo/target"))
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--work", type=Path, default=Path("build/demo"), help="state to resume from"
    )
    parser.add_argument("--depth", type=int, default=4, help="tokens of the longest draft")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=2e-3, help="peak rate")
    parser.add_argument("--sampled-tokens", type=int, default=100_000)
    parser.add_argument("--step-tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
