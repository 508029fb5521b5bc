"""Experiments on passes: of weights of 8 and 4 bits, with their quality, and draws behind them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from models.protocol.messages import Sampling
from models.sampling.draws import pack_draws
from models.sampling.logits import shaped_scores
from models.sampling.verification import draw_ids
from models.text.tokenizer import Tokenizer

_WINDOW = 256  # tokens
_NUM_DRAWS = 20  # of a turn
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


def draws(one_in: int = 1, **sampled: float) -> Lines:
    """Return draws of rows of a text's logits, by the CPUs' kernel and by torch's operations.

    One token in so many is allowed, as under a grammar.
    """
    sampling = Sampling(**{"temperature": 0.8, "seed": 7, **sampled})  # type: ignore[arg-type]

    @contextmanager
    def lines(terms: Terms, ways: Mapping[str, Way]) -> Iterator[Mapping[str, Turn]]:
        runner = _runner(terms, Way(k=0))
        text = "\n\n".join(prompt for prompts in read_kinds().values() for prompt in prompts)
        logits = _logits(runner, Tokenizer.load(terms.models.target).encode(text)[:_WINDOW])
        is_forbidden = torch.arange(logits.shape[1]) % one_in != 0
        logits = logits.masked_fill(is_forbidden, -torch.inf)
        yield {
            f"{name}, {rows} rows": partial(_draw_ms, draw, logits[-rows:], [sampling] * rows)
            for rows in _DRAWN_ROWS
            for name, draw in _DRAWS.items()
        }

    return lines


def _by_kernel(logits: Tensor, samplings: Sequence[Sampling], places: Sequence[int]) -> Tensor:
    from models.cpu.draw import draw_by_terms  # the only experiment that needs numba itself

    return draw_by_terms(logits, pack_draws(samplings, places, logits.shape[1]))


def _by_torch(logits: Tensor, samplings: Sequence[Sampling], places: Sequence[int]) -> Tensor:
    return draw_ids(shaped_scores(logits, samplings), samplings, places)


_Draw = Callable[[Tensor, Sequence[Sampling], Sequence[int]], Tensor]
_DRAWS: dict[str, _Draw] = {"torch": _by_torch, "kernel": _by_kernel}
_DRAWN_ROWS = (1, 6, 48)  # plain, one session with a draft, eight with drafts


@torch.inference_mode()
def _draw_ms(draw: _Draw, logits: Tensor, samplings: Sequence[Sampling]) -> dict[str, float]:
    places = range(len(logits))
    draw(logits, samplings, places)
    began_s = time.perf_counter()
    for _ in range(_NUM_DRAWS):
        draw(logits, samplings, places)
    return {"draw_ms": 1000 * (time.perf_counter() - began_s) / _NUM_DRAWS}


def _predictions(runner: ModelRunner, ids: Sequence[int]) -> tuple[float, list[int]]:
    """Return the mean loss of a token, and the likeliest token at each place."""
    losses: list[Tensor] = []
    said: list[int] = []
    for start in range(0, len(ids) - _WINDOW, _WINDOW):
        part = list(ids[start : start + _WINDOW])
        logits = _logits(runner, part)[:-1]
        losses.append(cross_entropy(logits, torch.tensor(part[1:]), reduction="none"))
        said += logits.argmax(-1).tolist()
    return float(torch.cat(losses).mean()), said


def _logits(runner: ModelRunner, ids: Sequence[int]) -> Tensor:
    """Return what follows each token of a text, [tokens, V] float32."""
    table = runner.pool.new_table()
    table.resize(len(ids))
    logits = runner.forward([SequenceRows(table, 0, list(ids), len(ids))]).float()
    table.free()
    return logits


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

DRAWS = Experiment(
    question="how long does a draw take on a CPU, next to the same in torch's own operations",
    lines={
        "temperature": draws(),
        "top-p 0.9": draws(top_p=0.9),
        "top-k 20, top-p 0.8": draws(top_k=20, top_p=0.8),
        "min-p 0.05": draws(min_p=0.05),
        "masked, top-p 0.9": draws(one_in=2000, top_p=0.9),
    },
    goals=tuple(
        Goal(way=f"kernel, {rows} rows", to=f"torch, {rows} rows", measure="draw_ms", at_most=0.25)
        for rows in _DRAWN_ROWS
    ),
    pair="smollm2",
    repeats=9,
)
