"""Measures how long a forward pass takes by its rows, next to its matrix products alone.

The products use the same weights as the pass, so both read the same memory. The difference is
attention, norms and the cost of calling. All times are in milliseconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from loadtest.report.interleaved import interleave, median_ratio
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


@dataclass(frozen=True)
class PassTime:
    """One line of the table; medians over interleaved repeats."""

    name: str
    num_rows: int
    pass_ms: float
    products_ms: float
    ratio: float  # median of pass / products within a repeat
    to_one_row: float  # median of this pass / a pass of 1x1 within a repeat


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


def measure_passes(
    runner: ModelRunner,
    shapes: list[PassShape],
    repeats: int,
    on_done: Callable[[], None] = lambda: None,
) -> list[PassTime]:
    """Time each shape and its products `repeats` times by turns, after one turn to warm up.

    The first of `shapes` is the one the others are compared with in `to_one_row`.
    """
    tables = tables_for(runner, shapes)
    lines: dict[str, Callable[[], float]] = {}
    for shape in shapes:
        lines[f"pass {shape.name}"] = timed_pass(runner, shape, tables)
        lines[f"products {shape.name}"] = timed_products(runner, shape)
    try:
        interleave(lines, 1)
        times = interleave(lines, repeats, lambda name, value: on_done())
    finally:
        for table in tables:
            table.free()
    first = times[f"pass {shapes[0].name}"]
    measured = []
    for shape in shapes:
        passes, products = times[f"pass {shape.name}"], times[f"products {shape.name}"]
        measured.append(
            PassTime(
                name=shape.name,
                num_rows=shape.num_rows,
                pass_ms=statistics.median(passes),
                products_ms=statistics.median(products),
                ratio=median_ratio(passes, products),
                to_one_row=median_ratio(passes, first),
            )
        )
    return measured


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


def timed_products(runner: ModelRunner, shape: PassShape) -> Callable[[], float]:
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
