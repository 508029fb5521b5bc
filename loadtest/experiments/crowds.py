"""Trials with many clients: places always taken, too many arrivals, clients that only cost."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import httpx

from deployments.config.applications import applications_of
from loadtest.client.arrivals import SUSTAINED, Timing, quantiles, take_precedence
from loadtest.client.attacks import (
    JSON,
    TIMEOUT_S,
    Wave,
    fitting_logprob_requests,
    hostile_schemas,
    large_bodies,
    logprob_requests,
    ordinary_schema,
)
from loadtest.client.users import Users
from loadtest.client.workload import LOAD_TERMS, MIX, workload_of
from loadtest.experiments.trials import streams
from loadtest.frame.claims import Claim, Row
from loadtest.service.attached import Attached
from loadtest.service.gauges import RUNNING, WAITING, GaugeWatch, capacity, limits, queues
from loadtest.service.memory import MIB, MemoryWatch, by_minute, growth
from loadtest.service.served import Served
from loadtest.service.watch import Watch
from loadtest.trial.checks import Limit, no_errors_logged, nothing_held
from loadtest.trial.events import Arrive, Flood, Hold
from loadtest.trial.scene import Scene, Terms
from loadtest.trial.trial import Place, Trial, pods

# --- soak -----------------------------------------------------------------------------------------

_NUM_SAMPLES = 300
_REPLICAS_EVERY = 4  # samples; between two of them replicas are not asked
_IDLE_LIMIT_S = 30.0
_POLL_S = 0.5


class Vitals:
    """Memory of every process and gauges of every part; a look of a `Watch`."""

    def __init__(self, scene: Scene, service: Served | Attached) -> None:
        self.memory = MemoryWatch(scene.watched.parts, service.processes)
        self.gauges = GaugeWatch(scene.base_url, scene.watched.stats)

    def __call__(self, at_s: float) -> None:
        """Sample once."""
        self.memory.sample(at_s)
        num_before = len(self.gauges.at_s)
        self.gauges.sample(at_s, asks_replicas=num_before % _REPLICAS_EVERY == 0)


def _watch_vitals(scene: Scene) -> Watch[None]:
    assert scene.service is not None
    period_s = max(1.0, 60.0 * scene.terms.minutes / _NUM_SAMPLES)
    return Watch(period_s, Vitals(scene, scene.service))


def _vitals(scene: Scene) -> Vitals:
    assert isinstance(scene.watch.look, Vitals)
    return scene.watch.look


def _num_users(scene: Scene) -> int:
    return int(scene.terms.users or 2 * capacity(scene.config))


def _users(scene: Scene) -> list[Users]:
    return [
        Users(
            scene.base_url,
            workload_of(scene.terms, scene.config),
            num_users=_num_users(scene),
            seed=scene.terms.seed,
            expects_same_text=not scene.terms.any_text,
        )
    ]


def is_idle(scene: Scene) -> Iterable[str]:
    """Return the gauges that still show running or waiting requests, and what was not to be had.

    A page of metrics may be a second old, so it is read again until the limit.
    """
    gauges = _vitals(scene).gauges
    deadline = time.monotonic() + _IDLE_LIMIT_S
    while True:
        idle = gauges.sample(time.monotonic() - scene.watch.began_s)
        found = [
            f"{name} is {idle[name]:g} after the end"
            for name in (RUNNING, WAITING)
            if idle.get(name)
        ]
        if not found or time.monotonic() > deadline:
            return [*found, *gauges.complaints]
        time.sleep(_POLL_S)


def report_vitals(scene: Scene) -> None:
    """Note growth of memory, the most of each gauge, and how requests ended."""
    vitals = _vitals(scene)
    warm_s = 60.0 * scene.terms.minutes * scene.terms.warm_up
    _report_memory(scene, vitals.memory, warm_s)
    _report_gauges(scene, vitals.gauges, warm_s)
    for load in scene.loads:
        if isinstance(load, Users):
            _report_requests(scene, load)


def _report_memory(scene: Scene, memory: MemoryWatch, warm_s: float) -> None:
    every = next(one for one in memory.series if one.pid == 0)
    over_time = scene.result.extra.setdefault("memory_mib", {})
    for one in memory.series:
        name = f"{one.kind} {one.pid}" if one.pid else one.kind
        over_time[name] = by_minute(one.at_s, [value / MIB for value in one.checked], 1)
        try:
            found = growth(one, warm_s, every)
        except ValueError as error:
            if one.is_ours:
                scene.result.problems.append(f"memory of {name}: {error}")
            continue
        scene.note("memory" if one.is_ours else "memory of Ray", name, found)


def _report_gauges(scene: Scene, gauges: GaugeWatch, warm_s: float) -> None:
    allowed = limits(scene.config)
    for name in sorted(gauges.values.keys() | allowed):
        values = gauges.values.get(name, [])
        if values:
            limit = allowed.get(name)
            share = {} if limit is None else {"share_of_limit": max(values) / limit}
            scene.note("gauges", name, {"most": max(values), **share})
        else:
            scene.result.problems.append(f"{name} was never to be had")
    scene.result.extra["gauges"] = {
        name: by_minute(gauges.at_s, values, 3) for name, values in sorted(gauges.values.items())
    }
    # The limit is of the one router that answered /metrics.
    places = min(allowed[RUNNING], _num_users(scene))
    until_s = 60.0 * scene.terms.minutes
    running = zip(gauges.at_s, gauges.values.get(RUNNING, []), strict=False)
    full = [value >= 0.9 * places for at_s, value in running if warm_s <= at_s <= until_s]
    scene.note("load", "users", {"saturation": sum(full) / max(1, len(full))})


def _report_requests(scene: Scene, users: Users) -> None:
    replies = users.replies
    for name in sorted({reply.name for reply in replies}):
        own = [reply for reply in replies if reply.name == name]
        counts = {
            "ended": len(own),
            "turned_away": sum(reply.is_turned_away for reply in own),
            "failed": sum(bool(reply.complaint) for reply in own),
        }
        scene.note("requests", name, counts)
    length_s = 60.0 * scene.terms.minutes
    texts = [r.first_text_s - r.began_s for r in replies if r.first_text_s is not None]
    figures = {
        "tokens_per_s": sum(reply.num_tokens for reply in replies) / length_s,
        "cpu_share": users.cpu_s / length_s,
        **quantiles("first_text", texts),
    }
    scene.note("load", "users", figures)


# Users keep every place taken: chats, records, a shared long prompt, readers who leave, requests
# that are wrong.
SOAK = Trial(
    question="does memory grow under full load, and does every queue keep its limit",
    terms={
        "minutes": 20.0,
        "warm_up": 0.25,  # share of them that is not checked
        "limit": 0.03,  # growth allowed, as a share, of each process of ours and of all together
        "users": 0,  # 0: two a place
        **LOAD_TERMS,
    },
    # A sample takes seconds on a busy machine, and each quarter needs three of them.
    quick={"minutes": 1.0, "warm_up": 0.0, "limit": 100.0, "max_tokens": 40},
    place=Place(num_urls=1),
    loads=_users,
    events=lambda scene: [Hold(way="full load", seconds=60.0 * scene.terms.minutes)],
    watch=_watch_vitals,
    report=report_vitals,
    after=(nothing_held(30.0), is_idle, no_errors_logged),
    claims=(
        Limit(workload="memory", measure="growth", at_most="limit"),
        Limit(workload="gauges", measure="share_of_limit", at_most=1.0),
        Limit(workload="load", measure="saturation", at_least=0.9),  # or: more users
    ),
)

# --- overload -------------------------------------------------------------------------------------

_ASKED = {kind: MIX[kind] for kind in ("chat", "record", "shared")}  # requests that can become good
_MOST_STEPS = 20


def _rates(scene: Scene) -> Iterator[Arrive]:
    """Yield rising rates until one is not sustained, then multiples of the last that was.

    Raises:
        RuntimeError: not even the first rate is sustained.
    """
    terms, extra = scene.terms, scene.result.extra
    extra["load_priority"] = take_precedence()
    fields: dict[str, Any] = {
        "askings": workload_of(terms, scene.config).mixed(
            random.Random(f"{terms.seed}-overload"), _ASKED
        ),
        "timing": Timing(
            settle_s=terms.settle_s,
            measured_s=terms.measured_s,
            first_text_limit_s=terms.first_text_limit_s,
        ),
        "known": None if terms.any_text else {},
    }

    def at(rate_per_s: float, way: str) -> Arrive:
        seed = f"{terms.seed}-{way}-{rate_per_s:.4f}"
        return Arrive(way=way, rate_per_s=rate_per_s, seed=seed, **fields)

    for number in range(_MOST_STEPS):
        rate_per_s = terms.first_rate * terms.step**number
        yield at(rate_per_s, f"{rate_per_s:.2f}/s")
        if scene.figures["good_share"] < SUSTAINED or scene.figures["failed"]:
            break
        extra["sustained_per_s"] = rate_per_s
    if "sustained_per_s" not in extra:
        raise RuntimeError(
            f"not even {terms.first_rate:g} arrivals/s are sustained: lower first_rate"
        )
    for factor in sorted(terms.factors):
        yield at(factor * extra["sustained_per_s"], _multiple(factor))


def _multiple(factor: float) -> str:
    return f"{factor:g} times"


def keeps_goodput(rows: Sequence[Row], terms: Terms) -> Iterator[Claim]:
    """Yield that the greatest multiple is too much, and has nearly the best goodput."""
    way = _multiple(max(terms.factors))
    for row in rows:
        if row["way"] == way:
            runs = row["runs"]
            peak = max(other["runs"]["goodput_per_s"][0] for other in rows)
            yield Claim(
                f"{way} the sustained rate: goodput / the peak of all rates",
                runs["goodput_per_s"][0] / peak,
                "at least",
                1 - terms.goodput_loss,
            )
            yield Claim(f"{way}: answers 429", runs["turned_away"][0], "at least", 1)


# Arrivals do not wait for answers. The chance error of n answers is sqrt(n), and the peak is the
# luckiest rate of all: so the measured time is long.
OVERLOAD = Trial(
    question="does goodput hold when too many requests arrive",
    terms={
        "first_rate": 2.0,  # arrivals per second
        "step": 1.25,  # one rate / the one before
        "factors": (1.0, 2.0, 3.0),
        "settle_s": 20.0,  # of a rate, not measured
        "measured_s": 120.0,
        "first_text_limit_s": 10.0,  # later answers are not good
        "refusal_limit_s": 1.0,  # p99 of the time to a 429
        "goodput_loss": 0.1,  # share of the peak
        "late_limit_s": 0.25,  # p99 of how late the load is sent; beyond, it is not what it says
        **LOAD_TERMS,
    },
    # Seconds are too short to hold a service to its goodput; nothing else may go wrong.
    quick={
        "first_rate": 4.0,
        "step": 20.0,
        "factors": (20.0,),
        "settle_s": 1.0,
        "measured_s": 4.0,
        "first_text_limit_s": 3.0,
        "refusal_limit_s": 60.0,
        "goodput_loss": 1.0,
        "late_limit_s": 60.0,
        "max_tokens": 20,
    },
    place=pods(),
    events=_rates,
    watch=lambda scene: Watch(1.0, lambda at_s: queues(scene.base_url)),
    claims=(
        keeps_goodput,
        Limit(measure="refusal_p99_s", at_most="refusal_limit_s"),
        Limit(measure="load_late_p99_s", at_most="late_limit_s"),
    ),
)

# --- hostile --------------------------------------------------------------------------------------


def _floods(scene: Scene) -> Iterator[Flood]:
    """Yield by turns a quiet time, one for each kind of attack, and one with all of them."""
    args = applications_of(scene.config).config
    model = args.router.model_name
    waves = {
        "large bodies": Wave(5, large_bodies(model, args.router.body_limit_bytes)),
        "logprobs": Wave(1, logprob_requests(model)),
        "schemas": Wave(10, hostile_schemas(model)),
    }
    kinds = {"quiet": [], **{name: [wave] for name, wave in waves.items()}}
    kinds["all at once"] = list(waves.values())
    # They have no claim, because prompts may slow streams.
    fitting = Wave(1, fitting_logprob_requests(model, args.target.max_model_len))
    kinds["logprobs that fit"] = [fitting]
    for kind, sent in [*kinds.items()] * scene.terms.rounds:
        yield Flood(
            way=kind, waves=sent, seconds=scene.terms.seconds, relentless=scene.terms.relentless
        )


def _ordinary_is_served(scene: Scene) -> Iterable[str]:
    model = applications_of(scene.config).config.router.model_name
    attack = ordinary_schema(model)
    answer = httpx.post(
        scene.base_url + attack.path, content=attack.body, headers=JSON, timeout=TIMEOUT_S
    )
    answers: Counter[str] = scene.result.extra.setdefault("answers", Counter())
    answers[f"{attack.name} of {len(attack.body)} bytes: {answer.status_code}"] += 1
    if answer.status_code == httpx.codes.OK:
        return []
    said = f"{answer.status_code}: {answer.text[:300]}"
    return [f"an ordinary schema is refused afterwards: {said}"]


HOSTILE = Trial(
    question="what do streams notice of clients that only cost",
    terms={
        "streams": 4,  # free ones, and as many constrained
        "rounds": 5,  # of each kind
        "seconds": 10.0,  # of each, at least
        "relentless": False,  # send attacks again and again: an overload as well
        "gap_limit": 1.5,  # the longest gap of any stream under all attacks / that of quiet times
    },
    quick={"rounds": 1, "seconds": 1.0, "gap_limit": 100.0},
    place=pods(),
    loads=streams,
    events=_floods,
    after=(_ordinary_is_served,),
    claims=(Limit(measure="longest_gap_s", way="all at once", to="quiet", at_most="gap_limit"),),
    base="quiet",
)
