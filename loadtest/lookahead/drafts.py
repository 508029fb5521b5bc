"""Estimates the effect of a draft's size: counts of real pairs, priced by curves of larger pairs.

Each draft is listed with its own size: its parameters and its weights over the target's. The
measured time of its step beside a pass of the target is given too.

Counts of a run say how often the target passed, over how many rows, and how often the draft
stepped. A pair of another size that agreed as often would have the same counts, and its curves give
their cost. It is an assumption that it agrees as often: acceptance and satisfaction are those of
the pair that was run. The curves follow a roofline. A pass takes as long as reading the weights
once, or its arithmetic if longer. (Williams et al., CACM 52 (2009) 65.) None is measured here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deployments.llm import LLM
from loadtest.lookahead.compare import counts_of, ratio_to
from loadtest.lookahead.runs import Pair, opened, stream_seconds
from loadtest.lookahead.tasks import Prompts
from loadtest.lookahead.terms import CDLH, CDSL, Terms
from loadtest.simulate.engines import Machine

_BYTES_A_PARAMETER = 2  # bfloat16
_BANDWIDTH = 1.6e12  # bytes/s that reading weights reaches, of the 2.0e12 of an A100 of 80 GB
_FLOPS = 1.5e14  # per s that products reach, of 3.1e14
_LAUNCH_MS = 0.5  # time of a pass whose kernels are one graph's launch, its samples and link
_TIMED_PROMPT, _TIMED_TOKENS, _TIMED_RUNS = "Write a short story about a dog.", 64, 5
_GB_A_DEVICE = 64  # for weights; a larger model is spread, its devices read side by side
# Billions of parameters, target and draft: the sizes of a family that papers study, and larger.
SIZES: Sequence[tuple[float, float]] = (
    *((6.7, 0.125), (6.7, 0.35), (6.7, 1.3), (2.7, 0.125)),
    *((13.0, 0.125), (30.0, 0.35), (66.0, 1.3), (175.0, 1.3), (175.0, 6.7)),
)


def machine_of(target: float, draft: float) -> Machine:
    """Curves of a pair of so many billions of parameters."""
    return Machine(
        pass_ms=lambda rows, sessions: _pass_ms(target, rows),
        step_ms=lambda sessions: _pass_ms(draft, sessions),
        net_ms=0.0,
    )


def _pass_ms(billions: float, num_rows: int) -> float:
    num_bytes = 1e9 * billions * _BYTES_A_PARAMETER
    num_devices = -(-num_bytes // (1e9 * _GB_A_DEVICE))
    read_s = num_bytes / num_devices / _BANDWIDTH
    products_s = 2e9 * billions * num_rows / num_devices / _FLOPS
    return _LAUNCH_MS + 1e3 * max(read_s, products_s)


def price_ms(line: Mapping[str, Any], terms: Terms, machine: Machine) -> float:
    """Milliseconds a token of a line of counts, at batch 1, without the reward's own time."""
    verified, passes = line["verified_per_token"], line["passes_per_token"]
    num_rows = 1 + (terms.length if terms.method == "cdsl" else 0)
    return (
        verified * machine.pass_ms(num_rows, 1)
        + (passes - verified) * machine.pass_ms(terms.candidates, terms.candidates)
        + line["draft_steps_per_token"] * machine.step_ms(1)
    )


def step_ms(model: Path, threads: int) -> float:
    """Milliseconds a token that a model takes alone, one greedy text at a time: the least of some.

    So what one step takes of a draft, and one pass of a row of a target, the engine included.
    """
    with LLM(
        model,
        num_threads=threads,
        max_model_len=_TIMED_TOKENS + 64,
        max_num_seqs=1,
    ) as llm:
        seconds = [
            stream_seconds(llm, _TIMED_PROMPT, _TIMED_TOKENS, speculation={"enabled": False})
            for _ in range(_TIMED_RUNS)
        ]
    return 1e3 * min(seconds) / _TIMED_TOKENS


def drafts(
    pairs: Sequence[Pair],
    prompts: Prompts,
    terms: Terms,
    threads: int,
) -> dict[str, Any]:
    """CDSL with each of the drafts, CDLH of the target beside it, and what pairs would take."""
    ways, lines, priced = terms.ways(), [], []
    target_ms = step_ms(pairs[0].target, threads)
    cdlh: dict[str, Any] | None = None
    for pair in pairs:
        with opened(pair, threads) as bench:
            # CDLH needs no draft: once for all of them.
            cdlh = cdlh or counts_of(bench.answer(prompts, ways[CDLH]))
            counts = counts_of(bench.answer(prompts, terms))
        draft_ms = step_ms(pair.draft, threads)
        line: dict[str, Any] = {"draft": pair.label} | pair.described() | counts
        line |= {"step_ms": draft_ms, "measured_step_cost": draft_ms / target_ms}
        line["passes_to_cdlh"] = asdict(ratio_to(cdlh, line))
        # A step is taken to cost the share of a pass that the draft's weights are of the target's.
        cost = line["passes_per_token"] + pair.step_cost * line["draft_steps_per_token"]
        line["by_weights"] = cdlh["passes_per_token"] / cost
        lines.append(line)
        priced += _priced(line, cdlh, ways)
    return {
        "target": pairs[0].described() | {"pass_ms": target_ms},
        "cdlh": cdlh,
        "lines": lines,
        "priced": priced,
        "terms": asdict(terms),
    }


def _priced(
    line: Mapping[str, Any], cdlh: Mapping[str, Any], ways: Mapping[str, Terms]
) -> list[dict[str, Any]]:
    found = []
    for size in SIZES:
        machine = machine_of(*size)
        slow, fast = price_ms(cdlh, ways[CDLH], machine), price_ms(line, ways[CDSL], machine)
        found.append(
            {
                "counts_of": line["draft"],
                "target_billions": size[0],
                "draft_billions": size[1],
                "cdlh_ms": slow,
                "cdsl_ms": fast,
                "speed_up": slow / fast,
            }
        )
    return found
