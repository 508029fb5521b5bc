"""Compares a text with a grammar on a leased constraint replica. No session, no engine."""

from __future__ import annotations

import asyncio
import uuid

from models.protocol.errors import LinkLost, Unavailable, UnsupportedGrammar
from models.protocol.grammars import GrammarCheck, GrammarChecked
from models.protocol.messages import ConstraintReply, Grammar, GrammarRefused
from router.limits import SessionLimits
from router.ports import ConstraintPool
from router.remote.exchange import Patience, await_answer
from router.remote.losses import PartLosses
from router.remote.recovery import Recovery

_Answer = GrammarChecked | GrammarRefused


async def check_grammar(
    pool: ConstraintPool,
    grammar: Grammar,
    text: str,
    limits: SessionLimits,
    losses: PartLosses | None = None,
) -> GrammarChecked:
    """Check how far a text obeys a grammar. A lost replica costs the trial again, on another one.

    Raises:
        UnsupportedGrammar: the grammar is refused, or the text is too long.
        Unavailable: no replica answers.
    """
    session_id = f"check-{uuid.uuid4().hex}"
    recovery = Recovery("constraint service", limits, losses)
    patience = Patience(limits.token_gap_s, limits.token_gap_s)  # sent again, it is tried again

    async def ask() -> GrammarChecked:
        lease = await pool.lease(session_id, timeout_s=recovery.lease_timeout_s())
        epoch = lease.grant.endpoint.epoch
        message = GrammarCheck(session_id=session_id, epoch=epoch, grammar=grammar, text=text)
        try:
            lease.channel.send(message)
            answer: _Answer = await await_answer(lease.channel, message, _take, patience)
        except LinkLost as error:
            recovery.losses.note(lease.grant.replica, error)
            raise
        finally:
            await lease.release()
        if isinstance(answer, GrammarChecked):
            return answer
        raise (UnsupportedGrammar if answer.is_client_error else Unavailable)(answer.message)

    return await recovery.run(ask, lambda: asyncio.sleep(0))


def _take(reply: ConstraintReply) -> _Answer | None:
    return reply if isinstance(reply, GrammarChecked | GrammarRefused) else None
