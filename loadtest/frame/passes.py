"""Measures how long a forward pass takes by its rows, next to its matrix products alone.

The products use the same weights as the pass, so both read the same memory. The difference is
attention, norms and the cost of calling. All times are in milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from loadtest.frame.experiment import Turn
from models.engine.runner import ModelRunner, SequenceRows
from models.kv.block_pool import BlockTable

DECODE_SHAPES = ((1, 1), (1, 2), (1, 6), (4, 1), (4, 6), (8, 1), (8, 6), (64, 1))
PREFILL_ROWS = (128, 512)
CONTEXT = 300
_COPIED_BYTES = 1 << 28
_COPIES = 5


@dataclass(frozen=True)
class PassShape:
    """Sessions at once, rows of each, and the tokens before them."""

    num_sessions: int
    rows_each: int
    context: int

    @property
    def num_rows(self) -> int:
        """Rows of the pass."""
        return self.num_sessions * self.rows_each

    @property
    def num_tokens(self) -> int:
        """Tokens of each session, its rows included."""
        return self.context + self.rows_each

    @property
    def name(self) -> str:
        """The name in tables: 4x6, or 128 new."""
        if self.context == 0:
            return f"{self.rows_each} new"
        return f"{self.num_sessions}x{self.rows_each}"


def decode_shapes(runner: ModelRunner, context: int = CONTEXT) -> list[PassShape]:
    """Return the shapes of DECODE_SHAPES and PREFILL_ROWS that the runner has room for."""
    shapes = [PassShape(sessions, rows, context) for sessions, rows in DECODE_SHAPES]
    shapes += [PassShape(1, rows, 0) for rows in PREFILL_ROWS]
    blocks_for = runner.pool.blocks_for
    return [
        shape
        for shape in shapes
        if shape.num_rows <= runner.max_num_batched_tokens
        and shape.num_tokens <= runner.max_model_len
        and shape.num_sessions * blocks_for(shape.num_tokens) <= runner.pool.num_free
    ]


@contextmanager
def timed_shapes(runner: ModelRunner, shapes: list[PassShape]) -> Iterator[dict[str, Turn]]:
    """Yield a turn for each shape, by its name: a pass and its products alone, and their ratio.

    The blocks of the passes are freed at the end.
    """
    tables = tables_for(runner, shapes)
    try:
        yield {
            shape.name: _both(timed_pass(runner, shape, tables), _timed_products(runner, shape))
            for shape in shapes
        }
    finally:
        for table in tables:
            table.free()


def _both(whole: Callable[[], float], products: Callable[[], float]) -> Turn:
    def turn() -> Mapping[str, float]:
        pass_ms, products_ms = whole(), products()
        return {
            "pass_ms": pass_ms,
            "products_ms": products_ms,
            "to_products": pass_ms / products_ms,
        }

    return turn


def memory_floor_ms(runner: ModelRunner) -> float:
    """Time to read the products' weights once at the device's speed of copying."""
    return num_product_bytes(runner) / copied_bytes_per_ms(runner.device)


def num_product_bytes(runner: ModelRunner) -> int:
    """Bytes of the weights that every pass reads."""
    return sum(_num_bytes(product, runner.dtype.itemsize) for product in runner.products())


def _num_bytes(product: torch.nn.Module, itemsize: int) -> int:
    """Bytes of a product's weight, of which some have 8 bits a number."""
    inputs, outputs = _features(product)
    weight = getattr(product, "weight", None)
    if isinstance(weight, torch.Tensor) and weight.shape == (outputs, inputs):
        itemsize = weight.element_size()
    return inputs * outputs * itemsize


def tables_for(runner: ModelRunner, shapes: list[PassShape]) -> list[BlockTable]:
    """Make room for the largest of `shapes`; the others use the first of it."""
    tables = []
    for index in range(max(shape.num_sessions for shape in shapes)):
        table = runner.pool.new_table()
        table.resize(max(s.num_tokens for s in shapes if s.num_sessions > index))
        tables.append(table)
    return tables


def timed_pass(
    runner: ModelRunner, shape: PassShape, tables: list[BlockTable]
) -> Callable[[], float]:
    """Return a pass of that shape, which gives its milliseconds.

    The content of the context does not matter for that: it is left as it is.
    """
    sequences = [
        SequenceRows(
            table,
            shape.context,
            [(7 + 31 * index) % runner.vocab_size] * shape.rows_each,
            shape.rows_each if shape.context else 1,
        )
        for index, table in enumerate(tables[: shape.num_sessions])
    ]
    return lambda: _timed(runner, lambda: runner.forward(sequences))


def _timed_products(runner: ModelRunner, shape: PassShape) -> Callable[[], float]:
    """Return the matrix products of such a pass alone, which give their milliseconds."""
    num_logits = shape.num_rows if shape.context else 1
    products = runner.products()
    inputs = [
        torch.randn(num_rows, _features(product)[0], device=runner.device).to(runner.dtype)
        for product, num_rows in zip(
            products, [shape.num_rows] * (len(products) - 1) + [num_logits], strict=True
        )
    ]

    @torch.inference_mode()
    def multiply() -> None:
        for product, rows in zip(products, inputs, strict=True):
            product(rows)

    return lambda: _timed(runner, multiply)


def _timed(runner: ModelRunner, function: Callable[[], object]) -> float:
    _synchronize(runner.device)
    started_at = time.perf_counter()
    function()
    _synchronize(runner.device)
    return (time.perf_counter() - started_at) * 1e3


def copied_bytes_per_ms(device: torch.device) -> float:
    """Bytes read plus bytes written by the fastest of some copies."""
    source = torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    copy.copy_(source)
    times_ms = []
    for _ in range(_COPIES):
        _synchronize(device)
        started_at = time.perf_counter()
        copy.copy_(source)
        _synchronize(device)
        times_ms.append((time.perf_counter() - started_at) * 1e3)
    return 2 * _COPIED_BYTES / min(times_ms)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _features(product: torch.nn.Module) -> tuple[int, int]:
    return int(product.in_features), int(product.out_features)  # type: ignore[arg-type]
