"""Experiments on weights of 8 and 4 bits: speed, passes by rows next to their products, quality."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from deployments.local.pair import local_config
from loadtest.frame.claims import Goal
from loadtest.frame.experiment import Experiment, Lines, Terms, Turn
from loadtest.frame.passes import decode_shapes, timed_shapes
from loadtest.frame.prompts import read_kinds
from loadtest.frame.ways import Way
from loadtest.frame.workloads import demo
from models.engine.runner import ModelRunner
from models.kv.rows import SequenceRows
from models.text.tokenizer import Tokenizer

_WINDOW = 256  # tokens
_ROOM = {"max_model_len": 1024, "kv_cache_tokens": 64 * 320 + 1024}  # 64 sessions


def by_rows(way: Way) -> Lines:
    """Return passes of the target, of every shape that it has room for."""

    @contextmanager
    def lines(terms: Terms, ways: Mapping[str, Way]) -> Iterator[Mapping[str, Turn]]:
        runner = _runner(terms, way)
        with timed_shapes(runner, decode_shapes(runner)) as turns:
            yield turns

    return lines


def quality(by_name: Mapping[str, Way]) -> Lines:
    """Return how well the target of each way predicts the prompts of all kinds, as a text.

    The share of tokens at which it and the first way's target say the same is `agreement`.
    """

    @contextmanager
    def lines(terms: Terms, ways: Mapping[str, Way]) -> Iterator[Mapping[str, Turn]]:
        tokenizer = Tokenizer.load(terms.models.target)
        text = "\n\n".join(prompt for prompts in read_kinds().values() for prompt in prompts)
        ids = tokenizer.encode(text)
        found: dict[str, dict[str, float]] = {}
        first: list[int] = []
        for name, way in by_name.items():
            runner = _runner(terms, way)
            loss, said = _predictions(runner, ids)
            first = first or said
            same = sum(one == other for one, other in zip(first, said, strict=True))
            found[name] = {
                "perplexity": math.exp(loss),
                "agreement": same / len(said),
                "weights_mb": runner.weight_bytes / 1e6,
            }
        yield {name: partial(dict, values) for name, values in found.items()}

    return lines


def _predictions(runner: ModelRunner, ids: Sequence[int]) -> tuple[float, list[int]]:
    """Return the mean loss of a token, and the likeliest token at each place."""
    losses: list[Tensor] = []
    said: list[int] = []
    for start in range(0, len(ids) - _WINDOW, _WINDOW):
        part = list(ids[start : start + _WINDOW])
        table = runner.pool.new_table()
        table.resize(len(part))
        logits = runner.forward([SequenceRows(table, 0, part, len(part))])[:-1].float()
        losses.append(cross_entropy(logits, torch.tensor(part[1:]), reduction="none"))
        said += logits.argmax(-1).tolist()
        table.free()
    return float(torch.cat(losses).mean()), said


def _runner(terms: Terms, way: Way) -> ModelRunner:
    return ModelRunner(local_config(terms.models.tree(way)).models["target"])


_ROUNDED = {
    "plain": Way(k=0),
    **{
        name: Way(k=0, target={"quantization": name}, texts=name, like="plain")
        for name in ("q8", "q4")
    },
}

QUANTIZED = Experiment(
    question="what do weights of 8 and of 4 bits cost and bring next to the same as they are",
    workloads={"story": demo("story")},
    ways=_ROUNDED,
    batches=(1, 8),
    measures=("tokens_per_s", "verify_ms"),
    goals=tuple(Goal(way=name, to="plain", at_least=1.0) for name in ("q8", "q4")),
    count=4,
)

QUANTIZED_PASSES = Experiment(
    question="how long does a pass take at 8 and at 4 bits, and how well does the model predict",
    lines={
        **{name: by_rows(way) for name, way in _ROUNDED.items()},
        "quality": quality(_ROUNDED),
    },
    goals=(Goal(way="1x6", to="1x1", measure="pass_ms", at_most=1.25),),
    engine=_ROOM,
    repeats=9,
)
