"""A trial of two clients with a key each: one asks now and then, one asks for all there is."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from deployments.config.applications import applications_of
from loadtest.client.arrivals import Timing, take_precedence
from loadtest.client.attacks import Attackers, Wave, long_answers
from loadtest.client.workload import LOAD_TERMS, Asking, workload_of
from loadtest.service.gauges import queues
from loadtest.service.served import POD_ENVIRONMENT, Config, section
from loadtest.service.watch import Watch
from loadtest.trial.checks import Limit
from loadtest.trial.events import Arrive
from loadtest.trial.scene import Scene, Terms
from loadtest.trial.trial import Place, Trial

_MODEST, _GREEDY, _LIMITED = "modest", "greedy", "limited"
_NUM_LONG_ANSWERS = 2000  # of one event, more than are asked for: none comes twice


@dataclass(frozen=True, kw_only=True)
class Keyed(Place):
    """A service with keys.

    Attributes:
        keys: the limits in the line of each client; a client's key is its name.
    """

    keys: Callable[[Terms], Mapping[str, str]]

    @contextlib.contextmanager
    def opened(self, scene: Scene, path: Path, is_clean: Callable[[], bool]) -> Iterator[None]:
        """See `Place`."""
        with tempfile.TemporaryDirectory() as folder:
            keys_file = write_keys(Path(folder) / "keys", self.keys(scene.terms))

            def with_keys(config: Config, terms: Terms) -> None:
                self.change(config, terms)
                router = section(config, "router")
                router |= {"api_keys_file": str(keys_file), "reserved_sessions": terms.reserved}

            with Place.opened(replace(self, change=with_keys), scene, path, is_clean):
                yield


def write_keys(path: Path, limits: Mapping[str, str]) -> Path:
    """Write a file of keys: each client's is its name. Return the path."""
    lines = [
        f"{name} {hashlib.sha256(name.encode()).hexdigest()} {words}\n"
        for name, words in limits.items()
    ]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def _beside(name: str, part: int) -> Callable[[Scene], AbstractContextManager[None]]:
    """Return a client that has as many long answers under way as the terms say, all the time."""

    @contextlib.contextmanager
    def beside(scene: Scene) -> Iterator[None]:
        terms, model = scene.terms, applications_of(scene.config).config.router.model_name
        numbers = range(part * _NUM_LONG_ANSWERS, (part + 1) * _NUM_LONG_ANSWERS)
        wave = Wave(terms.at_once, long_answers(model, numbers, terms.long_tokens))
        client = Attackers(scene.base_url, [wave], relentless=True, api_key=name)
        client.start()
        try:
            time.sleep(terms.settle_s)
            yield
        finally:
            client.stop()
        if not client.answers["a long answer: 200"]:
            scene.problems.append(f"the other client was never served: {dict(client.answers)}")
        scene.problems += client.complaints
        scene.notes["answers"] = dict(client.answers)

    return beside


def _by_turns(scene: Scene) -> Iterator[Arrive]:
    terms = scene.terms
    take_precedence()
    workload = workload_of(terms, scene.config, num_distinct=None)
    alone = Arrive(
        way="alone",
        rate_per_s=terms.rate,
        seed="",
        askings=(Asking(workload.chat(number)) for number in itertools.count()),
        timing=Timing(settle_s=0.0, measured_s=terms.seconds, first_text_limit_s=terms.seconds),
        known=None,  # each has another text
        api_key=_MODEST,
        first="first_text_p95_s",
    )
    for turn in range(terms.rounds):
        in_turn = replace(alone, seed=f"{terms.seed}-{turn}")
        yield in_turn
        for number, name in enumerate((_GREEDY, _LIMITED), start=2 * turn):
            yield replace(in_turn, way=f"beside a {name} client", beside=_beside(name, number))


TENANTS = Trial(
    question="how long does a client wait for its first token beside one that asks for all",
    terms={
        "rounds": 3,
        "seconds": 60.0,  # of each
        "settle_s": 5.0,  # after which the other client has all that it gets
        "rate": 2.0,  # arrivals per second of the client that is measured
        "at_once": 40,  # long answers that the other client waits for at any time
        "long_tokens": 300,  # of each
        "sessions": 4,  # that the limited client may run
        "reserved": 4,  # places that a client with half of all does not get
        "share_limit": 1.5,  # p95 of the first text beside the other / alone
        **{name: value for name, value in LOAD_TERMS.items() if name != "any_text"},
        "max_tokens": 40,
    },
    quick={"rounds": 1, "seconds": 4.0, "settle_s": 1.0, "share_limit": 1000.0},
    place=Keyed(
        keys=lambda terms: {_MODEST: "", _GREEDY: "", _LIMITED: f"sessions={terms.sessions}"},
        environment=POD_ENVIRONMENT,
        is_watched=False,
    ),
    events=_by_turns,
    watch=lambda scene: Watch(1.0, lambda at_s: queues(scene.base_url)),
    claims=(
        Limit(
            measure="first_text_p95_s",
            workload="arrivals",
            way="beside *",
            to="alone",
            at_most="share_limit",
        ),
    ),
    base="alone",
)
