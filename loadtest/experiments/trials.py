"""Trials of a served model: what its streams notice of faults, changes, crowds and unkind clients.

Each serves a config privately, as it is shipped but for what its place says. Terms are the numbers
that `--set` changes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from loadtest.client.cases import Case, constrained_cases, free_cases
from loadtest.client.streams import FaultLoad, Load
from loadtest.service.parts import EDGE_KINDS, KINDS
from loadtest.service.replicas import Sample, changes, drained_sessions, look_at_replicas
from loadtest.service.served import POD_ENVIRONMENT, Config, set_spares
from loadtest.service.watch import Watch
from loadtest.trial.checks import Limit, nothing_held
from loadtest.trial.events import SIGNALS, Hold, Strike, Until
from loadtest.trial.scene import Event, Scene, Terms
from loadtest.trial.trial import Place, Trial

CALM = Hold(way="calm", seconds=5.0)  # before the first event, for comparison


def streams(scene: Scene) -> Sequence[Load]:
    """Return so many free streams as the terms say, and as many under a schema."""
    number = scene.terms.streams
    return [FaultLoad(scene.base_url, [*free_cases(number), *constrained_cases(number)])]


# --- faults ---------------------------------------------------------------------------------------


def strikes(terms: Terms, rng: random.Random) -> Iterator[Strike]:
    """Return every kind with every signal once a round, in an order of the round's own."""
    for _ in range(terms.rounds):
        in_round = [
            Strike(way=f"{kind} {name}", kind=kind, signal=name)
            for kind in terms.kinds
            for name in terms.signals
        ]
        rng.shuffle(in_round)
        yield from in_round


def _calm_and_strikes(scene: Scene) -> Iterator[Hold | Strike]:
    scene.watched.check_kinds(scene.terms.kinds)
    yield CALM
    yield from strikes(scene.terms, scene.rng)


def _freed_s(terms: Terms) -> float:
    """Return how long books may take; leases of a dead router end by their idle time-out."""
    return 30.0 if set(EDGE_KINDS).isdisjoint(terms.kinds) else 180.0


def _as_asked(config: Config, terms: Terms) -> None:
    for deployment in config["applications"][0]["deployments"]:
        if terms.replicas and deployment["name"] != "Draft":
            deployment["num_replicas"] = terms.replicas
    if terms.spare >= 0 or terms.replicas:  # which all serve
        set_spares(config, terms.spare > 0)


# SIGKILL and SIGSTOP to every kind of process. Clients of a proxy or router that dies go on
# elsewhere with `Last-Event-ID`. Raylet and GCS are spared: without them there is no node.
FAULTS = Trial(
    question="does any stream change or end when a process dies",
    terms={
        "rounds": 1,  # faults of each kind and signal
        "kinds": KINDS,
        "signals": tuple(SIGNALS),
        "streams": 8,  # free ones, and as many constrained
        "replicas": 0,  # of all but drafts; 0: as the config has
        "spare": -1,  # 1: all that may have one; 0: none; -1: as the config, without `replicas`
        "gap_s": 1.0,  # longest in a stream, but for a lost target
        "target_gap_s": 3.0,
        "seed": 0,
    },
    choices={"kinds": KINDS, "signals": SIGNALS},
    quick={"kinds": ("target-rank",), "signals": ("KILL",), "streams": 2},
    place=Place(change=_as_asked, environment=POD_ENVIRONMENT),
    loads=streams,
    events=_calm_and_strikes,
    after=(nothing_held(_freed_s),),
    claims=(
        *(
            Limit(way=f"{kind} *", measure="longest_gap_s", at_most="gap_s", by=max)
            for kind in KINDS
            if not kind.startswith("target-")
        ),
        Limit(way="target-*", measure="longest_gap_s", at_most="target_gap_s", by=max),
    ),
    allows_refusals=True,  # before any text: nobody stands in for the only target that loads
)


# --- scaling --------------------------------------------------------------------------------------

# Serve's replicas and handles report their load every ten seconds otherwise, Ray's agents as well.
FAST_METRICS = {
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    "RAY_SERVE_AUTOSCALING_METRIC_RECORD_INTERVAL_FACTOR": "0.1",
    "RAY_metrics_report_interval_ms": "1000",
}
# Small, so that a laptop reaches them within minutes.
_LIMITS: Mapping[str, Mapping[str, float]] = {
    "Target": {"kv_use": 0.4, "waiting_tokens": 400},
    "Draft": {"busy": 0.4},
    "Constraint": {"queue_length": 4, "sessions": 4},
}
_DRAIN_S = 120  # longest wait of a replica that leaves; longer than any answer here


def same_cache(config: Config, terms: Terms) -> None:
    """Give the target the KV cache that it has with and without scaling, and no spares."""
    set_spares(config, False)
    config["applications"][0]["args"]["target"]["kv_cache_tokens"] = 4096


def scaling_config(config: Config, terms: Terms) -> None:
    """Give every deployment of the demo an autoscaling_config from one to two replicas."""
    same_cache(config, terms)
    for deployment in config["applications"][0]["deployments"]:
        name = deployment["name"]
        deployment.pop("num_replicas", None)
        deployment["graceful_shutdown_timeout_s"] = _DRAIN_S
        scaling: dict[str, Any] = {
            "min_replicas": 1,
            "max_replicas": 2,
            "look_back_period_s": 11,
            "upscale_delay_s": 3,
            "downscale_delay_s": 8,
        }
        if name == "Router":
            scaling["target_ongoing_requests"] = 10
        else:
            policy = f"deployments.scaling:{name}Policy"
            scaling["policy"] = {"policy_function": policy, "policy_kwargs": dict(_LIMITS[name])}
        deployment["autoscaling_config"] = scaling


def groups(num_groups: int) -> list[list[Case]]:
    """Return the streams that come and leave together: three free ones, three with a schema.

    The first group, which stays, is smaller and does not draft: one replica of each kind is enough.
    A draft on the same cores is as busy with one stream as with fifteen, because those share its
    passes. It is busy for half of the time.
    """
    free, constrained = free_cases(3 * num_groups), constrained_cases(3 * num_groups)
    plain = {"speculation": {"enabled": False}}
    first = [replace(case, body=case.body | plain) for case in (*free[:2], constrained[0])]
    rest = [free[3 * i : 3 * i + 3] + constrained[3 * i : 3 * i + 3] for i in range(1, num_groups)]
    return [first, *rest]


def _rise_and_fall(scene: Scene) -> Iterator[Event]:
    yield Hold(way="one group", seconds=scene.terms.stage_s)
    for number in range(2, scene.terms.groups + 1):
        seconds = scene.terms.stage_s
        yield Hold(way=f"group {number} comes", act=Scene.join, seconds=seconds)
    yield Until(
        way="two replicas of each",
        is_reached=lambda look: all(look.num_running(name) >= 2 for name in look.replicas),
        limit_s=scene.terms.up_s,
    )
    for number in range(scene.terms.groups, 1, -1):
        yield Hold(way=f"group {number} leaves", act=Scene.leave)
    yield Until(
        way="one replica of each",
        is_reached=lambda look: look.is_settled_at(1),
        limit_s=scene.terms.back_s,
        complaint="the numbers of replicas did not come back",
    )


def report_replicas(scene: Scene) -> None:
    """Note how many replicas of each deployment ran, a run wherever the number changed."""
    samples: list[Sample] = scene.watch.samples
    names = sorted({name for sample in samples for name in sample.replicas})
    for name in names:
        for at_s, number in changes(samples, name):
            scene.note("replicas", name, {"running": number, "at_s": at_s})
    drained = {name: drained_sessions(samples, name) for name in names}
    scene.result.extra["sessions_served_while_stopping"] = drained
    scene.result.extra["looks"] = [asdict(sample) for sample in samples]


# The first group goes on until every deployment is back at one replica. So replicas that leave have
# sessions to wait for. Texts must be those of one replica of each kind.
SCALING = Trial(
    question="do replicas follow a load that rises and falls, and does no stream notice",
    terms={
        "groups": 3,  # of six streams each, the first of three
        "stage_s": 15.0,  # from group to group
        "up_s": 60.0,  # for every deployment to have two replicas under all groups
        "replicas": 2,  # that each deployment must have had
        "back_s": 120.0,  # for the numbers to come back under the first group
    },
    quick={"groups": 2, "stage_s": 5.0, "up_s": 5.0, "replicas": 1},
    place=Place(change=scaling_config, environment=FAST_METRICS),
    reference=Place(change=same_cache, is_watched=False),
    loads=lambda scene: [FaultLoad(scene.base_url, group) for group in groups(scene.terms.groups)],
    events=_rise_and_fall,
    watch=lambda scene: Watch(
        1.0, look_at_replicas(lambda: sum(load.num_streams for load in scene.running))
    ),
    report=report_replicas,
    claims=(Limit(workload="replicas", measure="running", by=max, at_least="replicas"),),
)
