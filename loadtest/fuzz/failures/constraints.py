"""Constraint replicas: a grammar host with leases, as `deployments.constraint.replica` has it."""

from __future__ import annotations

from typing import Any

from deployments.constraint.failures import failed
from deployments.link.leases import LeaseBook
from loadtest.fuzz.failures.engines import IDLE_S
from loadtest.fuzz.failures.model import Compiler
from loadtest.fuzz.failures.network import Network
from loadtest.fuzz.failures.processes import Process
from models.grammar.host import GrammarHost
from models.protocol.messages import Endpoint, GrammarClose, GrammarOpen

_TURN_S = 0.0005


class ConstraintProcess(Process):
    """A grammar host with leases, as `deployments.constraint.replica` has it."""

    def __init__(self, network: Network, address: str, name: str, epoch: int) -> None:
        super().__init__(network, address, name, epoch)
        self.leases = LeaseBook(idle_timeout_s=IDLE_S, first_message_s=IDLE_S, clock=self.clock)
        compiler: Any = Compiler()
        self._host = GrammarHost(compiler, clock=self.clock)
        self._peers: set[str] = set()

    def allows(self, key: str, endpoint: Endpoint) -> bool:
        """See `Process.allows`."""
        return key in self._peers and super().allows(key, endpoint)

    @property
    def _has_work(self) -> bool:
        return bool(self._inbox)

    def _turn(self) -> None:
        self.leases.end_idle()
        self._close_freed()
        inbox, self._inbox = self._inbox, []
        for sender, message in inbox:
            self._spent_s += _TURN_S * self.slowness
            self.leases.touch((message.session_id,))
            if isinstance(message, GrammarOpen) and message.epoch != self.grant.endpoint.epoch:
                continue
            needs_lease = isinstance(message, GrammarOpen)
            if needs_lease and message.session_id not in self.leases:
                reply = failed(message, "the session holds no lease on this replica")
            else:
                if isinstance(message, GrammarOpen):
                    self._peers |= set(message.peers)
                reply = self._host.answer(message)
            if reply is not None:
                self._outbox.append((sender, reply))

    def _close_freed(self) -> None:
        for session_id in self.leases.take_freed():
            epoch = self.grant.endpoint.epoch
            self._host.answer(GrammarClose(session_id=session_id, epoch=epoch))

    def left(self) -> list[str]:
        """See `Process.left`."""
        found = [f"{len(self.leases)} leases"] if len(self.leases) else []
        found += [f"{len(self._host)} matchers"] if len(self._host) else []
        return [f"{self.name} still holds {what}" for what in found]
