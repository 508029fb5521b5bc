"""Texts that are compared with grammars: in the canary, one at a time, within limits.

A comparison is a trial with a text. It runs in a fork that the system ends at its limit of CPU time
and memory. So neither a hostile grammar nor a hostile text reaches a child with sessions. At most
one is with the canary, so that it delays the trials of others by one comparison at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from deployments.constraint.failures import full, refused
from deployments.constraint.pipe import ConstraintConfig, Trial, Tried
from deployments.constraint.process import Reply
from models.grammar.limits import MAX_CHECKED_BYTES
from models.protocol.grammars import GrammarCheck

_MAX_WAITING = 8
_CPU_S = 0.25
_CPU_S_PER_BYTE = 5e-5  # per byte of grammar and text; a text's token under a JSON schema: 10 us


class Checks:
    """The comparisons that wait for the canary.

    Args:
        config: limits.
        send: hands a trial to the canary, which answers it once; False when there is none now.
    """

    def __init__(self, config: ConstraintConfig, send: Callable[[Trial, Reply], bool]) -> None:
        self._config = config
        self._send = send
        self._waiting: deque[tuple[GrammarCheck, Reply]] = deque()
        self._running: tuple[GrammarCheck, Reply] | None = None

    def submit(self, message: GrammarCheck, reply: Reply) -> None:
        """Compare; `reply` is called once."""
        num_bytes = len(message.text.encode("utf-8", "surrogatepass"))
        if num_bytes > MAX_CHECKED_BYTES:
            reason = f"the text has {num_bytes} bytes, the limit is {MAX_CHECKED_BYTES}"
            reply(refused(message, reason, is_client_error=True))
        elif len(self._waiting) >= _MAX_WAITING:
            reply(refused(message, full(len(self._waiting))))
        else:
            self._waiting.append((message, reply))
            self._go_on()

    def lose(self, reason: str) -> None:
        """Answer all that wait for the canary, because it is gone."""
        waiting = [*([self._running] if self._running else []), *self._waiting]
        self._running = None
        self._waiting.clear()
        for message, reply in waiting:
            reply(refused(message, reason))

    def _go_on(self) -> None:
        if self._running is not None or not self._waiting:
            return
        message, reply = self._running = self._waiting.popleft()
        num_bytes = len(message.text) + len(message.grammar.text)
        cpu_s = min(_CPU_S + _CPU_S_PER_BYTE * num_bytes, self._config.compile_cpu_s)
        trial = Trial(grammar=message.grammar, cpu_s=cpu_s, text=message.text)
        if not self._send(trial, partial(self._take, message, reply)):
            self._running = None
            reply(refused(message, "the process that tries grammars is being replaced"))

    def _take(self, message: GrammarCheck, reply: Reply, tried: Tried) -> None:
        self._running = None
        found = tried.compared
        if found is None:
            reply(refused(message, tried.message, is_client_error=tried.outcome != "failed"))
        else:
            reply(msgspec.structs.replace(found, session_id=message.session_id))
        self._go_on()
