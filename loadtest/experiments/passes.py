"""Experiments on passes: their time by rows, next to their products, and models in 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from deployments.local.pair import local_config
from loadtest.frame.claims import Goal
from loadtest.frame.experiment import Experiment, Lines, Terms, Turn
from loadtest.frame.passes import (
    PassShape,
    decode_shapes,
    tables_for,
    timed_pass,
    timed_products,
)
from loadtest.frame.ways import Way
from loadtest.frame.workloads import demo
from models.engine.runner import ModelRunner
from router.drafters.draft_model import POOL

_CONTEXTS = (300, 900)  # tokens before the rows
_STEP_CONTEXT = 100
_ROOM = {"max_model_len": 1024, "kv_cache_tokens": 64 * 320 + 1024}  # 64 sessions of the shorter
_SECTION = {"target": "target", "draft": POOL}


def by_rows(part: str, context: int) -> Lines:
    """Return passes of every shape that a model has room for, after `context` tokens."""

    @contextmanager
    def lines(terms: Terms, ways: Mapping[str, Way]) -> Iterator[Mapping[str, Turn]]:
        runner = _runner(terms, part, Way())
        shapes = decode_shapes(runner, context)
        with _tables(runner, shapes) as timed:
            yield {
                shape.name: _both(timed(shape), timed_products(runner, shape)) for shape in shapes
            }

    return lines


def by_way(part: str, shape: PassShape) -> Lines:
    """Return passes of one shape with the model of each way."""

    @contextmanager
    def lines(terms: Terms, ways: Mapping[str, Way]) -> Iterator[Mapping[str, Turn]]:
        runners = {name: _runner(terms, part, way) for name, way in ways.items()}
        yield {name: _weighed(runner, shape) for name, runner in runners.items()}

    return lines


def _both(whole: Callable[[], float], products: Callable[[], float]) -> Turn:
    def turn() -> Mapping[str, float]:
        pass_ms, products_ms = whole(), products()
        return {
            "pass_ms": pass_ms,
            "products_ms": products_ms,
            "to_products": pass_ms / products_ms,
        }

    return turn


def _weighed(runner: ModelRunner, shape: PassShape) -> Turn:
    def turn() -> Mapping[str, float]:
        with _tables(runner, [shape]) as timed:
            return {"pass_ms": timed(shape)(), "weights_mb": runner.weight_bytes / 1e6}

    return turn


@contextmanager
def _tables(
    runner: ModelRunner, shapes: list[PassShape]
) -> Iterator[Callable[[PassShape], Callable[[], float]]]:
    """Yield what makes a timed pass of one of the shapes; its blocks are freed at the end."""
    tables = tables_for(runner, shapes)
    try:
        yield lambda shape: timed_pass(runner, shape, tables)
    finally:
        for table in tables:
            table.free()


def _runner(terms: Terms, part: str, way: Way) -> ModelRunner:
    return ModelRunner(local_config(terms.models.tree(way)).models[_SECTION[part]])


PASSES = Experiment(
    question="how long does a pass take by its rows, next to its matrix products alone",
    lines={
        f"{part} after {context} tokens": by_rows(part, context)
        for part in ("target", "draft")
        for context in _CONTEXTS
    },
    goals=(
        Goal(
            way="1x6",
            measure="to_products",
            at_most=1.5,
            only={"workload": "target after 300 tokens"},
        ),
        Goal(
            way="1x6",
            to="1x1",
            measure="pass_ms",
            at_most=1.25,
            only={"workload": "target after 300 tokens"},
        ),
    ),
    engine=_ROOM,
    repeats=9,
)

_ROUNDED = {name: {"quantization": name} for name in ("q8", "q4")}
_DRAFTS = {
    "plain": Way(k=3),
    **{name: Way(k=3, draft=keys) for name, keys in _ROUNDED.items()},
}

QUANTIZED = Experiment(
    question="what do weights of 8 and of 4 bits cost and bring next to the same as they are",
    workloads={
        f"{kind}, temperature {temperature:g}": demo(kind, temperature=temperature)
        for kind in ("story", "code")
        for temperature in (0.0, 1.0)
    },
    ways={
        **_DRAFTS,
        **{
            f"{name} target": Way(k=3, target=keys, texts=f"{name} target")
            for name, keys in _ROUNDED.items()
        },
    },
    batches=(1, 8),
    measures=("tokens_per_s", "acceptance", "tokens_per_round", "draft_ms", "verify_ms"),
    count=8,
)

QUANTIZED_PASSES = Experiment(
    question="how long does a draft's pass take at 8 and at 4 bits, and what do weights weigh",
    lines={
        **{
            f"{num} sessions": by_way("draft", PassShape(num, 1, _STEP_CONTEXT))
            for num in (1, 2, 4, 8)
        },
        **{f"a prompt of {rows}": by_way("draft", PassShape(1, rows, 0)) for rows in (32, 256)},
    },
    ways=_DRAFTS,
    engine=_ROOM,
    repeats=199,
)
