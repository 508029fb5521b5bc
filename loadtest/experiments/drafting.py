"""Experiments on drafting: fixed draft lengths, k chosen live, free drafters, heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadtest.frame.claims import ADAPTIVE_TO_PLAIN, Goal, never_wrong
from loadtest.frame.experiment import Experiment
from loadtest.frame.ways import Way, by_k
from loadtest.frame.workloads import by_task, demo

_HEADS = {"mtp": "models/demo/mtp", "medusa": "models/demo/heads"}
_KINDS = ("story", "extraction", "code")

SPEED = Experiment(
    question="how fast are engines, links and HTTP for each draft length, next to plain decoding",
    workloads={kind: demo(kind) for kind in ("story", "code")},
    ways={**by_k((1, 3, 5, 8)), "bare": Way(k=0, at="bare")},
    stages=("engine", "link", "http"),
    batches=(1, 4, 8),
    goals=(
        *never_wrong(),
        # The bare engine's rate over that through the link is the link's time over the engine's.
        Goal(way="bare", to="k=0", at_most=1.03, only={"stage": "link", "batch": 1}),
    ),
    repeats=5,
    warm_s=3.0,
)

HEADS = Experiment(
    question="what do heads on the demo's target bring over HTTP",
    workloads={kind: demo(kind) for kind in _KINDS},
    ways={
        "plain": Way(k=0, drafts=(), target={"heads": _HEADS["mtp"]}),
        **{name: Way(drafts=(), target={"heads": folder}) for name, folder in _HEADS.items()},
    },
    stages=("http",),
    batches=(1, 8),
    goals=(
        *(
            Goal(way="mtp", to="plain", at_least=goal, only={"workload": kind, "batch": 1})
            for kind, goal in zip(_KINDS, (1.4, 1.8, 1.8), strict=True)
        ),
        Goal(way="mtp", to="plain", at_least=ADAPTIVE_TO_PLAIN, only={"batch": 8}),
    ),
    tokens=100,
    repeats=5,
)

# A model without a draft model: suffix decoding drafts, as in configs/smollm2.yaml.
REPEATS: dict[str, Any] = {
    "speculation": {"method": "suffix", "suffix_decoding_max_tree_depth": 24}
}
_HEADS_GAIN, _LITTLE_GAIN = 1.5, 1.2  # heads gain where suffix decoding gains little

KINDS = Experiment(
    question="how fast is a real model over HTTP without a draft model, by kind of prompt",
    workloads=by_task("kinds", 64),
    ways={
        "plain": Way(k=0),
        "k=5": Way(k=5),
        "adaptive": Way(),
    },
    stages=("http",),
    pair="smollm2",
    router=REPEATS,
    goals=(Goal(way="adaptive", to="plain", at_least=ADAPTIVE_TO_PLAIN),),
    tokens=128,
    repeats=3,
)

_WITH_HEADS: dict[str, Any] = {"target": {"heads": "models/demo/smollm2"}}

KINDS_HEADS = replace(
    KINDS,
    question="what do heads on a real model bring, beside suffix decoding, by kind of prompt",
    ways={
        "plain": Way(k=0, **_WITH_HEADS),
        "suffix alone": Way(drafter="suffix", **_WITH_HEADS),
        "heads alone": Way(drafter="heads", **_WITH_HEADS),
        "both": Way(**_WITH_HEADS),
    },
    goals=(
        Goal(
            way="heads alone",
            to="plain",
            at_least=_HEADS_GAIN,
            unless=Goal(way="suffix alone", to="plain", at_least=_LITTLE_GAIN),
        ),
        Goal(way="both", to="* alone", at_least=1.0, by="ratio to best"),
    ),
)
