"""A target engine spoken to alone: what it is asked for, and the text of its answers."""

from __future__ import annotations

from models.protocol.messages import EngineReply, Sampling, Verdict
from tests.fakes.engines import random_prompt

PROMPT = random_prompt(1, 12)
GREEDY = Sampling(temperature=0)


def text_of(replies: list[EngineReply], draft: list[int] | None = None) -> list[int]:
    text: list[int] = []
    for reply in replies:
        assert isinstance(reply, Verdict)
        text += (draft or [])[: reply.num_accepted]
        text.append(reply.token)
    return text
