"""Makes models of real cost without any download: a checkpoint grown to any size, or a pair.

    python -m loadtest.grow --preset 349m-18m --acceptance 0.8 --output DIR
    python -m loadtest.grow --preset a80-c5
    python -m loadtest.grow --layers 24 --hidden-size 1024 --heads 16 --kv-heads 16 --output DIR
    python -m loadtest.grow --draft-only --draft-layers 8 --acceptance 0.6 --output DIR
    python -m loadtest.grow --source PAIR/target --preset 67m-9m --kind concepts --output DIR

A source (the shipped target by default) is grown to a target and to a draft. So both compute the
same function. Noise on the draft's `lm_head` makes it disagree as often as requested. So every
draft of a source fits every target of it. --draft-only makes a further draft, measured against the
source itself. Both are ordinary checkpoints that any engine loads, DIR/target and DIR/draft.
DIR/pair.json has the command, the fitted values and the measurements of the written pair. Sizes
that are not given stay those of the source. A preset without --output grows into the cache, where
`python -m loadtest --pair NAME` finds it.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from loadtest.frame.pairs import CACHE
from loadtest.frame.references import load_reference
from loadtest.grow.checkpoint import count_parameters, grow_checkpoint
from loadtest.grow.noise_fit import (
    Agreement,
    check_acceptance,
    fit_noise,
    last_states,
    max_logit_difference,
    measure_agreement,
    perturbed_head,
)
from loadtest.grow.pair_texts import Text, draw_texts
from loadtest.grow.presets import PRESETS, SHARED_TARGET, SHIPPED
from loadtest.grow.source import ModelSize, Source, check_size
from models.arguments import positive
from models.demo.data.mixture import KINDS

_FLAGS = {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
}
_MEASURED_PART = 2  # measuring the pair takes one prompt for so many of the fit
_CHECKED_TEXTS = 4
_MIXED = "mixed"
_ACCEPTANCE = 0.8


@dataclass(frozen=True)
class _Draft:
    """The draft's size, head and record."""

    size: ModelSize
    head: Tensor
    record: dict[str, Any]


def main(argv: Sequence[str] | None = None) -> None:
    """Grow from the command line."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    transformers.utils.logging.disable_progress_bar()
    try:
        _make(arguments, sys.argv[1:] if argv is None else argv)
    except ValueError as error:
        parser.error(str(error))


def _make(arguments: argparse.Namespace, argv: Sequence[str]) -> None:
    started_at = time.perf_counter()
    _fill_in(arguments)
    output: Path = arguments.output
    if output.exists() and any(output.iterdir()):
        raise ValueError(f"output {str(output)!r} is not empty")
    check_acceptance(arguments.acceptance, arguments.tolerance)
    source = Source.load(arguments.source)
    target_size, draft_size = _sizes(source, arguments)
    reference = load_reference(source.path, "float32")
    draft = None if arguments.target_only else _fit_draft(source, draft_size, reference, arguments)
    # Both heads of a pair stand apart from the embedding, the draft's because it must.
    target_head = None if draft is None else source.lm_head
    record: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "loadtest.grow", *argv]),
        "seed": arguments.seed,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    if not arguments.draft_only:
        target = partial(_grow, source, size=target_size, seed=arguments.seed, lm_head=target_head)
        is_linked = draft is not None and _is_shared(arguments)
        record["target"] = _linked(target, output) if is_linked else target(output / "target")
    if draft is not None:
        grown = _grow(source, output / "draft", draft.size, arguments.seed + 1, draft.head)
        record["draft"] = grown | draft.record
    record |= _compare(source, reference, draft, arguments)
    record["seconds"] = round(time.perf_counter() - started_at, 1)
    (output / "pair.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{output}: done in {record['seconds']:.0f} s; figures are in pair.json")


def _fill_in(arguments: argparse.Namespace) -> None:
    """Fill in what a preset says where the command line says nothing."""
    preset = PRESETS.get(arguments.preset)
    if arguments.output is None:
        if preset is None:
            raise ValueError("--output is needed without a --preset")
        arguments.output = CACHE / arguments.preset
    if arguments.source is None:
        arguments.source = SHIPPED if preset is None else preset.source
    if arguments.acceptance is None:
        arguments.acceptance = _ACCEPTANCE if preset is None else preset.acceptance


def _is_shared(arguments: argparse.Namespace) -> bool:
    """Return whether the target is that of several presets."""
    preset = PRESETS.get(arguments.preset)
    return preset is not None and preset.shares_target and arguments.source == preset.source


def _linked(grow: Callable[[Path], dict[str, Any]], output: Path) -> dict[str, Any]:
    """Link the target of several pairs; it is grown beside them if it is not there yet."""
    target = output.parent / SHARED_TARGET
    grown = {} if (target / "config.json").is_file() else grow(target)
    output.mkdir(parents=True, exist_ok=True)
    (output / "target").symlink_to(Path("..") / SHARED_TARGET, target_is_directory=True)
    return grown


def _sizes(source: Source, arguments: argparse.Namespace) -> tuple[ModelSize, ModelSize]:
    sizes = []
    for prefix, place in (("", 0), ("draft_", 1)):
        values = asdict(source.size)
        if arguments.preset is not None:
            preset = PRESETS[arguments.preset]
            values = asdict((preset.target, preset.draft)[place])
        for flag, name in _FLAGS.items():
            given = getattr(arguments, prefix + flag)
            values[name] = values[name] if given is None else given
        sizes.append(ModelSize(**values))
    for size in sizes:
        check_size(source, size)
    return sizes[0], sizes[1]


def _fit_draft(
    source: Source, size: ModelSize, reference: Any, arguments: argparse.Namespace
) -> _Draft:
    seed: int = arguments.seed
    texts = _texts(reference, source, arguments, arguments.texts, seed)
    fit = fit_noise(
        last_states(reference, texts),
        source.lm_head,
        arguments.acceptance,
        tolerance=arguments.tolerance,
        seed=seed,
    )
    print(
        f"noise {fit.noise:.4f} of the weights: greedy agreement {fit.greedy_agreement:.4f} "
        f"on {fit.num_positions} positions (asked: {arguments.acceptance})",
        flush=True,
    )
    record = {
        "acceptance": arguments.acceptance,
        "kind": arguments.kind,
        "tolerance": arguments.tolerance,
        "fit": asdict(fit),
    }
    return _Draft(size, perturbed_head(source.lm_head, fit.noise, seed), record)


def _texts(
    reference: Any, source: Source, arguments: argparse.Namespace, num_texts: int, seed: int
) -> list[Text]:
    return draw_texts(
        reference,
        source.path,
        num_texts,
        kind=None if arguments.kind == _MIXED else arguments.kind,
        num_tokens=arguments.tokens,
        seed=seed,
    )


def _grow(
    source: Source, output: Path, size: ModelSize, seed: int, lm_head: Tensor | None
) -> dict[str, Any]:
    """Write one checkpoint; its sizes, for the record."""
    tied = lm_head is None and bool(source.config.tie_word_embeddings)
    num_parameters = count_parameters(source, size, tied=tied)
    print(f"{output}: {num_parameters / 1e6:.1f}M parameters", flush=True)
    grow_checkpoint(source, output, size, seed=seed, lm_head=lm_head)
    return {**asdict(size), "num_parameters": num_parameters}


def _compare(
    source: Source, reference: Any, draft: _Draft | None, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Compare the written models on texts that the fit did not see; return a record."""
    if draft is None and not arguments.check:
        return {}
    output: Path = arguments.output
    num_texts = -(-arguments.texts // _MEASURED_PART)
    texts = _texts(reference, source, arguments, num_texts, arguments.seed + 1)
    record: dict[str, Any] = {}
    if arguments.check:
        some = texts[:_CHECKED_TEXTS]
        record["max_logit_difference"] = _check(source, reference, some, output, draft)
    if draft is not None:
        dtype = str(source.lm_head.dtype).removeprefix("torch.")
        target = source.path if arguments.draft_only else output / "target"
        record["measured"] = asdict(_measure(target, output / "draft", texts, dtype))
    return record


def _check(
    source: Source, reference: Any, texts: list[Text], output: Path, draft: _Draft | None
) -> dict[str, float]:
    """Largest differences of float32 logits; a draft is compared with the source under its head."""
    states = last_states(reference, texts)
    heads = {"target": source.lm_head} | ({} if draft is None else {"draft": draft.head})
    differences = {}
    for name, head in heads.items():
        if not (output / name).is_dir():  # only a draft was grown
            continue
        grown = load_reference(output / name, "float32")
        differences[name] = max_logit_difference(states, head, grown, texts)
        scale = float((states @ head.float().T).abs().max())
        print(
            f"{name}: float32 logits differ from the source's by {differences[name]:.2g} at most "
            f"(largest logit: {scale:.3g})",
            flush=True,
        )
    return differences


def _measure(target_path: Path, draft_path: Path, texts: list[Text], dtype: str) -> Agreement:
    print("measuring the written pair", flush=True)
    target, draft = (load_reference(path, dtype) for path in (target_path, draft_path))
    agreement = measure_agreement(target, draft, texts)
    print(
        f"measured on {agreement.num_positions} other positions: greedy agreement "
        f"{agreement.greedy_agreement:.3f} +- {agreement.standard_error:.3f}, "
        f"{agreement.on_greedy_text:.3f} on greedy and {agreement.on_sampled_text:.3f} on sampled "
        f"text; expected acceptance at temperature 1: {agreement.coupled_acceptance:.3f} coupled, "
        f"{agreement.rejection_acceptance:.3f} by rejection",
        flush=True,
    )
    return agreement


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.grow",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("--output", type=Path, help="new or empty directory")
    parser.add_argument(
        "--source", type=Path, help="a Llama checkpoint; default: the demo's target"
    )
    parser.add_argument("--preset", choices=PRESETS, help="sizes of target and draft")
    for prefix, model in (("--", "target"), ("--draft-", "draft")):
        for flag, name in _FLAGS.items():
            parser.add_argument(
                prefix + flag.replace("_", "-"), type=positive, help=f"{name} of the {model}"
            )
    parser.add_argument(
        "--acceptance", type=float, help="greedy agreement of the pair, above 0 to 1; 0.8"
    )
    parser.add_argument(
        "--kind",
        default="story",
        choices=[*KINDS, _MIXED],
        help="prompts of the texts on which acceptance is meant; stories are guessed evenly well",
    )
    parser.add_argument(
        "--tolerance", type=float, default=0.005, help="of acceptance, on the texts of the fit"
    )
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--target-only", action="store_true", help="grow one checkpoint, no draft")
    parts.add_argument(
        "--draft-only", action="store_true", help="a further draft for targets of this source"
    )
    parser.add_argument("--check", action="store_true", help="compare logits with the source's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--threads", type=positive, default=1, help="more pay for large sources and targets only"
    )
    parser.add_argument("--texts", type=positive, default=64, help="prompts of the fit")
    parser.add_argument("--tokens", type=positive, default=96, help="most tokens of a text")
    return parser


if __name__ == "__main__":
    main()
