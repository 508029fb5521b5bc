"""The parent side of rewards: one child process (`reward_child`), begun when it is first asked.

Every question is answered once, on the event loop. A child that ends, or hangs as a whole, is
replaced with the next question. Its unanswered questions are answered as failed, and their senders
ask again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

from deployments.constraint.failures import failed, full
from deployments.constraint.pipe import ConstraintConfig
from deployments.constraint.process import REWARDS, ChildProcess, Death
from models.backoff import Backoff
from models.protocol.messages import ConstraintReply
from models.protocol.rewards import RewardRefused, RewardScore

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1  # after a child that ended before it was ready
_LAST_PAUSE_S = 5.0
_LOOK_S = 0.2  # between looks at a child's deadline

Reply = Callable[[ConstraintReply], None]


class RewardWorkers:
    """The rewards of one replica. Call all of it on one event loop."""

    def __init__(self, config: ConstraintConfig) -> None:
        self._config = config
        self._child: ChildProcess | None = None
        self._backoff = Backoff(_FIRST_PAUSE_S, _LAST_PAUSE_S)
        self._not_before = 0.0
        self._why = ""  # the last child ended
        self._replies: dict[tuple[str, int], Reply] = {}  # for questions that the child has
        self._watching: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.num_refused = 0  # as the client's error

    @property
    def pid(self) -> int | None:
        """The process id of the child, while there is one."""
        return None if self._child is None else self._child.pid

    def begin(self) -> None:
        """Start the child now: what it loads may take seconds."""
        if self._child is None and not self._is_stopped:
            self._child = ChildProcess(self._config, self._on_death, REWARDS)
            self._watching = asyncio.get_running_loop().create_task(self._run(self._child))

    def submit(self, question: RewardScore, reply: Reply) -> None:
        """Have a question answered; `reply` is called once, later, and must not raise.

        One that is asked again while it is being answered is answered to the newest sender.
        """
        key = (question.session_id, question.seq)
        if key in self._replies:
            self._replies[key] = reply
            return
        now = asyncio.get_running_loop().time()
        if self._is_stopped:
            self._reject(question, reply, "the service stops")
            return
        if self._child is None and now < self._not_before:
            self._reject(question, reply, f"rewards are being restarted: {self._why}")
            return
        self.begin()
        assert self._child is not None
        if self._child.num_pending >= self._config.max_queue:
            self._reject(question, reply, full(self._child.num_pending))
        else:
            self._replies[key] = reply
            self._child.send(question, partial(self._deliver, key))

    async def stop(self) -> None:
        """End the child; what it had not answered is answered as failed. Idempotent."""
        self._is_stopped = True
        if self._child is not None:
            await self._child.stop()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _run(self, child: ChildProcess) -> None:
        """Launch the child and look after its deadlines."""
        try:
            await child.launch()
        except OSError as error:  # no process or no descriptor to be had now
            reason = f"cannot be started: {error.strerror}"
            self._on_death(Death(child.take_pending(), reason, None, was_ready=False))
            return
        with contextlib.suppress(ConnectionError, ValueError):  # told by its death
            while self._child is child:
                child.check_deadlines()
                await asyncio.sleep(_LOOK_S)

    def _on_death(self, death: Death) -> None:
        self._child, self._why = None, death.reason
        if death.was_ready:
            self._backoff.reset()
        else:
            self._backoff.note_failure()
            self._not_before = asyncio.get_running_loop().time() + self._backoff.pause_s
        if not self._is_stopped:
            logger.warning("the process of rewards ended: %s", death.reason)
        for pending in death.unanswered:
            assert isinstance(pending.request, RewardScore)
            reply = self._replies.pop((pending.request.session_id, pending.request.seq))
            self._reject(pending.request, reply, f"its process ended: {death.reason}")

    def _deliver(self, key: tuple[str, int], answer: ConstraintReply) -> None:
        self.num_refused += isinstance(answer, RewardRefused) and answer.is_client_error
        self._replies.pop(key)(answer)

    def _reject(self, question: RewardScore, reply: Reply, reason: str) -> None:
        answer = failed(question, reason)
        assert answer is not None
        asyncio.get_running_loop().call_soon(reply, answer)
