"""Passes of the target: its kernel and graphs, how long rows take, what a pass launches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from loadtest.frame.passes import (
    PassShape,
    memory_floor_ms,
    tables_for,
    timed_pass,
    timed_shapes,
)
from loadtest.gpu_day.terms import (
    CONTEXT,
    MOST_SESSIONS,
    Products,
    Terms,
    engine_config,
    open_target,
)
from loadtest.report.interleaved import interleave
from models.engine.runner import ModelRunner
from models.gpu.buckets import MAX_GRAPH_ROWS, BucketPlan
from models.gpu.chains import NUM_CHAINS
from models.gpu.fp8 import LEAST_CAPABILITY

# 1, 6, 48, 192 and 288 rows: a plain step, one verified draft, and 8, 32 and 48 of them at once.
SHAPES = [PassShape(sessions, rows, CONTEXT) for sessions, rows in ((1, 1), (1, 6))]
SHAPES += [PassShape(sessions, 6, CONTEXT) for sessions in (8, 32, MOST_SESSIONS)]
_PROFILED = SHAPES[2]
_WARM_UPS, _PROFILED_PASSES = 3, 5
_NUM_NAMED = 12  # kernels that take longest


def engine(terms: Terms) -> dict[str, Any]:
    """Report the target's start: kernel, pages, graphs, memory, the self-test."""
    began_s = time.perf_counter()
    runner = open_target(terms, terms.graph_modes[0])
    found: dict[str, Any] = {
        "load_s": round(time.perf_counter() - began_s, 1),
        "attention": runner.attention,
        "reads_unwritten": runner.backend.reads_unwritten,
        "batch_invariant": runner.batch_invariant,
        "weight_gib": _gib(runner.weight_bytes),
        "kv_bytes_per_token": runner.kv_bytes_per_token,
    }
    found |= _held(terms)
    wanted = len(BucketPlan(min(runner.max_num_batched_tokens, MAX_GRAPH_ROWS)).buckets)
    found["graphs"] = f"{runner.graphs} of {wanted} wanted"
    del runner
    _free(terms)
    drafter = ModelRunner(engine_config(terms, "draft", graphs=terms.graph_modes[0]))
    drafter.capture_chains()
    wanted += NUM_CHAINS
    found["graphs of the draft"] = f"{drafter.graphs} of {wanted} wanted, chains included"
    found["batch_invariant of the draft"] = drafter.batch_invariant
    return found


def _held(terms: Terms) -> dict[str, float]:
    """Memory that tensors take, that torch holds, and that is taken on the card in all."""
    if not terms.is_gpu:
        return {}
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated_gib": _gib(torch.cuda.memory_allocated()),
        "reserved_gib": _gib(torch.cuda.memory_reserved()),
        "taken_gib": _gib(total - free),
    }


def passes(terms: Terms) -> dict[str, Any]:
    """Times of passes by rows, with graphs and without, next to reading the weights once.

    Products that do not depend on other rows are measured too. So are those of 8 bits if the card
    has them. The figures are their cost and gain, and the self-test's answer for each.
    """
    lines: list[dict[str, Any]] = []
    floors_ms: dict[str, float] = {}
    verdicts: dict[str, bool] = {}
    modes: list[tuple[Any, Products]] = [(graphs, "plain") for graphs in terms.graph_modes]
    modes += [(terms.graph_modes[0], products) for products in _own_products(terms)]
    shapes = SHAPES if terms.is_gpu else SHAPES[:3]  # kernels are interpreted on a CPU
    for graphs, products in modes:
        runner = open_target(terms, graphs, products)
        floors_ms[products] = floor_ms = memory_floor_ms(runner)
        verdicts[products] = runner.batch_invariant
        found = _timed(runner, shapes, terms.repeats)
        for shape in shapes:
            times = {
                measure: statistics.median(turn[measure] for turn in found[shape.name])
                for measure in ("pass_ms", "products_ms", "to_products")
            }
            line = {"graphs": graphs, "products": products, "num_rows": shape.num_rows}
            of_floor = round(times["pass_ms"] / floor_ms, 2)
            lines.append({**line, **_rounded(times), "of_floor": of_floor})
        del runner
        _free(terms)
    return {"floors_ms": _rounded(floors_ms), "lines": lines, "self_test": verdicts}


def _timed(
    runner: ModelRunner, shapes: list[PassShape], repeats: int
) -> dict[str, list[Mapping[str, float]]]:
    """Return the turns of each shape, after one to warm up.

    Turns hold the runner, so they end here: the caller frees it before it opens the next.
    """
    with timed_shapes(runner, shapes) as turns:
        interleave(turns, 1)
        return interleave(turns, repeats)


def _own_products(terms: Terms) -> list[Products]:
    """Return the products, besides torch's own, that the card supports."""
    if not terms.is_gpu:
        return ["invariant"]
    has_fp8 = torch.cuda.get_device_capability() >= LEAST_CAPABILITY
    return ["invariant", "int8", "fp8"] if has_fp8 else ["invariant", "int8"]


def launches(terms: Terms) -> dict[str, Any]:
    """Report the launches of a pass of eight verified drafts, and how long the device is busy.

    A trace for chrome://tracing is left for each line.
    """
    return {"shape": _PROFILED.name, "lines": [_launches(terms, g) for g in terms.graph_modes]}


def _launches(terms: Terms, graphs: Any) -> dict[str, Any]:
    runner = open_target(terms, graphs)
    tables = tables_for(runner, [_PROFILED])
    run = timed_pass(runner, _PROFILED, tables)
    for _ in range(_WARM_UPS):
        run()
    activities = [ProfilerActivity.CPU]
    if terms.is_gpu:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiled:
        times_ms = [run() for _ in range(_PROFILED_PASSES)]
    profiled.export_chrome_trace(str(terms.folder / f"trace-graphs-{graphs}.json"))
    kind = "CUDA" if terms.is_gpu else "CPU"
    events = [event for event in profiled.key_averages() if event.device_type.name == kind]
    busy_us = attrgetter("self_device_time_total" if terms.is_gpu else "self_cpu_time_total")
    events.sort(key=busy_us, reverse=True)
    del runner
    _free(terms)
    return {
        "graphs": graphs,
        "pass_ms": round(sorted(times_ms)[len(times_ms) // 2], 3),
        "busy_ms": round(sum(map(busy_us, events)) / 1e3 / _PROFILED_PASSES, 3),
        "num_launches": round(sum(event.count for event in events) / _PROFILED_PASSES),
        "longest": [
            {"name": event.key[:80], "ms": round(busy_us(event) / 1e3 / _PROFILED_PASSES, 4)}
            for event in events[:_NUM_NAMED]
        ],
    }


def _gib(num_bytes: int) -> float:
    return round(num_bytes / 2**30, 3)


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}


def _free(terms: Terms) -> None:
    if terms.is_gpu:
        torch.cuda.empty_cache()
