"""The parent side of one constraint replica: children, routing, deadlines, respawn, blame.

A session lives in the child that its id hashes to. A new grammar is first tried by the canary, in a
process of its own (`trials`). The trial has limits on CPU time and memory. So a child with sessions
compiles only grammars that were compiled before and whose cost is known. Messages of a session wait
while its grammar is tried, so they keep their order.

When a child ends, whatever it had not answered is answered as failed. Its successor does not know
its sessions; the callers open and replay them, since the parent keeps no tokens. A grammar within
which children ended twice is refused by name, as the client's error, for some minutes.

Every request is answered exactly once, on the event loop. That holds when the queue is full and
when the service stops. A close and a commit that came too late are never answered. Knows no sockets
to the outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeVar

import msgspec

from deployments.config.schema import GrammarServiceConfig
from deployments.constraint.checks import Checks
from deployments.constraint.failures import failed, full, log_death, refused
from deployments.constraint.pipe import ChildRequest, ConstraintConfig, Trial
from deployments.constraint.process import CANARY, SESSIONS, ChildProcess, Death, Reply
from deployments.constraint.trials import Trials, Verdict
from models.backoff import Backoff
from models.grammar.limits import SchemaLimits, check_size
from models.grammar.loose import fitted
from models.lru import LruDict
from models.protocol.errors import UnsupportedGrammar
from models.protocol.grammars import GrammarCheck
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    Grammar,
    GrammarClose,
    GrammarCommit,
    GrammarOpen,
    GrammarReady,
    GrammarRefused,
)

_Asking = GrammarOpen | GrammarCheck
_Message = TypeVar("_Message", bound=GrammarOpen | GrammarCheck)
_FIRST_BACKOFF_S = 0.1  # doubles with each child that ended before it was ready
_LAST_BACKOFF_S = 5.0


def children_config(
    service: GrammarServiceConfig, *, tokenizer_path: str, vocab_size: int, eos_ids: tuple[int, ...]
) -> ConstraintConfig:
    """Return the config for the children of a replica with these settings."""
    shared = {field.name for field in fields(ConstraintConfig)} & set(service.model_dump())
    return ConstraintConfig(
        tokenizer_path=tokenizer_path,
        vocab_size=vocab_size,
        eos_ids=eos_ids,
        **service.model_dump(include=shared),
    )


@dataclass
class ConstraintStats:
    """Counters since the start, and the queue now."""

    queue_length: int = 0  # requests without an answer, all children
    opens: int = 0  # sessions opened
    loosened: int = 0  # opened ones with a grammar some of which is not enforced
    cache_hits: int = 0  # opened ones with a grammar that was compiled before
    compile_ms_total: float = 0.0
    refusals: int = 0  # grammars refused as the client's error
    restarts: int = 0  # children that ended and were replaced
    rejected: int = 0  # requests answered "queue full" or "restarting"


class ConstraintWorkers:
    """Child processes that hold the grammars, with one `submit` for all of them.

    Call `start`, `submit` and `stop` on one event loop.
    """

    def __init__(self, config: ConstraintConfig) -> None:
        self._config = config
        self._schema_limits = SchemaLimits(max_schema_bytes=config.max_schema_bytes)
        self._canary = config.num_children  # its index: after those that hold sessions
        self._children: list[ChildProcess | None] = [None] * (config.num_children + 1)
        self._backoffs = [Backoff(_FIRST_BACKOFF_S, _LAST_BACKOFF_S) for _ in self._children]
        # The key is the session, newest last; there is room for more than all children can hold at
        # once.
        self._grammars: LruDict[str, Grammar] = LruDict(
            2 * config.num_children * config.max_sessions
        )
        self._trials = Trials(config, self._send_trial, time.monotonic)
        self._checks = Checks(config, self._send_check)
        self._waiting: dict[
            str, list[tuple[ConstraintRequest, Reply]]
        ] = {}  # for a trial, by session
        self._stats = ConstraintStats()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    @property
    def stats(self) -> ConstraintStats:
        """Live counters; `queue_length` is brought up to date by this call."""
        num_pending = sum(child.num_pending for child in self._children[:-1] if child)
        self._stats.queue_length = num_pending + len(self._trials)
        return self._stats

    @property
    def num_running(self) -> int:
        """The number of children that run now: `num_children`, and the canary, when all is well."""
        return sum(child is not None for child in self._children)

    @property
    def pids(self) -> list[int]:
        """Process ids of the running children: those with sessions in order, the canary last."""
        return [child.pid for child in self._children if child and child.pid]

    async def start(self) -> None:
        """Start all children and wait until they are ready.

        Raises:
            ValueError: the tokenizer cannot be read or does not fit the config.
            ConnectionError: a child ended, or was not ready within `start_timeout_s`.
        """
        self._spawn_task(self._watch())
        children = [self._new_child(i) for i in range(len(self._children))]
        try:
            for child in children:
                await child.launch()
            for child in children:
                await child.ready()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End all children; unanswered requests are answered as failed. Idempotent."""
        self._stopping.set()
        # A replacement that is being launched must exist before it can be ended.
        await asyncio.gather(*self._tasks)
        for child in self._children:
            if child is not None:
                await child.stop()
        self._trials.end("the service stops")
        self._checks.lose("the service stops")

    def submit(self, message: ConstraintRequest, reply: Reply) -> None:
        """Hand a message to its session's child; `reply` is called later, on the event loop.

        Several submits of one tick share a frame. `reply` must not raise.
        """
        waiting = self._waiting.get(message.session_id)
        if waiting is not None:
            if len(waiting) < self._config.max_queue:
                waiting.append((message, reply))
            else:
                self._reject(message, reply, full(len(waiting)))
            return
        if not isinstance(message, _Asking):
            self._forward(message, reply)
            return
        message = self._in_form(message)
        try:
            check_size(message.grammar, self._schema_limits)
        except UnsupportedGrammar as error:
            self._refuse(message, reply, Verdict(error.message, is_client_error=True))
            return
        verdict = self._trials.known(message.grammar)
        if isinstance(message, GrammarCheck) and (verdict is None or not verdict.message):
            self._checks.submit(message, partial(self._soon, reply))
        elif verdict is not None and not verdict.message:
            self._forward(_with_grammar(message, verdict.grammar), reply)
        elif verdict is not None:
            self._refuse(message, reply, verdict)
        elif self._stopping.is_set():
            self._reject(message, reply, "the service stops")
        elif len(self._waiting) >= self._config.max_queue:
            self._reject(message, reply, full(len(self._waiting)))
        else:
            self._waiting[message.session_id] = []
            then = partial(self._soon, self._open_or_refuse, message, reply)
            self._trials.submit(message.grammar, then)

    # --- requests -----------------------------------------------------------------------------

    def _in_form(self, message: _Asking) -> _Asking:
        """Return the message with its grammar in the form of its trial, if it may be loosened."""
        if not message.grammar.loose:
            return message
        return _with_grammar(
            message, self._trials.form(fitted(message.grammar, self._schema_limits))
        )

    def _index(self, session_id: str) -> int:
        return zlib.crc32(session_id.encode()) % self._config.num_children

    def _forward(self, message: ConstraintRequest, reply: Reply) -> None:
        """Send a message to the child that holds its session."""
        self._remember(message)
        self._send(self._index(message.session_id), message, partial(self._deliver, reply))

    def _send(self, index: int, message: ConstraintRequest, reply: Reply) -> None:
        child = self._children[index]
        if child is None or self._stopping.is_set():
            self._reject(message, reply, "the constraint child is being replaced")
        elif child.num_pending >= self._config.max_queue:
            self._reject(message, reply, full(child.num_pending))
        else:
            child.send(message, reply)

    def _send_trial(self, trial: Trial) -> bool:
        canary = self._children[-1]
        if canary is None:
            return False
        canary.send(trial, self._trials.take)
        return True

    def _send_check(self, trial: Trial, reply: Reply) -> bool:
        canary = self._children[-1]
        if canary is None or self._stopping.is_set():
            return False
        canary.send(trial, reply)
        return True

    def _open_or_refuse(self, message: GrammarOpen, reply: Reply, verdict: Verdict) -> None:
        """Open the session after the trial, or refuse it; then submit what waited for that."""
        if verdict.message:
            self._refuse(message, reply, verdict)
        else:
            self._forward(_with_grammar(message, verdict.grammar), reply)
        for waiting in self._waiting.pop(message.session_id):
            self.submit(*waiting)

    def _refuse(self, message: _Asking, reply: Reply, verdict: Verdict) -> None:
        if verdict.is_client_error:
            self._stats.refusals += 1
        else:
            self._stats.rejected += 1
        refusal = refused(message, verdict.message, is_client_error=verdict.is_client_error)
        self._soon(reply, refusal)

    def _reject(self, message: ConstraintRequest, reply: Reply, reason: str) -> None:
        self._stats.rejected += 1
        answer = failed(message, reason)
        if answer is not None:
            self._soon(reply, answer)

    def _soon(self, call: Callable[..., None], *arguments: object) -> None:
        asyncio.get_running_loop().call_soon(call, *arguments)

    def _remember(self, message: ConstraintRequest) -> None:
        """Keep each session's grammar, for the case that a mask or a commit ends the child."""
        if isinstance(message, GrammarClose):
            self._grammars.pop(message.session_id, None)
        elif isinstance(message, GrammarOpen):
            self._grammars[message.session_id] = message.grammar

    def _deliver(self, reply: Reply, answer: ConstraintReply) -> None:
        stats = self._stats
        if isinstance(answer, GrammarReady):
            stats.opens += 1
            stats.cache_hits += answer.compile_ms == 0.0
            stats.loosened += bool(answer.loosened)
            stats.compile_ms_total += answer.compile_ms
        elif isinstance(answer, GrammarRefused):
            stats.refusals += answer.is_client_error
        reply(answer)

    # --- children -----------------------------------------------------------------------------

    def _new_child(self, index: int) -> ChildProcess:
        module = CANARY if index == self._canary else SESSIONS
        child = ChildProcess(self._config, partial(self._on_death, index), module)
        self._children[index] = child
        return child

    def _on_death(self, index: int, death: Death) -> None:
        self._lose(index, death)
        if not self._stopping.is_set():
            self._stats.restarts += 1
            log_death(index, death)
            if death.was_ready:
                self._backoffs[index].reset()
            self._spawn_task(self._replace(index, wait=not death.was_ready))

    def _lose(self, index: int, death: Death) -> None:
        self._children[index] = None
        if index == self._canary:
            self._trials.lose(f"the process that tries grammars ended: {death.reason}")
            self._checks.lose(f"the process that tries grammars ended: {death.reason}")
        else:
            self._lose_sessions(index, death)

    def _lose_sessions(self, index: int, death: Death) -> None:
        harmful = self._grammar_of(death.culprit)
        if harmful is not None and not self._trials.suspect(harmful, death.reason):
            harmful = None
        for session_id in [s for s in self._grammars if self._index(s) == index]:
            del self._grammars[session_id]
        for pending in death.unanswered:
            request = pending.request
            assert not isinstance(request, Trial)
            answer = self._answer_death(request, death, harmful)
            if answer is not None:
                pending.reply(answer)

    def _answer_death(
        self, request: ConstraintRequest, death: Death, harmful: Grammar | None
    ) -> ConstraintReply | None:
        if harmful is not None:
            is_open = isinstance(request, GrammarOpen) and request.grammar == harmful
            is_commit = isinstance(request, GrammarCommit) and request is death.culprit
            verdict = self._trials.known(harmful)
            if (is_open or is_commit) and verdict is not None:
                return refused(request, verdict.message, is_client_error=True)
        return failed(request, f"the constraint child ended: {death.reason}")

    def _grammar_of(self, request: ChildRequest | None) -> Grammar | None:
        """Return the grammar during which a child ended, if one may be the cause."""
        if request is None:
            return None
        if isinstance(request, GrammarOpen | Trial):
            return request.grammar
        return self._grammars.get(request.session_id)

    async def _replace(self, index: int, *, wait: bool) -> None:
        """Launch a successor; after a child that never became ready, wait longer each time."""
        while not self._stopping.is_set():
            if wait:
                self._backoffs[index].note_failure()
                if await self._stops_within(self._backoffs[index].pause_s):
                    return
            child = self._new_child(index)
            try:
                await child.launch()
            except OSError as error:  # no process or no descriptor to be had now
                reason = f"cannot be started: {error.strerror}"
                self._lose(index, Death(child.take_pending(), reason, None, was_ready=False))
                wait = True
            else:
                self._trials.go_on()  # those that have waited for a canary
                return

    async def _stops_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()

    async def _watch(self) -> None:
        """Look at every child's deadline, often enough to overshoot by a tenth."""
        config = self._config
        pause_s = min(config.mask_timeout_s, config.compile_timeout_s, 2.0) / 10
        while not self._stopping.is_set():
            for child in self._children:
                if child is not None:
                    child.check_deadlines()
            self._trials.check()
            await self._stops_within(pause_s)

    def _spawn_task(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _with_grammar(message: _Message, grammar: Grammar | None) -> _Message:
    return message if grammar is None else msgspec.structs.replace(message, grammar=grammar)
