"""Trains heads for the demo's target: `python -m models.demo.train_heads --kind mtp --corpus DIR`.

The target stays as it is. Its own answers are sampled first, then the heads learn from them and
from the mixture by turns. A run that was stopped goes on with `--resume`. At the end the heads'
acceptance on held-out text is printed, place by place.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from models.demo.data.mixture import Batch, Mixture, make_batch
from models.demo.training.distill import Sample, make_mixed_batch, sample_replies
from models.demo.training.heads import ResidualHeads, acceptance, heads_loss, save_heads
from models.demo.training.mtp import LOSSES, MtpLayer, mtp_acceptance, mtp_loss, save_mtp
from models.demo.training.training import Saves, Schedule, fit

SEED = 22
_HELD_OUT_BATCHES = 4
_HELD_OUT_TOKENS = 2048  # of each


class _Kind(NamedTuple):
    """One kind of heads: what trains and what is done with it."""

    heads: nn.Module
    loss_of: Callable[[Batch], Tensor]
    save: Callable[[], None]
    acceptance: Callable[[Batch], list[tuple[float, float]]]


def main() -> None:
    """Run it from the command line."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    mixture = Mixture.load(arguments.corpus)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.target)
    mixture = mixture.with_pieces(tokenizer)
    target = LlamaForCausalLM.from_pretrained(arguments.target, dtype=torch.float32).eval()
    target.requires_grad_(False)
    samples = _samples(arguments, target, tokenizer, mixture)
    kind = (_mtp if arguments.kind == "mtp" else _medusa)(arguments, target)

    def make_step(step: int) -> Batch:
        return make_mixed_batch(samples, mixture, tokenizer, SEED, step, arguments.step_tokens)

    fit(
        kind.heads,
        Schedule(arguments.steps, peak_lr=arguments.lr, num_warmup_steps=arguments.steps // 20 + 1),
        make_batch=make_step,
        loss_of=kind.loss_of,
        saves=Saves(
            path=arguments.work / f"{arguments.kind}-{arguments.loss}.pt",
            resume=arguments.resume,
            on_save=kind.save,
        ),
    )
    held_out = Mixture.load(arguments.corpus, held_out=True).with_pieces(tokenizer)
    for number in range(_HELD_OUT_BATCHES):
        batch = make_batch(held_out, tokenizer, SEED, number, _HELD_OUT_TOKENS)
        print(json.dumps([[round(x, 3) for x in one] for one in kind.acceptance(batch)]))


def _medusa(arguments: argparse.Namespace, target: LlamaForCausalLM) -> _Kind:
    heads = ResidualHeads(arguments.depth, target.config.hidden_size)
    return _Kind(
        heads,
        lambda batch: heads_loss(heads, target, batch),
        lambda: save_heads(heads, arguments.out),
        lambda batch: acceptance(heads, target, batch),
    )


def _mtp(arguments: argparse.Namespace, target: LlamaForCausalLM) -> _Kind:
    layer, depth = MtpLayer(target), arguments.depth
    return _Kind(
        layer,
        lambda batch: mtp_loss(layer, target, batch, arguments.loss, depth),
        lambda: save_mtp(layer, target, arguments.out, depth),
        lambda batch: mtp_acceptance(layer, target, batch, depth),
    )


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
    parser.add_argument("--loss", choices=LOSSES, default="kl", help="of an MTP head")
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
