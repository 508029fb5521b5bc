"""Grows the pairs of the scenarios: one target, drafts of four costs, noise for four acceptances.

All compute the function of the shipped draft, the smallest one that can be grown. So even a draft
that costs 1% of its target's pass is the same function before its noise. The noise is fitted once
for each acceptance, on texts that the function writes itself. It serves drafts of every size. Built
from `loadtest.grow`'s parts; `python -m loadtest.grow` makes single pairs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from loadtest.bench.references import load_reference
from loadtest.grow.checkpoint import grow_checkpoint
from loadtest.grow.noise_fit import NoiseFit, fit_noise, last_states, perturbed_head
from loadtest.grow.pair_texts import draw_texts
from loadtest.grow.source import ModelSize, Source
from loadtest.report.machine import ROOT
from loadtest.scenarios.catalog import GROWN, Grown

DONE = "pair.json"  # written last
SOURCE_PATH = ROOT / "models" / "demo" / "draft"
_TARGET = "scenario-target"
_NUM_TEXTS, _TEXT_TOKENS, _SEED = 64, 96, 0
_TOLERANCE = 0.005  # tolerance of the acceptance on the texts of the fit


def _size(layers: int, hidden: int, intermediate: int, heads: int) -> ModelSize:
    return ModelSize(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=heads,
    )


# Measured on two cores at one row, in bfloat16: the target's pass takes 14 ms, a draft's 1.3, 4.6,
# 13 and 37% of it. A record has the shares of its own run.
TARGET_SIZE = _size(16, 1024, 3072, 8)
DRAFT_SIZES = {
    1: _size(3, 128, 352, 4),  # the source itself
    5: _size(8, 256, 1024, 4),
    15: _size(10, 512, 1536, 8),
    40: _size(22, 512, 1536, 8),
}


def grow_pairs(cache: Path, names: Iterable[str]) -> None:
    """Grow the pairs of these names that are not in the cache.

    Args:
        cache: folder of grown pairs.
        names: of `catalog.GROWN`.

    Raises:
        ValueError: no noise comes near enough to an acceptance.
    """
    wanted = {name: GROWN[name] for name in names if not (cache / name / DONE).is_file()}
    if not wanted:
        return
    source = Source.load(SOURCE_PATH)
    fits = _fit(source, {grown.acceptance for grown in wanted.values()})
    target = cache / _TARGET
    if not (target / DONE).is_file():
        print("growing the target", flush=True)
        grow_checkpoint(source, target, TARGET_SIZE, seed=_SEED, lm_head=source.lm_head)
        (target / DONE).write_text("{}\n", encoding="utf-8")
    for name, grown in wanted.items():
        print(f"growing {name}", flush=True)
        _grow_pair(source, cache / name, grown, fits[grown.acceptance])


def _fit(source: Source, acceptances: Iterable[float]) -> dict[float, NoiseFit]:
    reference = load_reference(source.path, "float32")
    texts = draw_texts(
        reference, source.path, _NUM_TEXTS, kind="story", num_tokens=_TEXT_TOKENS, seed=_SEED
    )
    states = last_states(reference, texts)
    return {
        acceptance: fit_noise(states, source.lm_head, acceptance, tolerance=_TOLERANCE, seed=_SEED)
        for acceptance in sorted(acceptances)
    }


def _grow_pair(source: Source, folder: Path, grown: Grown, fit: NoiseFit) -> None:
    head: Tensor = perturbed_head(source.lm_head, fit.noise, _SEED)
    size = DRAFT_SIZES[grown.cost_percent]
    grow_checkpoint(source, folder / "draft", size, seed=_SEED + 1, lm_head=head)
    link = folder / "target"
    if not link.is_symlink():
        link.symlink_to(Path("..") / _TARGET, target_is_directory=True)
    record = {
        "acceptance": grown.acceptance,
        "greedy_agreement": fit.greedy_agreement,
        "noise": fit.noise,
        "cost_percent": grown.cost_percent,
    }
    (folder / DONE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
