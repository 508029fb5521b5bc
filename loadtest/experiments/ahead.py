"""Drafts ahead: the draft model works while the target verifies, on a core each.

`two cores` has draft and target in one process with both cores each, one after the other: the same
hardware without overlap.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadtest.frame.claims import Goal
from loadtest.frame.experiment import Experiment
from loadtest.frame.ways import ADAPTIVE, PLAIN, Way, name_of
from loadtest.frame.workloads import demo

_BRANCHES = 9  # at most: hits are claimed for so many
_LENGTHS = (3, 5, None)
_BATCHES = (1, 4, 8, 16)


def _ahead(k: int | None) -> Way:
    return Way(k=k, speculation={"draft_ahead": _BRANCHES})


def _of_pair(pair: str, *batches: int) -> Experiment:
    return Experiment(
        question=f"what do drafts ahead bring beside drafts in turn: {pair}",
        workloads={
            f"story T={temperature:g}": demo("story", temperature=temperature)
            for temperature in (0.0, 1.0)
        },
        ways={
            PLAIN: Way(k=0),
            "two cores k=0": Way(k=0, at="engine"),
            "two cores adaptive": Way(at="engine"),
            **{name_of(k): Way(k=k) for k in _LENGTHS},
            **{f"ahead {name_of(k)}": _ahead(k) for k in _LENGTHS},
        },
        stages=("link",),
        batches=batches,
        measures=(
            "tokens_per_s",
            "tokens_per_round",
            "token_acceptance",
            "mean_k",
            "ahead_share",
            *(f"ahead_after_{place}" for place in range(6)),
            *("draft_ms", "verify_ms", "link_ms"),
        ),
        goals=(
            Goal(way=f"ahead {ADAPTIVE}", to=ADAPTIVE, at_least=1.4, only={"batch": 1}),
            Goal(way=f"ahead {ADAPTIVE}", to=ADAPTIVE, at_least=0.98),
            Goal(way=f"ahead {ADAPTIVE}", to="two cores *", by="ratio to best", at_least=1.0),
        ),
        pair=pair,
        engine={"max_model_len": 1024, "num_threads": 2},
        repeats=3,
        warm_s=5.0,
    )


# Acceptance of 0.7, 0.8 and 0.9, and a draft step of 15 to 20% of a pass.
AHEAD: Mapping[str, Experiment] = {
    f"ahead-{pair}": _of_pair(pair, *batches)
    for pair, batches in (("a70-c15", (1,)), ("a80-c15", _BATCHES), ("a90-c15", (1,)))
}
