"""The scene of a trial: its service, the loads that run on it, and the events that happen to it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from loadtest.client.streams import Failure, Load
from loadtest.frame.claims import Claim, Row
from loadtest.frame.experiment import Result
from loadtest.rehearse.kuberay import PodCluster
from loadtest.service.attached import Attached
from loadtest.service.cluster import PrivateCluster
from loadtest.service.parts import FaultService
from loadtest.service.prometheus import Prometheus
from loadtest.service.served import Config, Served
from loadtest.service.watch import Watch

KEPT_PROBLEMS = 20  # of an event
SETTLE_LIMIT_S = 400.0  # of a config that is deployed to a cluster

Terms = SimpleNamespace  # the numbers and words of a trial, by name
Claims = Callable[[Sequence[Row], Terms], Iterable[Claim]]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happens while the load runs.

    Attributes:
        way: its name in the record.
        workload: the name of its group there.
        stage: what answers: `http`, or this `process`.
        pause_s: least and most seconds between a steady load and the event.
        first: the measure that comes first in tables and pictures; "": of streams, the pause.
    """

    way: str
    workload: str = "streams"
    stage: str = "http"
    pause_s: tuple[float, float] = (0.0, 0.0)
    first: str = ""

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """Happen; return figures by measure. Problems go to `scene.problems`."""
        raise NotImplementedError


@dataclass(kw_only=True)
class Scene:
    """Everything that events and checks of a trial reach.

    Attributes:
        terms: see `Trial`.
        config: the parsed config that is served now.
        result: what was found so far.
        base_url, service, cluster, pods, watched: of the service, as far as the place has them.
        prometheus: over it, likewise.
        loads: all; `running`: those that run now.
        watch: the looks of the trial.
        problems: with the event that happens now.
        notes: words on that event.
        num_refused: requests that were refused for lack of room meanwhile.
        num_probes: requests that were sent to see if the service is whole.
        ended_s: when it was over; None: when it returns.
        figures: of the event before.
    """

    terms: Terms
    config: Config = field(default_factory=dict)
    result: Result = field(default_factory=Result)
    urls: Sequence[str] = ()
    rng: random.Random = field(default_factory=random.Random)
    base_url: str = ""
    service: Served | Attached | None = None
    cluster: PrivateCluster = field(init=False)
    pods: PodCluster = field(init=False)
    watched: FaultService = field(init=False)
    prometheus: Prometheus = field(init=False)
    watch: Watch[Any] = field(init=False)
    loads: Sequence[Load] = ()
    running: list[Load] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: dict[str, object] = field(default_factory=dict)
    num_refused: int = 0
    num_probes: int = 0
    ended_s: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def num_answers(self) -> int:
        """Requests of all loads that came to an end."""
        return sum(load.num_answers for load in self.loads)

    @property
    def num_breaks(self) -> int:
        """Streams of all loads that broke and went on at another router."""
        return sum(load.num_breaks for load in self.loads)

    def join(self) -> None:
        """Start the next load."""
        load = self.loads[len(self.running)]
        load.start()
        self.running.append(load)

    def leave(self) -> None:
        """Stop the last load that runs."""
        self.running[-1].stop()
        self.running.pop()

    def take_failures(self) -> list[Failure]:
        """Return the failures of all loads since the last call."""
        return [failure for load in self.loads for failure in load.take_failures()]

    def is_steady(self, limit_s: float) -> bool:
        """Return whether every stream received something within `limit_s`."""
        return all(load.wait_steady(limit_s) for load in self.running)

    def note(
        self, workload: str, way: str, figures: Mapping[str, float], stage: str = "http"
    ) -> None:
        """Add a run to the row of this workload and way."""
        for row in self.result.rows:
            if (row["workload"], row["way"]) == (workload, way):
                break
        else:
            batch = sum(load.num_streams for load in self.loads)
            row = {"stage": stage, "workload": workload, "batch": batch, "way": way, "runs": {}}
            self.result.rows.append(row)
        for name, value in figures.items():
            row["runs"].setdefault(name, []).append(round(value, 4))


def happen(
    scene: Scene, event: Event, *, steady_s: float = 60.0, allows_refusals: bool = False
) -> list[str]:
    """Let an event happen under the running loads; note its figures and return its problems.

    Args:
        scene: gets the row, and under `events` a line with all that is known.
        event: see there.
        steady_s: how long streams may take until each has received something.
        allows_refusals: a 429 or 503 before any text is counted apart; it is no problem.

    Raises:
        RuntimeError: streams stand still before it.
    """
    if not scene.is_steady(steady_s):
        raise RuntimeError(f"before {event.way}: some stream got nothing, and nothing was done")
    time.sleep(scene.rng.uniform(*event.pause_s))
    scene.problems = [f"before it: {failure}" for failure in scene.take_failures()]
    scene.notes, scene.num_refused, scene.ended_s = {}, 0, None
    num_before, num_broken, began_s = scene.num_answers, scene.num_breaks, time.monotonic()
    figures = dict(event.happen(scene))
    ended_s = scene.ended_s or time.monotonic()
    if not scene.is_steady(steady_s):
        scene.problems.append("afterwards some stream got nothing")
    figures = {**_worst(scene.running, began_s, ended_s), **figures}
    if event.first:
        figures = {event.first: figures[event.first], **figures}
    failures = scene.take_failures()
    refused = [failure for failure in failures if allows_refusals and failure.is_refusal]
    scene.num_refused += len(refused)
    scene.problems += [str(failure) for failure in failures if failure not in refused]
    problems = scene.problems
    if scene.running:
        figures["answers"] = scene.num_answers - num_before
        figures["went_on"] = scene.num_breaks - num_broken
        figures |= {"refused": scene.num_refused, "problems": len(problems)}
    scene.figures = figures
    scene.note(event.workload, event.way, figures, event.stage)
    waits = [wait for load in scene.running for wait in load.waits(began_s, ended_s)]
    told = {
        "event": event.way,
        **scene.notes,
        "waits": waits,
        "problems": problems[:KEPT_PROBLEMS],
    }
    scene.result.extra.setdefault("events", []).append(told)
    print(_line(event, figures, problems), flush=True)
    return problems


def _worst(loads: Sequence[Load], from_s: float, to_s: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for load in loads:
        for name, value in load.figures(from_s, to_s).items():
            found[name] = max(value, found.get(name, value))
    return found


def _line(event: Event, figures: Mapping[str, float], problems: Sequence[str]) -> str:
    said = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
    verdict = f"{len(problems)} FAILURES, at first {problems[0]}" if problems else "ok"
    return f"{event.way}: {said}: {verdict}"
