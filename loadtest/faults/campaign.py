"""One fault after another under load: strike, wait until the service is whole, keep the books.

A fault is SIGKILL or SIGSTOP to one process. Whole again means that every kind has as many
processes as before, none stopped, the victim among the dead. Every replica is RUNNING, and a
request that needs all of them was answered. A request that is refused with 429 or 503 meanwhile is
counted apart. It is no failure, because the service promised nothing, and no success. No process
watches over a stopped Serve controller: streams and leases do without it, but nothing is replaced.
There the campaign plays the operator and kills it.
"""

from __future__ import annotations

import logging
import random
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

import psutil

from loadtest.client.answers import check_answer
from loadtest.client.cases import probe_case
from loadtest.client.http import ask_once
from loadtest.client.streams import REFUSALS, FaultLoad
from loadtest.service.parts import EDGE_KINDS, FaultService, is_alive

logger = logging.getLogger("faults")

SIGNALS = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP}
WHOLE_LIMIT_S = 120.0
OPERATOR_AFTER_S = 15.0  # how long a stopped controller is left so
_IDLE_S = 1.0  # a stopped part is probed after this, if nobody else may need it
_LONG_WAIT_S = 2.0  # longer ones are listed in the log
_LULL_S = 3.0  # a fault strikes within this of the load being steady
_STEADY_LIMIT_S = 60.0
_ORPHAN_LIMIT_S = 15.0
_POLL_S = 0.1


@dataclass(frozen=True)
class Fault:
    """The fault and the kind of process that it strikes."""

    round: int
    kind: str
    signal: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a fault. Times are in seconds since it struck."""

    fault: Fault
    pid: int
    pause_free_s: float  # longest wait for a chunk of any free stream
    pause_constrained_s: float
    victim_gone_s: float  # until the process was dead
    whole_s: float  # until the service was whole
    ended_by: str = ""  # the part that ended a stopped process
    num_refused: int = 0  # requests that were answered 429 or 503
    problems: list[str] = field(default_factory=list)

    @property
    def is_expected(self) -> bool:
        """True if clients had to notice, because the process of their own connection was hit."""
        return self.fault.kind in EDGE_KINDS

    def line(self) -> str:
        """Return the result as a line for people."""
        ended = f" (ended by {self.ended_by} after {self.victim_gone_s:.1f} s)"
        verdict = f"{len(self.problems)} FAILURES" if self.problems else "ok"
        verdict = f"{self.num_refused} refused; {verdict}" if self.num_refused else verdict
        return (
            f"{self.fault.kind} {self.fault.signal} pid {self.pid}: "
            f"pause {self.pause_free_s:.1f} s free, {self.pause_constrained_s:.1f} s constrained; "
            f"whole after {self.whole_s:.1f} s{ended if self.ended_by else ''}: {verdict}"
        )


class Campaign:
    """Strikes a running service under a running load."""

    def __init__(self, service: FaultService, load: FaultLoad, rng: random.Random) -> None:
        self._service = service
        self._load = load
        self._rng = rng
        self._num_probes = 0
        self._problems: list[str] = []  # problems with the fault in hand
        self._num_refused = 0  # beside it

    def run(self, faults: Sequence[Fault]) -> Iterator[Outcome]:
        """Strike each fault in turn.

        Raises:
            RuntimeError: streams stand still, or the service does not become whole again.
        """
        for fault in faults:
            if not self._load.wait_steady(_STEADY_LIMIT_S):
                raise RuntimeError(f"before {fault}: some stream got nothing, and nothing was done")
            time.sleep(self._rng.uniform(0.0, _LULL_S))
            yield self._strike(fault)

    def _strike(self, fault: Fault) -> Outcome:
        victim = self._rng.choice(self._service.parts()[fault.kind])
        self._problems, self._num_refused = [], 0
        self._take_failures()
        struck_s = time.monotonic()
        logger.info("strike: %s, pid %d", fault, victim.pid)
        victim.send_signal(SIGNALS[fault.signal])
        ended_by = self._await_end(fault, victim, struck_s)
        gone_s = time.monotonic() - struck_s
        self._await_whole(struck_s)
        whole_s = time.monotonic() - struck_s
        self._await_no_orphans()
        free_s, constrained_s = self._load.pauses(struck_s, struck_s + whole_s)
        self._take_failures()
        self._log_waits(struck_s, struck_s + whole_s)
        for problem in self._problems:
            logger.error("%s: %s", fault, problem)
        return Outcome(
            fault=fault,
            pid=victim.pid,
            pause_free_s=free_s,
            pause_constrained_s=constrained_s,
            victim_gone_s=gone_s,
            whole_s=whole_s,
            ended_by=ended_by,
            num_refused=self._num_refused,
            problems=self._problems,
        )

    def _take_failures(self) -> None:
        failures = self._load.take_failures()
        self._num_refused += sum(failure.is_refusal for failure in failures)
        self._problems += [str(failure) for failure in failures if not failure.is_refusal]

    def _log_waits(self, struck_s: float, whole_s: float) -> None:
        for case, began_s, ended_s in self._load.waits(struck_s, whole_s):
            if ended_s - began_s > _LONG_WAIT_S:
                began, ended = began_s - struck_s, ended_s - struck_s
                logger.info("  %s waited from %.1f to %.1f s", case.name, began, ended)

    def _await_end(self, fault: Fault, victim: psutil.Process, struck_s: float) -> str:
        """Wait until the victim is dead; who ended it if it was only stopped."""
        ended_by = "supervision" if fault.signal == "STOP" else ""
        while is_alive(victim):
            waited_s = time.monotonic() - struck_s
            if fault.kind == "controller" and waited_s > OPERATOR_AFTER_S:
                victim.kill()
                ended_by = "the operator"
            elif waited_s > WHOLE_LIMIT_S:
                self._problems.append(f"pid {victim.pid} was still there after {waited_s:.0f} s")
                victim.kill()
                ended_by = "the campaign"
            elif fault.kind == "constraint-child" and waited_s > _IDLE_S:
                self._probe()  # a child is missed when it is needed
            time.sleep(_POLL_S)
        return ended_by

    def _await_whole(self, struck_s: float) -> None:
        """Wait until everything is there and answers."""
        is_late = False
        while missing := self._missing():
            waited_s = time.monotonic() - struck_s
            if waited_s > WHOLE_LIMIT_S and not is_late:
                is_late = True
                self._problems.append(f"not whole after {WHOLE_LIMIT_S:g} s: {missing}")
            if waited_s > 2 * WHOLE_LIMIT_S:
                raise RuntimeError(f"the service did not recover: {missing}")
            time.sleep(_POLL_S)

    def _missing(self) -> str:
        return self._service.missing() or ("" if self._probe() else "a request with a draft")

    def _await_no_orphans(self) -> None:
        deadline = time.monotonic() + _ORPHAN_LIMIT_S
        while orphans := self._service.orphans():
            if time.monotonic() > deadline:
                for orphan in orphans:
                    self._problems.append(f"constraint child {orphan.pid} outlived its replica")
                    orphan.kill()
                return
            time.sleep(_POLL_S)

    def _probe(self) -> bool:
        """Return whether a request with a new schema got a right answer with drafted tokens."""
        self._num_probes += 1
        case = probe_case(self._num_probes)
        answer = ask_once(self._service.base_url, case.body)
        reason = check_answer(answer, schema=case.schema)
        if answer.status in REFUSALS:
            self._num_refused += 1
        elif reason:
            self._problems.append(f"{case.name}: {reason}")
        return not reason and answer.num_draft_tokens > 0


def plan(
    num_rounds: int, kinds: Sequence[str], signals: Sequence[str], rng: random.Random
) -> list[Fault]:
    """Return every kind with every signal once a round, in an order of the round's own."""
    faults = []
    for number in range(num_rounds):
        in_round = [Fault(number, kind, name) for kind in kinds for name in signals]
        rng.shuffle(in_round)
        faults += in_round
    return faults


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One line of the table: all faults of a kind and signal. Seconds."""

    kind: str
    signal: str
    num_faults: int
    pause_free_median_s: float
    pause_free_max_s: float
    pause_constrained_median_s: float
    pause_constrained_max_s: float
    whole_median_s: float
    whole_max_s: float
    num_refused: int
    num_problems: int


def summarise(outcomes: Sequence[Outcome]) -> list[Summary]:
    """Return a line per kind and signal, in order of appearance."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.fault.kind, outcome.fault.signal), []).append(outcome)
    return [_summary(kind, name, group) for (kind, name), group in sorted(groups.items())]


def _summary(kind: str, name: str, group: list[Outcome]) -> Summary:
    free = [outcome.pause_free_s for outcome in group]
    constrained = [outcome.pause_constrained_s for outcome in group]
    whole = [outcome.whole_s for outcome in group]
    return Summary(
        kind=kind,
        signal=name,
        num_faults=len(group),
        pause_free_median_s=statistics.median(free),
        pause_free_max_s=max(free),
        pause_constrained_median_s=statistics.median(constrained),
        pause_constrained_max_s=max(constrained),
        whole_median_s=statistics.median(whole),
        whole_max_s=max(whole),
        num_refused=sum(outcome.num_refused for outcome in group),
        num_problems=sum(len(outcome.problems) for outcome in group),
    )


def table(summaries: Sequence[Summary]) -> str:
    """Show the summaries for people; pauses as median / longest."""
    lines = [
        f"{'process':20} {'signal':6} {'faults':>6} {'pause free, s':>15} "
        f"{'constrained, s':>15} {'whole after, s':>15} {'refused':>7} {'failures':>8}"
    ]
    for line in summaries:
        free = f"{line.pause_free_median_s:.1f} / {line.pause_free_max_s:.1f}"
        held = f"{line.pause_constrained_median_s:.1f} / {line.pause_constrained_max_s:.1f}"
        whole = f"{line.whole_median_s:.1f} / {line.whole_max_s:.1f}"
        lines.append(
            f"{line.kind:20} {line.signal:6} {line.num_faults:6} {free:>15} {held:>15} "
            f"{whole:>15} {line.num_refused:7} {line.num_problems:8}"
        )
    return "\n".join(lines)


def as_json(outcome: Outcome) -> dict[str, object]:
    """Return an outcome as one flat record."""
    record = asdict(outcome)
    return {**record.pop("fault"), **record}
