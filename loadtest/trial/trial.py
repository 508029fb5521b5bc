"""A trial: a service under a load, events that happen to it, and what must hold all the time.

A trial is a value (`loadtest/experiments/trials.py`). `Trial.run` opens its service and notes what
every stream answers undisturbed. Then it lets one event after the other happen while the streams
run. At the end it stops the load and looks at what is left. An event is a way of a record, and its
runs are the times that it happened. A trial passes if it has no problem and every claim is met.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from loadtest.client.streams import Load
from loadtest.frame.claims import Claim, Row
from loadtest.frame.experiment import Result
from loadtest.report.machine import ROOT
from loadtest.service.attached import attach
from loadtest.service.cluster import Role, private_cluster
from loadtest.service.parts import FaultService, wait_gone
from loadtest.service.served import POD_ENVIRONMENT, Config, measured, set_spares
from loadtest.service.watch import Watch
from loadtest.trial.scene import KEPT_PROBLEMS, SETTLE_LIMIT_S, Claims, Event, Scene, Terms, happen

_GONE_LIMIT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place where the service of a trial runs.

    Attributes:
        change: edits the parsed config before it is served.
        environment: further variables of the service's processes.
        roles: nodes of a private cluster to which the config is deployed; none: `serve run`.
        is_watched: its processes and books are looked into through its Ray.
        num_urls: so many that somebody else runs will do.
    """

    change: Callable[[Config, Terms], None] = lambda config, terms: None
    environment: Mapping[str, str] = field(default_factory=dict)
    roles: tuple[Role, ...] = ()
    is_watched: bool = True
    num_urls: int = 0

    @contextlib.contextmanager
    def opened(self, scene: Scene, path: Path, is_clean: Callable[[], bool]) -> Iterator[None]:
        """Open the service until the block ends; nothing of it may be left then.

        Args:
            scene: gets the service.
            path: of the config.
            is_clean: asked at the end; if not, the logs stay where they are.
        """
        scene.config = yaml.safe_load(path.read_text(encoding="utf-8"))
        self._change(scene.config, scene.terms)
        if scene.urls:
            with self._attached(scene):
                yield
            return
        if self.roles:
            with self._cluster(scene):
                yield
            return

        with (
            measured(
                path,
                change=lambda config: self._change(config, scene.terms),
                keeps_folder=lambda: not is_clean(),
                environment=self.environment,
            ) as service,
            crash_noted(scene.result),  # before the logs are kept or not
        ):
            print(f"the service and its logs are in {service.folder}", flush=True)
            scene.service, scene.base_url = service, service.base_url
            with self._watched(scene):
                yield
        left = wait_gone(service.folder, _GONE_LIMIT_S)
        scene.result.problems += [f"left over: {process}" for process in left]

    def _change(self, config: Config, terms: Terms) -> None:
        self.change(config, terms)
        if not self.is_watched:  # nobody waits until a spare is loaded
            set_spares(config, False)

    @contextlib.contextmanager
    def _attached(self, scene: Scene) -> Iterator[None]:
        scene.base_url = scene.urls[0].rstrip("/")
        if self.is_watched:
            scene.service = attach(scene.urls[0])
        with self._watched(scene):
            yield

    @contextlib.contextmanager
    def _cluster(self, scene: Scene) -> Iterator[None]:
        with private_cluster(environment=self.environment) as scene.cluster:
            for role in self.roles:
                scene.cluster.add(role)
            scene.base_url = scene.cluster.base_url
            scene.cluster.deploy(scene.config)
            scene.cluster.wait_healthy(SETTLE_LIMIT_S)
            with FaultService(scene.cluster) as scene.watched:
                scene.watched.wait_deployed(SETTLE_LIMIT_S)
                yield

    @contextlib.contextmanager
    def _watched(self, scene: Scene) -> Iterator[None]:
        if not self.is_watched or scene.service is None:
            yield
            return
        with FaultService(scene.service) as scene.watched:
            yield


def pods(num_urls: int = 1) -> Place:
    """Return a place with the pods' environment, which is looked at from outside only."""
    return Place(environment=POD_ENVIRONMENT, is_watched=False, num_urls=num_urls)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial.

    Attributes:
        question: it answers, in words.
        events: what happens, in order; they may look at the figures of those before.
        terms: numbers and words that the command line may set, with their usual values.
        choices: all words that a term of words may have, by the term's name.
        quick: those of the smallest form that runs every part.
        place: where the service runs; None: there is none.
        config: a file of configs/.
        loads: made for the service; the first one runs from the beginning.
        reference: the service that says what texts must be; None: the trial's own, undisturbed.
        watch: looks at the service while the load runs.
        report: makes rows and further entries of those looks.
        after: checks when the load has ended, a line for each complaint.
        claims: limits of the figures.
        base: the way that others are compared with in the table.
        steady_s, allows_refusals: see `happen`.
    """

    question: str
    events: Callable[[Scene], Iterable[Event]]
    terms: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, Collection[str]] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    place: Place | None = Place()
    config: str = "demo.yaml"
    loads: Callable[[Scene], Sequence[Load]] = lambda scene: ()
    reference: Place | None = None
    watch: Callable[[Scene], Watch[Any]] | None = None
    report: Callable[[Scene], None] = lambda scene: None
    after: Sequence[Callable[[Scene], Iterable[str]]] = ()
    claims: Sequence[Claims] = ()
    base: str = ""
    steady_s: float = 60.0
    allows_refusals: bool = False

    def run(self, scene: Scene, path: Path | None = None) -> Result:
        """Run it; what was found so far is in `scene.result` at any end."""
        path = path or ROOT / "configs" / self.config
        scene.rng = random.Random(getattr(scene.terms, "seed", 0))
        result = scene.result
        with crash_noted(result), contextlib.ExitStack() as stack:
            if self.place is not None:
                self._refer(scene, path)
                stack.enter_context(self.place.opened(scene, path, lambda: self.is_clean(scene)))
            if self.reference is None:
                self._prepare(scene)
            for load in scene.loads:
                load.base_url = scene.base_url
            self._play(scene)
        return result

    def is_clean(self, scene: Scene) -> bool:
        """Return whether all held so far."""
        return not scene.result.problems and all(
            claim.is_met for claim in self.claims_of(scene.result.rows, scene.terms)
        )

    def claims_of(self, rows: Sequence[Row], terms: Terms) -> list[Claim]:
        """Return the claims that the rows have figures for."""
        return [claim for claims in self.claims for claim in claims(rows, terms)]

    def _refer(self, scene: Scene, path: Path) -> None:
        """Note what the streams answer at the reference."""
        if self.reference is None:
            return
        with self.reference.opened(scene, path, lambda: True):
            self._prepare(scene)

    def _prepare(self, scene: Scene) -> None:
        scene.loads = self.loads(scene)
        for load in scene.loads:
            drafted = {name: answer.num_draft_tokens for name, answer in load.prepare().items()}
            scene.result.extra.setdefault("drafted", {}).update(drafted)

    def _play(self, scene: Scene) -> None:
        result = scene.result
        if self.watch is not None:
            scene.watch = self.watch(scene)
            scene.watch.start()
        try:
            try:
                self._happen_all(scene)
            finally:
                while scene.running:
                    scene.leave()
                result.problems += [f"late: {failure}" for failure in scene.take_failures()]
                result.extra["num_answers"] = scene.num_answers
                if self.watch is not None:
                    scene.watch.stop()
                    result.problems += [
                        f"a look {error}" for error in scene.watch.errors[:KEPT_PROBLEMS]
                    ]
            for check in self.after:
                result.problems += check(scene)
        finally:
            self.report(scene)

    def _happen_all(self, scene: Scene) -> None:
        if scene.loads:
            scene.join()
        for event in self.events(scene):
            problems = happen(
                scene, event, steady_s=self.steady_s, allows_refusals=self.allows_refusals
            )
            told = [f"{event.way}: {problem}" for problem in problems[:KEPT_PROBLEMS]]
            more = len(problems) - len(told)
            scene.result.problems += [*told, f"and {more} more"] if more else told


@contextlib.contextmanager
def crash_noted(result: Result) -> Iterator[None]:
    """Note an exception that ends the block, Ctrl-C included, and let it go on.

    A result of a run that was cut off would say that all was well so far.
    """
    try:
        yield
    except BaseException as error:
        line = f"ended early: {type(error).__name__}: {error}"
        if line not in result.problems:
            result.problems.append(line)
        raise
