"""The `Scorer` over the protocol: a session's questions to its reward, on a leased replica.

A question says all that its answer depends on, so a lost replica costs the question again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from models.protocol.errors import InternalError, LinkLost, Unavailable, UnsupportedReward
from models.protocol.messages import ConstraintReply
from models.protocol.rewards import RewardRefused, RewardScore, RewardScored, TextScore
from router.limits import SessionLimits
from router.ports import ConstraintLease, ConstraintPool
from router.remote.exchange import Patience, await_answer
from router.remote.losses import PartLosses
from router.remote.recovery import Recovery

_Answer = RewardScored | RewardRefused


class RemoteScorer:
    """Implements `ports.Scorer`.

    Args:
        pool: of constraint replicas, which have the rewards.
        session_id: of the session; its lease has a name of its own.
        reward: JSON text of the reward.
        limits: of waits.
        losses: of the constraint service.
    """

    def __init__(
        self,
        pool: ConstraintPool,
        session_id: str,
        reward: str,
        limits: SessionLimits,
        losses: PartLosses | None = None,
    ) -> None:
        self._pool = pool
        self._serves, self._session_id = session_id, f"{session_id}-reward"
        self._reward = reward
        self._patience = Patience(limits.token_gap_s, limits.resend_interval_s)
        self._recovery = Recovery("constraint service", limits, losses)
        self._lease: ConstraintLease | None = None
        self._seq = 0
        self._lock = asyncio.Lock()

    async def score(
        self, text: str, lookaheads: Sequence[str], ends: Sequence[bool]
    ) -> list[TextScore]:
        """See `ports.Scorer.score`."""
        async with self._lock:
            return await self._recovery.run(
                lambda: self._score(text, list(lookaheads), list(ends)), self.close
            )

    async def close(self) -> None:
        """See `ports.Scorer.close`."""
        if self._lease is not None:
            await self._lease.release()
            self._lease = None  # only now: a task cancelled before this leaves it to be released

    async def _score(self, text: str, lookaheads: list[str], ends: list[bool]) -> list[TextScore]:
        if self._lease is None:
            timeout_s = self._recovery.lease_timeout_s()
            self._lease = await self._pool.lease(self._session_id, timeout_s=timeout_s)
            self._recovery.losses.note_lease(self._serves, self._lease.grant.replica)
        self._seq += 1
        question = RewardScore(
            session_id=self._session_id,
            epoch=self._lease.grant.endpoint.epoch,
            seq=self._seq,
            reward=self._reward,
            text=text,
            lookaheads=lookaheads,
            ends=ends,
        )
        self._lease.channel.send(question)
        answer = await self._answer(self._lease, question)
        if isinstance(answer, RewardRefused):
            if answer.is_client_error:
                message = f"lookahead.reward: {answer.message}"
                raise UnsupportedReward(message, param="lookahead.reward")
            raise Unavailable(answer.message)
        if len(answer.scores) != len(lookaheads):
            raise InternalError(f"{len(lookaheads)} texts got {len(answer.scores)} scores")
        return answer.scores

    async def _answer(self, lease: ConstraintLease, question: RewardScore) -> _Answer:
        try:
            return await await_answer(lease.channel, question, self._take, self._patience)
        except LinkLost as error:
            self._recovery.losses.note(lease.grant.replica, error)
            raise

    def _take(self, reply: ConstraintReply) -> _Answer | None:
        """Return the answer to the newest question; others are late."""
        if isinstance(reply, RewardScored | RewardRefused) and reply.seq == self._seq:
            return reply
        return None
