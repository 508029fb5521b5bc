"""Decides which grammars may be served: trials in the canary, their order, and their results.

A grammar that was not served before is compiled in a process of its own first, twice at most. The
first trial is short: `_FIRST_CPU_S` and a little for each byte, in which almost every ordinary
grammar is done. A grammar that is not done gets a second trial, alone and fresh like the first,
with all of `compile_cpu_s`. If it fails that as well, it is refused for `_REFUSED_S`, with the
measured cost.

First trials run in the order of their requests, and after `_FIRST_IN_A_ROW` of them one second
trial. So a grammar waits for the short trials before it and one long one in each eight. A slow
grammar every few seconds takes no more than its own turn from others. At most `_MAX_SECOND`
grammars wait for a second trial, and none waits for longer than `compile_timeout_s`. Then the
answer is that it cannot be served now, which is not the client's error.

Knows no sessions and no processes: `send` is the way to the canary.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from deployments.constraint.pipe import ConstraintConfig, Trial, Tried
from models.grammar.limits import NOUNS
from models.grammar.loose import all_bare
from models.lru import LruDict
from models.protocol.grammars import Loosened
from models.protocol.messages import Grammar

# Ordinary schemas: 1-10 ms, and 2-3 us a byte at most where they are large, on an idle core.
_FIRST_CPU_S = 0.05
_FIRST_CPU_S_PER_BYTE = 1e-5
_LOOSENING = 4.0  # times that, where parts may have to be searched for that are not served
_FIRST_IN_A_ROW = 8
_MAX_SECOND = 8
_MAX_KNOWN = 1024  # grammars remembered as served; as many again as refused
_REFUSED_S = 300.0


@dataclass(frozen=True)
class Verdict:
    """`message` is empty where the grammar may be served, and says why not elsewhere.

    `grammar`: the one to serve where some of it may be loosened; None: as it was asked for.
    """

    message: str = ""
    is_client_error: bool = False
    grammar: Grammar | None = None  # the grammar served, if some of it is loosened


SERVED = Verdict()
Then = Callable[[Verdict], None]


@dataclass(eq=False)
class _Case:
    grammar: Grammar
    began_at: float
    thens: list[Then] = field(default_factory=list)
    is_second: bool = False


class Trials:
    """The queue to one canary.

    Args:
        config: limits.
        send: hands a trial to the canary; False when there is none now.
        clock: seconds.
    """

    def __init__(
        self,
        config: ConstraintConfig,
        send: Callable[[Trial], bool],
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._send = send
        self._clock = clock
        # The key is the digest, because a grammar may have `max_schema_bytes`.
        self._served: LruDict[bytes, tuple[Loosened, ...]] = LruDict(_MAX_KNOWN)  # loosened parts
        self._bare: LruDict[bytes, tuple[str, float]] = LruDict(_MAX_KNOWN)  # why, until when
        self._refused: LruDict[bytes, tuple[str, float]] = LruDict(_MAX_KNOWN)  # why, until when
        self._suspects: LruDict[bytes, float] = LruDict(_MAX_KNOWN)  # ended a child, until when
        self._slow: LruDict[bytes, None] = LruDict(_MAX_KNOWN)  # did not finish a first trial
        self._cases: dict[bytes, _Case] = {}  # all that have no verdict yet
        self._first: deque[bytes] = deque()
        self._second: deque[bytes] = deque()
        self._running: bytes | None = None
        self._num_in_a_row = 0

    def __len__(self) -> int:
        return len(self._cases)

    def known(self, grammar: Grammar) -> Verdict | None:
        """Return the verdict on a grammar, if no trial is needed for it."""
        digest = _digest(grammar)
        if digest in self._served:
            return _served(grammar, self._served.use(digest) or ())
        reason, until = self._refused.get(digest, ("", 0.0))
        if self._clock() < until:
            return Verdict(reason, is_client_error=True)
        return None

    def form(self, grammar: Grammar) -> Grammar:
        """Return the form in which a grammar is tried.

        If it was too costly within the last minutes, objects replace all parts that may be
        loosened.
        """
        reason, until = self._bare.get(_digest(grammar), ("", 0.0))
        return all_bare(grammar, reason) if self._clock() < until else grammar

    def submit(self, grammar: Grammar, then: Then) -> None:
        """Have a grammar tried that is not `known`; `then` is called once with the verdict."""
        digest = _digest(grammar)
        case = self._cases.get(digest)
        if case is not None:
            case.thens.append(then)
            return
        self._cases[digest] = _Case(grammar, self._clock(), [then])
        if digest in self._slow:
            self._queue_second(digest)
        else:
            self._first.append(digest)
        self.go_on()

    def go_on(self) -> None:
        """Send the next trial, if none runs and there is a canary."""
        if self._running is not None:
            return
        is_long = not self._first or self._num_in_a_row >= _FIRST_IN_A_ROW
        queue = self._second if self._second and is_long else self._first
        if not queue:
            return
        digest = queue[0]
        case = self._cases[digest]
        if self._send(Trial(grammar=case.grammar, cpu_s=self._cpu_s(case))):
            queue.popleft()
            self._running = digest
            self._num_in_a_row = 0 if case.is_second else self._num_in_a_row + 1

    def take(self, tried: Tried) -> None:
        """Take the canary's answer to the running trial."""
        digest, self._running = self._running, None
        assert digest is not None
        case = self._cases[digest]
        if tried.outcome == "costly" and not case.is_second:
            self._queue_second(digest)
        elif tried.outcome == "compiled":
            self._served[digest] = tried.dropped
            self._decide(digest, _served(case.grammar, tried.dropped))
        elif tried.outcome == "failed":
            self._decide(digest, Verdict(tried.message))
        elif tried.outcome == "costly" and self._make_bare(case.grammar, tried.message):
            del self._cases[digest]
            for then in case.thens:
                self.submit(self.form(case.grammar), then)
        else:
            reason = tried.message
            if tried.outcome == "costly":
                reason = f"the {NOUNS[case.grammar.kind]} is too complex: {reason}"
            self._refuse(digest, reason)
            self._decide(digest, Verdict(reason, is_client_error=True))
        self.go_on()

    def lose(self, reason: str) -> None:
        """End the running trial without a verdict, because the canary ended; others wait on."""
        digest, self._running = self._running, None
        if digest is not None:
            self._decide(digest, Verdict(reason))

    def end(self, reason: str) -> None:
        """Try no more grammars: all that wait are answered with `reason`."""
        self._running = None
        self._first.clear()
        self._second.clear()
        for digest in list(self._cases):
            self._decide(digest, Verdict(reason))

    def check(self) -> None:
        """Answer the grammars that have waited for too long."""
        limit_s = self._config.compile_timeout_s
        late = self._clock() - limit_s
        for queue in (self._first, self._second):
            for digest in [digest for digest in queue if self._cases[digest].began_at < late]:
                queue.remove(digest)
                message = (
                    f"others' grammars were tried for {limit_s} s, which is the limit for a "
                    "grammar to wait (compile_timeout_s)"
                )
                self._decide(digest, Verdict(message))

    def suspect(self, grammar: Grammar, reason: str) -> bool:
        """Note that a child with sessions ended within this grammar.

        Once may be chance, or caused by something else in that child: the grammar is tried again.
        The second time within minutes it is refused for minutes.

        Returns:
            Whether it is refused now.
        """
        digest = _digest(grammar)
        self._served.pop(digest, None)
        now = self._clock()
        if self._suspects.get(digest, 0.0) <= now:
            self._suspects[digest] = now + _REFUSED_S
            return False
        if self._make_bare(grammar, f"it ended the process that served it twice: {reason}"):
            return False
        noun = NOUNS[grammar.kind]
        self._refuse(
            digest,
            f"the {noun} is too complex, it ended the process that served it twice: {reason}; "
            f"its memory limit is {self._config.memory_limit_mb} MB",
        )
        return True

    def _cpu_s(self, case: _Case) -> float:
        limit_s = self._config.compile_cpu_s
        if case.is_second:
            return limit_s
        first_s = _FIRST_CPU_S + _FIRST_CPU_S_PER_BYTE * len(case.grammar.text)
        return min(first_s * (_LOOSENING if case.grammar.loose else 1.0), limit_s)

    def _make_bare(self, grammar: Grammar, reason: str) -> bool:
        """Have a grammar tried with objects for all that may be loosened; False: it has no more."""
        if all_bare(grammar, "").text == grammar.text:
            return False
        self._bare[_digest(grammar)] = (reason, self._clock() + _REFUSED_S)
        return True

    def _queue_second(self, digest: bytes) -> None:
        self._slow[digest] = None
        if len(self._second) >= _MAX_SECOND:
            message = f"{len(self._second)} slow grammars wait for a trial, which is the limit"
            self._decide(digest, Verdict(message))
            return
        self._cases[digest].is_second = True
        self._second.append(digest)

    def _refuse(self, digest: bytes, reason: str) -> None:
        self._refused[digest] = (reason, self._clock() + _REFUSED_S)

    def _decide(self, digest: bytes, verdict: Verdict) -> None:
        for then in self._cases.pop(digest).thens:
            then(verdict)


def _served(grammar: Grammar, dropped: tuple[Loosened, ...]) -> Verdict:
    if not grammar.loose:
        return SERVED
    return Verdict(grammar=msgspec.structs.replace(grammar, dropped=dropped, is_settled=True))


def _digest(grammar: Grammar) -> bytes:
    grammar = msgspec.structs.replace(grammar, dropped=(), is_settled=False)  # as it came
    return hashlib.sha256(repr(msgspec.structs.astuple(grammar)).encode()).digest()
