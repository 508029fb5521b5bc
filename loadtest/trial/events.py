"""Events of trials: calm, a killed or stopped process, a deployed change, a load, attacks, a rate.

Each waits until its consequences are over, so that its figures hold all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import psutil

from loadtest.client.answers import Answer, check_answer
from loadtest.client.arrivals import Sent, Timing, arrivals, measure, send
from loadtest.client.attacks import Attackers, Wave
from loadtest.client.cases import probe_case
from loadtest.client.http import ask_once
from loadtest.client.streams import REFUSALS
from loadtest.client.workload import Asking
from loadtest.service.parts import is_alive
from loadtest.service.served import Config
from loadtest.trial.scene import SETTLE_LIMIT_S, Event, Scene

SIGNALS = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP}
WHOLE_LIMIT_S = 120.0
_IDLE_S = 1.0  # a stopped part is probed after this, if nobody else may need it
_ORPHAN_LIMIT_S = 15.0
_POLL_S = 0.1
_MINUTE_S = 60.0
_DRAIN_S = 60.0  # a service may not keep sessions longer after all answers


@dataclass(frozen=True, kw_only=True)
class Hold(Event):
    """Do something to the loads, and wait; say every minute that it goes on.

    Attributes:
        act: `Scene.join`, `Scene.leave`, or nothing.
        seconds: to wait.
    """

    act: Callable[[Scene], None] = field(default=lambda scene: None)
    seconds: float = 0.0

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`."""
        self.act(scene)
        until_s = time.monotonic() + self.seconds
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(_MINUTE_S, left_s))
            if left_s > _MINUTE_S:
                print(f"{self.way}: {left_s:.0f} s left, {scene.num_answers} answers", flush=True)
        return {}


@dataclass(frozen=True, kw_only=True)
class Until(Event):
    """Wait for a look of which something is true.

    Attributes:
        is_reached: takes a look.
        limit_s: longest wait.
        complaint: the problem if it is not reached; "": there is none.
    """

    is_reached: Callable[[Any], bool]
    limit_s: float
    complaint: str = ""

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`."""
        began_s = time.monotonic()
        if not scene.watch.wait(self.is_reached, self.limit_s) and self.complaint:
            scene.problems.append(self.complaint)
        return {"reached_s": time.monotonic() - began_s}


@dataclass(frozen=True, kw_only=True)
class Strike(Event):
    """SIGKILL or SIGSTOP to one process of a kind; over when the service is whole again.

    Whole means that every kind has as many processes as before, none stopped, the victim among the
    dead. Every replica is RUNNING, and a request that needs all of them was answered.
    """

    kind: str
    signal: str
    pause_s: tuple[float, float] = (0.0, 3.0)

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`."""
        victim = scene.rng.choice(scene.watched.victims(self.kind))
        struck_s = time.monotonic()
        victim.send_signal(SIGNALS[self.signal])
        ended_by = self._await_end(scene, victim, struck_s)
        gone_s = time.monotonic() - struck_s
        _await_whole(scene, struck_s)
        scene.ended_s = time.monotonic()
        _await_no_orphans(scene)
        scene.notes |= {"pid": victim.pid, "ended_by": ended_by}
        return {"victim_gone_s": gone_s, "whole_s": scene.ended_s - struck_s}

    def _await_end(self, scene: Scene, victim: psutil.Process, struck_s: float) -> str:
        """Wait until the victim is dead; who ended it if it was only stopped."""
        ended_by = "supervision" if self.signal == "STOP" else ""
        while is_alive(victim):
            waited_s = time.monotonic() - struck_s
            if waited_s > WHOLE_LIMIT_S:
                scene.problems.append(f"pid {victim.pid} was still there after {waited_s:.0f} s")
                victim.kill()
                ended_by = "the trial"
            elif self.kind == "constraint-child" and waited_s > _IDLE_S:
                _probe(scene)  # a child is missed when it is needed
            time.sleep(_POLL_S)
        return ended_by


def _await_whole(scene: Scene, struck_s: float) -> None:
    """Wait until everything is there and answers.

    Raises:
        RuntimeError: it takes more than twice its limit.
    """
    is_late = False
    while missing := scene.watched.missing() or ("" if _probe(scene) else "a request with a draft"):
        waited_s = time.monotonic() - struck_s
        if waited_s > WHOLE_LIMIT_S and not is_late:
            is_late = True
            scene.problems.append(f"not whole after {WHOLE_LIMIT_S:g} s: {missing}")
        if waited_s > 2 * WHOLE_LIMIT_S:
            raise RuntimeError(f"the service did not recover: {missing}")
        time.sleep(_POLL_S)


def _await_no_orphans(scene: Scene) -> None:
    deadline = time.monotonic() + _ORPHAN_LIMIT_S
    while orphans := scene.watched.orphans():
        if time.monotonic() > deadline:
            for orphan in orphans:
                scene.problems.append(f"constraint child {orphan.pid} outlived its replica")
                orphan.kill()
            return
        time.sleep(_POLL_S)


def _probe(scene: Scene) -> bool:
    """Return whether a request with a new schema got a right answer with drafted tokens."""
    scene.num_probes += 1
    case = probe_case(scene.num_probes)
    answer = ask_once(scene.base_url, case.body)
    reason = check_answer(answer, schema=case.schema)
    if answer.status in REFUSALS:
        scene.num_refused += 1
    elif reason:
        scene.problems.append(f"{case.name}: {reason}")
    return not reason and answer.num_draft_tokens > 0


@dataclass(frozen=True, kw_only=True)
class Deploy(Event):
    """`serve deploy` of a changed config; over when all replicas are as wanted, the old ones gone.

    Attributes:
        edit: changes the config that is served now.
        check: why the change is not in force, for people; "" if it is.
    """

    edit: Callable[[Config], None]
    check: Callable[[Scene], str] = field(default=lambda scene: "")

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`.

        Raises:
            RuntimeError: Serve refused the config.
            TimeoutError: it was not in force after `SETTLE_LIMIT_S`.
        """
        changed = copy.deepcopy(scene.config)
        self.edit(changed)
        before, began_s = _pids(scene), time.monotonic()
        scene.cluster.deploy(changed)
        scene.watched.wait_deployed(SETTLE_LIMIT_S)
        scene.config, scene.ended_s = changed, time.monotonic()
        after = _pids(scene)
        scene.problems += filter(None, [self.check(scene)])
        gone = {kind: len(pids - after[kind]) for kind, pids in before.items()}
        scene.notes["replaced"] = {kind: number for kind, number in gone.items() if number}
        return {"settled_s": scene.ended_s - began_s, "replaced": sum(gone.values())}


def _pids(scene: Scene) -> dict[str, set[int]]:
    return {kind: {p.pid for p in found} for kind, found in scene.watched.parts().items()}


@dataclass(frozen=True, kw_only=True)
class Flood(Event):
    """Unkind clients beside the streams; over when all that they sent is answered.

    Attributes:
        waves: what they send; none: a quiet time.
        seconds: it takes, at least.
        relentless: begin again when all are answered; else each is sent once.
    """

    waves: Sequence[Wave]
    seconds: float
    relentless: bool = False
    pause_s: tuple[float, float] = (3.0, 3.0)  # after attacks, before a time counts as quiet
    first: str = "longest_gap_s"

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`."""
        attackers = Attackers(scene.base_url, self.waves, relentless=self.relentless)
        attackers.start()
        time.sleep(self.seconds)
        attackers.stop()  # not before the last answer
        scene.ended_s = time.monotonic()
        scene.problems += attackers.complaints
        answers: Counter[str] = scene.result.extra.setdefault("answers", Counter())
        answers.update(attackers.answers)
        longest = scene.result.extra.setdefault("longest_answer_s", {})
        for name, took_s in attackers.longest_s.items():
            longest[name] = round(max(took_s, longest.get(name, 0.0)), 3)
        return {"attacks": attackers.answers.total()}


@dataclass(frozen=True, kw_only=True)
class Arrive(Event):
    """Requests that arrive at a rate, whatever becomes of those before; over when it is idle.

    Attributes:
        rate_per_s: of a Poisson process.
        seed: of it.
        askings: requests, taken as they are due.
        timing: of the measured time.
        known: texts so far; None: a request may have another text each time.
        api_key: of who asks.
        beside: what goes on meanwhile.
    """

    rate_per_s: float
    seed: str
    askings: Iterator[Asking]
    timing: Timing
    known: MutableMapping[str, Answer] | None
    api_key: str = ""
    beside: Callable[[Scene], AbstractContextManager[None]] = field(
        default=lambda scene: contextlib.nullcontext()
    )
    workload: str = "arrivals"

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`.

        Raises:
            ValueError: nothing arrived in the measured time.
        """
        timing, num_looks = self.timing, len(scene.watch.samples)
        length_s = timing.settle_s + timing.measured_s
        due = arrivals(self.rate_per_s, length_s, random.Random(self.seed))
        with self.beside(scene):
            began_s, cpu_s = time.perf_counter(), time.process_time()
            sent = asyncio.run(self._sent(scene, due, began_s))
            took_s, used_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        looks = scene.watch.samples[num_looks:] or [Counter()]
        figures = measure(sent, began_s, timing)
        failed = [one.reply for one in sent if one.reply.complaint]
        if failed:
            first = f"{failed[0].name}: {failed[0].complaint}"
            scene.problems.append(f"{len(failed)} requests failed, at first {first}")
        time.sleep(2 * scene.watch.period_s)  # the last look is up to that old
        if not scene.watch.wait(lambda look: not any(look.values()), _DRAIN_S):
            scene.problems.append(f"long after all answers were read: {scene.watch.samples[-1]}")
        return {
            "goodput_per_s": figures.pop("goodput_per_s"),
            "rate_per_s": self.rate_per_s,
            **figures,
            "load_cpu_share": used_s / took_s,
            **{f"peak_{name}": max(look[name] for look in looks) for name in looks[0]},
        }

    async def _sent(self, scene: Scene, due: Sequence[float], began_s: float) -> list[Sent]:
        url, key = scene.base_url, self.api_key
        return await send(url, due, self.askings, self.known, began_s, api_key=key)
