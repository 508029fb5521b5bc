"""Causes that an operator must hear of, and what the alerts of the manifests say of each.

It needs Prometheus. That looks at a private cluster of nodes in name only, to which
configs/prod.yaml is deployed (`loadtest.service.cluster`). Windows and delays of the alerts are
`faster` times shorter, so that hours are minutes.
"""

from __future__ import annotations

import contextlib
import copy
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from loadtest.client.attacks import Attackers, Wave, long_answers
from loadtest.client.cases import constrained_cases, free_cases
from loadtest.client.streams import FaultLoad, Load
from loadtest.experiments.rolling import set_ranks
from loadtest.experiments.tenants import Keyed
from loadtest.experiments.trials import FAST_METRICS
from loadtest.report.machine import ROOT
from loadtest.service.cluster import DEMO_NAME, DRAFT, ROUTER, TARGET, Role, fit_one_machine
from loadtest.service.prometheus import prometheus
from loadtest.service.served import Config, options, section
from loadtest.trial.scene import SETTLE_LIMIT_S, Event, Scene, Terms
from loadtest.trial.trial import Trial

_CLIENT, _GREEDY = "client", "greedy"  # their names in the file of keys, and their keys
_POLL_S = 0.5
_KILL_S = 2.0  # between the ends of two children
_NUM_ANSWERS, _MAX_TOKENS = 5000, 300  # of a flood

Cause = Callable[[Scene], AbstractContextManager[Callable[[], None]]]


@dataclass(frozen=True, kw_only=True)
class Alerting(Keyed):
    """A private cluster with keys, and Prometheus over it."""

    @contextlib.contextmanager
    def opened(self, scene: Scene, path: Path, is_clean: Callable[[], bool]) -> Iterator[None]:
        """See `Place`."""
        with (
            super().opened(scene, path, is_clean),
            prometheus(scene.cluster.folder, scene.terms.faster) as scene.prometheus,
        ):
            yield


@dataclass(frozen=True, kw_only=True)
class Trouble(Event):
    """A cause that lasts until its alerts have fired; over when all is quiet again.

    Attributes:
        cause: gives what is to be done again and again meanwhile.
        fire: alerts that must fire.
        may: further ones that it explains.
        seconds: it lasts, at least.
    """

    cause: Cause
    fire: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    seconds: float = 0.0
    workload: str = "alerts"

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`."""
        seen: dict[str, float] = {}  # since the cause began
        began_s = time.monotonic()

        def look() -> set[str]:
            time.sleep(_POLL_S)
            firing = scene.prometheus.firing()
            for name in firing - seen.keys():
                seen[name] = round(time.monotonic() - began_s, 1)
            return firing

        with self.cause(scene) as again:
            while (waited_s := time.monotonic() - began_s) < scene.terms.limit_s:
                again()
                look()
                if waited_s >= self.seconds and self.fire <= seen.keys():
                    break
        ended_s = time.monotonic()
        while (left := look()) and time.monotonic() - ended_s < scene.terms.limit_s:
            pass
        self._judge(scene, seen, left)
        fires_s = max((seen[name] for name in self.fire & seen.keys()), default=0.0)
        return {"fires_after_s": fires_s, "clears_after_s": time.monotonic() - ended_s}

    def _judge(self, scene: Scene, seen: Mapping[str, float], left: set[str]) -> None:
        scene.notes["fired_after_s"] = dict(seen)
        silent, false = self.fire - seen.keys(), seen.keys() - self.fire - self.may
        limit_s = scene.terms.limit_s
        scene.problems += [f"{name} did not fire within {limit_s:g} s" for name in sorted(silent)]
        scene.problems += [f"{name} fired without a cause" for name in sorted(false)]
        scene.problems += [f"{name} still fires after {limit_s:g} s" for name in sorted(left)]


# --- causes ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def nothing(scene: Scene) -> Iterator[Callable[[], None]]:
    """Be no cause."""
    yield lambda: None


def _deployed(edit: Callable[[Config], None]) -> Cause:
    """Return a cause that is deployed, and taken back when it has been heard of."""

    @contextlib.contextmanager
    def cause(scene: Scene) -> Iterator[Callable[[], None]]:
        changed = copy.deepcopy(scene.config)
        edit(changed)
        scene.cluster.deploy(changed)
        try:
            yield lambda: None
        finally:
            scene.cluster.deploy(scene.config)
            scene.watched.wait_deployed(SETTLE_LIMIT_S)

    return cause


def _told(deployment: str, **limits: Any) -> Cause:
    return _deployed(lambda config: options(config, deployment).update(user_config=limits))


def _node_lost(role: Role) -> Cause:
    @contextlib.contextmanager
    def cause(scene: Scene) -> Iterator[Callable[[], None]]:
        scene.cluster.remove(scene.cluster.of(role)[0])
        try:
            yield lambda: None
        finally:
            scene.cluster.add(role)
            scene.watched.wait_deployed(SETTLE_LIMIT_S)

    return cause


@contextlib.contextmanager
def _wrong_key(scene: Scene) -> Iterator[Callable[[], None]]:
    path = Path(section(scene.config, "router")["api_keys_file"])
    before = path.read_text(encoding="utf-8")
    path.write_text(before + "nobody no-hash\n", encoding="utf-8")
    try:
        yield lambda: None
    finally:
        path.write_text(before, encoding="utf-8")


@contextlib.contextmanager
def _asking(scene: Scene, at_once: int) -> Iterator[Callable[[], None]]:
    """Have a client ask for so many answers at any time, with a key of its own."""
    wave = Wave(at_once, long_answers(DEMO_NAME, range(_NUM_ANSWERS), _MAX_TOKENS))
    client = Attackers(scene.base_url, [wave], relentless=True, api_key=_GREEDY)
    client.start()
    try:
        yield lambda: None
    finally:
        client.stop()


@contextlib.contextmanager
def _target_lost(scene: Scene) -> Iterator[Callable[[], None]]:
    """Have new requests come too: streams that have text only wait, and none of them fails."""
    with _node_lost(TARGET)(scene), _asking(scene, scene.terms.reserved) as again:
        yield again


@contextlib.contextmanager
def _children_end(scene: Scene) -> Iterator[Callable[[], None]]:
    last_s = 0.0

    def again() -> None:
        nonlocal last_s
        if time.monotonic() - last_s > _KILL_S:
            last_s = time.monotonic()
            for child in scene.watched.parts()["constraint-child"][:1]:
                child.kill()

    yield again


@contextlib.contextmanager
def _worse_draft(scene: Scene) -> Iterator[Callable[[], None]]:
    """Promote a draft model that knows nothing: all its weights are 0."""
    folder = scene.cluster.folder / "worse-draft"
    shutil.copytree(ROOT / "models" / "demo" / "draft", folder)
    weights = load_file(folder / "model.safetensors")
    nothing = {name: torch.zeros_like(value) for name, value in weights.items()}
    save_file(nothing, folder / "model.safetensors", metadata={"format": "pt"})
    with _told("Draft", model_path=str(folder), promote="now")(scene) as again:
        yield again


# --- the trial ------------------------------------------------------------------------------------

_SLOW = frozenset({"OutriderFirstTokenSlow", "OutriderPromptsWait"})
_LOSES = frozenset({"OutriderSpeculationLoses", "OutriderDraftsBusy"})


def _troubles(scene: Scene) -> Iterator[Trouble]:
    yield Trouble(way="none", cause=nothing, seconds=scene.terms.calm_s, may=_LOSES)
    for way, cause, fire, may in (one for one in _CAUSES if one[0] in scene.terms.causes):
        yield Trouble(way=way, cause=cause, fire=frozenset(fire), may=may | _LOSES)


_CAUSES: Sequence[tuple[str, Cause, set[str], frozenset[str]]] = (
    (
        "a wrong limit of routers",
        _told("Router", max_sesions=80),
        {"OutriderLimitsRefused"},
        frozenset(),
    ),
    (
        "a draft model that is not there",
        _told("Draft", model_path="/not/there", promote="now"),
        {"OutriderDraftSwapRefused"},
        frozenset(),
    ),
    ("a wrong line of keys", _wrong_key, {"OutriderApiKeysRefused"}, frozenset()),
    ("grammar processes end", _children_end, {"OutriderGrammarsCrash"}, frozenset()),
    (
        "too many clients",
        lambda scene: _asking(scene, scene.terms.at_once),
        {"OutriderTurnsClientsAway"},
        _SLOW,
    ),
    ("a worse draft model", _worse_draft, {"OutriderAcceptanceFalls"}, frozenset()),
    (
        "the draft's node is lost",
        _node_lost(DRAFT),
        {"OutriderDraftsLost", "OutriderReplicaUnhealthy"},
        frozenset(),
    ),
    (
        "the target's node is lost",
        _target_lost,
        {
            "OutriderNoTarget",
            "OutriderReplicaUnhealthy",
            "OutriderRequestsFail",
            "OutriderErrorBudgetBurns",
        },
        _SLOW,
    ),
)


def _small(config: Config, terms: Terms) -> None:
    fit_one_machine(config)
    set_ranks(config, 1)
    section(config, "router").update(max_sessions=2 * terms.reserved, max_queued_sessions=16)
    # Below the shortest window: requests that nobody can serve end in bursts so far apart.
    section(config, "router.timeouts").update(queue_wait_s=5.0, first_token_s=8.0)
    for deployment in ("Router", "Constraint", "Target", "Draft"):
        options(config, deployment)["graceful_shutdown_timeout_s"] = terms.drain_s


def _streams(scene: Scene) -> Sequence[Load]:
    number = scene.terms.streams
    cases = [*free_cases(number), *constrained_cases(number)]
    return [FaultLoad(scene.base_url, cases, api_key=_CLIENT)]


ALERTS = Trial(
    question="does each alert of the manifests fire when it must, and no other",
    terms={
        "streams": 3,  # free ones, and as many constrained
        "faster": 20.0,  # windows and delays of alerts are divided by this
        "calm_s": 60.0,  # without a cause
        "causes": tuple(one[0] for one in _CAUSES),
        "limit_s": 240.0,  # until alerts fire, and until they are quiet again
        "at_once": 64,  # clients of a flood; some find the queue full
        "drain_s": 10.0,  # of replicas that leave
        "reserved": 6,  # places for the streams, beside a flood that has as many
    },
    quick={"streams": 1, "faster": 300.0, "calm_s": 5.0},
    config="prod.yaml",
    place=Alerting(
        keys=lambda terms: {_CLIENT: "", _GREEDY: ""},
        change=_small,
        # Serve tells again what stays as it is, and Ray forgets it after two reports.
        environment={**FAST_METRICS, "RAY_SERVE_STATUS_GAUGE_REPORT_INTERVAL_S": "0.5"},
        roles=(ROUTER, DRAFT, TARGET),
    ),
    loads=_streams,
    events=_troubles,
    allows_refusals=True,
    steady_s=120.0,
)
