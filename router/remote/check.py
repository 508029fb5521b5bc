"""Compares a text with a grammar on a leased constraint replica. No session, no engine."""

from __future__ import annotations

import uuid

from models.protocol.errors import Unavailable, UnsupportedGrammar
from models.protocol.grammars import GrammarCheck, GrammarChecked
from models.protocol.messages import (
    ConstraintReply,
    Grammar,
    GrammarRefused,
)
from router.limits import SessionLimits
from router.ports import ConstraintPool
from router.remote.exchange import Patience, await_answer

_Answer = GrammarChecked | GrammarRefused


async def check_grammar(
    pool: ConstraintPool, grammar: Grammar, text: str, limits: SessionLimits
) -> GrammarChecked:
    """Check how far a text obeys a grammar.

    Raises:
        UnsupportedGrammar: the grammar is refused, or the text is too long.
        Unavailable: no replica answers.
    """
    session_id = f"check-{uuid.uuid4().hex}"
    lease = await pool.lease(session_id, timeout_s=limits.rejoin_interval_s)
    try:
        message = GrammarCheck(
            session_id=session_id,
            epoch=lease.grant.endpoint.epoch,
            grammar=grammar,
            text=text,
        )
        lease.channel.send(message)
        patience = Patience(limits.token_gap_s, limits.token_gap_s)
        answer: _Answer = await await_answer(lease.channel, message, _take, patience)
    finally:
        await lease.release()
    if isinstance(answer, GrammarChecked):
        return answer
    if answer.is_client_error:
        raise UnsupportedGrammar(answer.message)
    raise Unavailable(answer.message)


def _take(reply: ConstraintReply) -> _Answer | None:
    return reply if isinstance(reply, GrammarChecked | GrammarRefused) else None
