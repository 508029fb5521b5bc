"""Is adaptive k ever wrong: one axis varied at a time around a middle, and corners of the whole.

Axes: pair, batch, temperature, length of the answer, what is asked for, and the stage. The middle
has batch 4, greedy stories of 64 tokens and engines in one process. An experiment has the cells of
one pair. `turning`: acceptance falls after half of the requests (code, then orders, which a draft
guesses worse). The pair a95to30-c5 has a draft with more noise then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.experiments.drafting import REPEATS
from loadtest.frame.claims import Goal, never_wrong
from loadtest.frame.experiment import Cell, Experiment, Workload
from loadtest.frame.ways import by_k, pinned
from loadtest.frame.workloads import Source, demo_kind, exact, mixed, real_kind, turning, varied

_PLANNING = 0.98  # a plan takes at most 2% of a round
_MIXED_TO_BEST = 1.0  # no single k fits all of mixed traffic
_BATCHES = (1, 4, 8, 16)
_MAX_MODEL_LEN = 1024
_SESSION_TOKENS = 640  # the longest prompt and answer


def _engine(workload: str, *batches: int) -> list[Cell]:
    return [("engine", workload, batch) for batch in batches or (4,)]


def _on(stage: str, *batches: int, workload: str = "story") -> list[Cell]:
    return [(stage, workload, batch) for batch in batches]


# Batch, temperature and length varied one at a time.
_AROUND = [
    *_engine("story", *_BATCHES),
    *(("engine", name, 4) for name in ("story T=0.7", "story T=1.3", "story n=8", "story n=200")),
]
_HTTP = [*_on("http", *_BATCHES), *_on("http", *_BATCHES, workload="extraction")]
_CELLS: Mapping[str, Sequence[Cell]] = {
    "demo": [
        *_AROUND,
        *(("engine", name, 4) for name in ("code", "extraction", "turning")),
        *_engine("story T=1.3 n=8", 1, 16),
        *_engine("code n=200", 1),
        *_engine("turning n=200", 16),
        *_engine("mixed", 8),
        *_on("link", 1, 4, 8),
        *_HTTP,
        *_on("http", 4, workload="code"),
        *_on("http", 8, workload="mixed"),
    ],
    "smollm2": [
        *_AROUND,
        *_engine("extraction", 1, 4),
        *_engine("turning"),
        *_engine("mixed"),
        *_HTTP,
    ],
    "349m-18m": [
        *_AROUND,
        *_engine("turning"),
        *_engine("mixed"),
        *_on("link", 1, 4),
        *_on("http", 1, 4),
    ],
    "a80-c5": [*_AROUND, *_engine("mixed"), *_on("link", 1, 4)],
    **{
        pair: _engine("story")
        for pair in ("a30-c5", "a60-c5", "a95-c5", "a80-c1", "a80-c15", "a80-c40", "a95to30-c5")
    },
    **{pair: _engine("story", 1, 8) for pair in ("a30-c40", "a95-c1")},
}


def _workload(name: str, prompts: Source) -> Workload:
    """Return the workload that a name says: a kind, T=TEMPERATURE, n=TOKENS."""
    kind, *rest = name.split()
    kinds = {"turning": turning("code", "extraction", prompts), "mixed": mixed(prompts)}
    values = dict(word.split("=") for word in rest)
    return varied(
        kinds.get(kind) or exact(kind, prompts),
        tokens=int(values["n"]) if "n" in values else None,
        temperature=float(values["T"]) if "T" in values else None,
    )


def _scenarios(pair: str, cells: Sequence[Cell]) -> Experiment:
    prompts, router = demo_kind, {}
    if pair == "smollm2":  # it has no draft model
        prompts, router = real_kind, REPEATS
    names = tuple(dict.fromkeys(workload for _, workload, _ in cells))
    single: dict[str, Any] = {"only": {"workload": tuple(n for n in names if n != "mixed")}}
    return Experiment(
        question=f"is adaptive k ever wrong, next to every fixed k and plain decoding: {pair}",
        workloads={name: _workload(name, prompts) for name in names},
        ways=by_k((1, 3, 5, 8)) | pinned(3),
        cells=tuple(cells),
        measures=("tokens_per_s", "tokens_per_round", "acceptance", "mean_k", "drafted_share"),
        goals=(
            *never_wrong(**single),
            *never_wrong(_MIXED_TO_BEST, only={"workload": "mixed"}),
            Goal(way="pinned k=3", to="k=3", at_least=_PLANNING),
        ),
        pair=pair,
        engine={
            "max_model_len": _MAX_MODEL_LEN,
            "kv_cache_tokens": max(_BATCHES) * _SESSION_TOKENS,
        },
        router=router,
        run_s=1.0,
        repeats=6,
        warm_s=5.0,
    )


SCENARIOS: Mapping[str, Experiment] = {
    f"scenarios-{pair}": _scenarios(pair, cells) for pair, cells in _CELLS.items()
}
