"""A target engine spoken to alone: its messages, what it answers, and its end."""

from __future__ import annotations

from typing import Any

from models.engine.target import TargetEngine
from models.protocol.messages import EngineReply, Open, Sampling, Verdict
from tests.cases.messages import verifying
from tests.fakes.engines import EOS_ID, EPOCH, random_prompt

PROMPT = random_prompt(1, 12)
GREEDY = Sampling(temperature=0)


def submit_open(engine: TargetEngine, session_id: str = "s", **changes: Any) -> None:
    terms: dict[str, Any] = {"sampling": GREEDY, "eos_ids": [EOS_ID], "prompt_len": len(PROMPT)}
    engine.submit(Open(session_id=session_id, epoch=EPOCH, **(terms | changes)), "r")


def submit_verify(
    engine: TargetEngine,
    seq: int,
    ids: list[int],
    draft: list[int],
    *,
    run_on: int = 0,
    base_len: int = 0,
    session_id: str = "s",
    reply_to: object = "r",
) -> None:
    engine.submit(
        verifying(session_id, seq, ids, draft, base_len=base_len, run_on=run_on), reply_to
    )


def text_of(replies: list[EngineReply], draft: list[int] | None = None) -> list[int]:
    text: list[int] = []
    for reply in replies:
        assert isinstance(reply, Verdict)
        text += (draft or [])[: reply.num_accepted]
        text.append(reply.token)
    return text


def close_all(engine: TargetEngine) -> None:
    for session_id in engine.idle_s():
        engine.close(session_id)
    pool = engine.runner.pool
    pool.check([])
    assert pool.num_free == pool.num_blocks
