"""Faults of replicas: deaths, silence, hangs, slow nodes, clocks that jump.

A fault strikes after so many messages to its kind of replica, or at a time. Either is drawn before
the schedule begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from deployments.link.frames import SILENCE_TIMEOUT_S
from loadtest.fuzz.failures.cluster import Deployment
from loadtest.fuzz.failures.network import Network
from loadtest.fuzz.failures.processes import Process

_LAST_FAULT_S = 2.0
_LAST_MESSAGE = 50
_NEVER_S = 1e6
_MANY = 100  # what says nothing for a while, and is there all the same, may be lost again and again


class Faults:
    """Draws the faults of one schedule and lets them strike.

    Args:
        network: of the schedule.
        deployments: by kind.
        silence: closes links of all routers with a process that is silent.
    """

    def __init__(
        self,
        network: Network,
        deployments: Mapping[str, Deployment],
        silence: Callable[[Process], None],
    ) -> None:
        self._network, self._rng = network, network.rng
        self._deployments = deployments
        self._silence = silence
        self._points: dict[tuple[str, int], Callable[[Deployment, Process], None]] = {}
        self._num_messages: Counter[str] = Counter()
        for deployment in deployments.values():
            deployment.on_message = self._on_message
            delays_s = ((0.0, 0.5), (0.0, 0.5), (0.0, 0.5), (2.0, 30.0), (_NEVER_S, _NEVER_S))
            deployment.delays_s = self._rng.choice(delays_s)
        for _ in range(self._rng.choice((0, 1, 1, 2, 3, 5))):
            self._draw()

    def _draw(self) -> None:
        rng = self._rng
        kinds = (self._die, self._die, self._stop, self._hang, self._pause, self._slow, self._jump)
        kind, fault = rng.choice(("target", "target", "draft", "constraint")), rng.choice(kinds)
        if rng.random() < 0.7:
            self._points[kind, rng.randint(1, _LAST_MESSAGE)] = fault
        else:
            self._network.later(rng.uniform(0.0, _LAST_FAULT_S), self._befall, kind, fault)

    def _befall(self, kind: str, fault: Callable[[Deployment, Process], None]) -> None:
        deployment = self._deployments[kind]
        if deployment.alive:
            fault(deployment, self._rng.choice(deployment.alive))

    def _on_message(self, deployment: Deployment, process: Process) -> None:
        self._num_messages[deployment.kind] += 1
        point = (deployment.kind, self._num_messages[deployment.kind])
        fault = self._points.pop(point, None)
        if fault is not None:
            fault(deployment, process)

    def _die(self, deployment: Deployment, process: Process) -> None:
        self._network.counts["deaths"] += 1
        deployment.kill(process)

    def _stop(self, deployment: Deployment, process: Process) -> None:
        """Stop all of a process: links notice, and then Serve replaces it."""
        self._note("stops", process)
        process.stop()
        self._network.later(SILENCE_TIMEOUT_S, self._say_silent, process)
        self._network.later(self._rng.uniform(12.0, 30.0), deployment.kill, process)

    def _hang(self, deployment: Deployment, process: Process) -> None:
        """Hang its work for ever; its link and its leases still answer."""
        self._note("hangs", process)
        process.stop()
        process.answers_leases = True

    def _pause(self, deployment: Deployment, process: Process) -> None:
        self._note("pauses", process)
        process.stop()
        self._network.later(self._rng.choice((0.1, 0.6, 1.5, 3.0)), process.go_on)

    def _say_silent(self, process: Process) -> None:
        if process.is_alive and process.is_stopped:
            self._silence(process)

    def _slow(self, deployment: Deployment, process: Process) -> None:
        self._note("slows down", process)
        process.slowness = self._rng.choice((3.0, 10.0, 60.0))
        self._network.later(self._rng.uniform(0.1, 3.0), setattr, process, "slowness", 1.0)

    def _jump(self, deployment: Deployment, process: Process) -> None:
        """Have the clock of a node jump ahead: a monotonic one never goes back."""
        self._note("has its clock jump", process)
        process.jump(self._rng.choice((0.3, 5.0, 40.0)))

    def _note(self, what: str, process: Process) -> None:
        self._network.counts[what] += 1
        self._network.num_losses[process.address.split("-")[0]] += _MANY
        self._network.note(f"{process.name}: {what}")
