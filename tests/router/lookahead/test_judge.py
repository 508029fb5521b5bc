from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from models.protocol.messages import Sampling
from models.protocol.rewards import TextScore
from models.protocol.token_sequence import TokenSequence
from router.lookahead.judge import Judge
from router.types import GenerationRequest, LookaheadSettings

EOS = 0


class RecordingScorer:
    """Keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str], list[bool]]] = []

    async def score(
        self, text: str, lookaheads: Sequence[str], ends: Sequence[bool]
    ) -> list[TextScore]:
        self.asked.append((text, list(lookaheads), list(ends)))
        return [TextScore(0.5, False, True) for _ in lookaheads]

    async def close(self) -> None:
        pass


def text_of(ids: Sequence[int]) -> str:
    """A token is a byte; the end of a text has none."""
    return bytes(token for token in ids if token != EOS).decode(errors="replace")


def judging(written: str | bytes, **fields: Any) -> tuple[Judge, RecordingScorer]:
    settings = LookaheadSettings(method="cdlh", reward="{}", text_of=text_of)
    request = GenerationRequest(
        request_id="r",
        prompt_ids=(1,),
        sampling=Sampling(),
        eos_ids=(EOS,),
        max_tokens=fields.pop("max_tokens", 40),
        lookahead=settings,
        **fields,
    )
    scorer = RecordingScorer()
    raw = written.encode() if isinstance(written, str) else written
    return Judge(scorer, request, settings, TokenSequence(raw)), scorer


async def test_a_reward_sees_what_is_written_and_what_may_follow() -> None:
    judge, scorer = judging("one ")
    await judge.scores([b"two", b"three", [*b"two", EOS]])
    assert scorer.asked == [("one ", ["two", "three", "two"], [False, False, True])]
    assert judge.num_calls == 1


async def test_the_last_token_there_is_room_for_is_an_end() -> None:
    judge, scorer = judging("one ", max_tokens=7)
    await judge.scores([b"tw", b"two"])
    assert scorer.asked[0][2] == [False, True]


@pytest.mark.parametrize(("kept", "shown"), [(False, "tw"), (True, "two.")])
async def test_a_text_ends_at_its_stop_string(kept: bool, shown: str) -> None:
    judge, scorer = judging("one ", stop=("o.", "wholly else"), includes_stop=kept)
    await judge.scores([b"two. And more", b"two"])
    assert scorer.asked == [("one ", [shown, "two"], [True, False])]


async def test_a_stop_string_may_have_begun_in_what_is_written() -> None:
    judge, scorer = judging("one #", stop=("##",))
    await judge.scores([b"#!", b"."])
    assert scorer.asked == [("", ["one ", "one #."], [True, False])]


async def test_a_character_that_is_cut_is_not_shown_yet() -> None:
    whole = "caf\u00e9".encode()
    judge, scorer = judging(whole[:-1])
    await judge.scores([whole[-1:], b"", whole[-1:] + whole[3:4]])
    assert scorer.asked == [("caf", ["\u00e9", "", "\u00e9"], [False, False, False])]


async def test_the_whole_text_is_judged_without_its_end() -> None:
    judge, scorer = judging(b"done\x00")
    score = await judge.final_score()
    assert scorer.asked == [("done", [""], [True])]
    assert score.value == 0.5
    kept, told = judging("done.", stop=(".",))
    await kept.final_score()
    assert told.asked == [("done", [""], [True])]
