"""A text that is one of a list: drawn in one question."""

from __future__ import annotations

from typing import Any

import pytest

from models.protocol.errors import ContextTooLong, InvalidRequest, ServingError
from models.protocol.messages import Sampling
from router.types import Delta, Finished, GenerationRequest
from tests.fakes.pools import ScriptedPool
from tests.fakes.router import language, letters
from tests.fakes.sessions import PROMPT, Front, asked

CHOICES = ((1, 2), (1, 2, 3), (7,), (8, 4, 4, 4))
DRAWN = CHOICES[language(PROMPT) % len(CHOICES)]


def request(**changes: Any) -> GenerationRequest:
    usual = {"sampling": Sampling(num_logprobs=0), "max_tokens": 20, "choices": CHOICES}
    return asked(**(usual | changes))


async def run(wanted: GenerationRequest) -> tuple[Delta, Finished]:
    [delta], end = await Front(ScriptedPool(), max_model_len=40).deltas(wanted)
    return delta, end


async def test_one_delta_has_the_choice_and_what_all_weigh() -> None:
    delta, end = await run(request())
    assert (delta.token_ids, delta.text) == ((*DRAWN, 0), letters(DRAWN))
    assert delta.finish_reason == end.finish_reason == "stop"
    assert len(delta.choice_logprobs) == len(CHOICES)
    assert max(delta.choice_logprobs) == delta.choice_logprobs[CHOICES.index(DRAWN)]
    assert [shown.logprobs.token for shown in delta.shown] == list(DRAWN)
    assert end.num_completion_tokens == len(DRAWN) + 1
    assert end.speculation.num_draft_tokens == 0
    assert end.speculation.num_rounds == 1


@pytest.mark.parametrize(
    ("changes", "num_tokens", "text", "reason"),
    [
        ({"max_tokens": len(DRAWN)}, len(DRAWN), letters(DRAWN), "length"),
        ({"max_tokens": 1}, 1, letters(DRAWN[:1]), "length"),
        ({"stop": (letters(DRAWN[-1:]),)}, None, None, "stop"),
        ({"stop_token_ids": (DRAWN[0],)}, 1, "", "stop"),
    ],
    ids=["no room for the end", "one token", "stop string", "stop token"],
)
async def test_what_ends_other_texts_ends_this_one(
    changes: dict[str, Any], num_tokens: int | None, text: str | None, reason: str
) -> None:
    delta, end = await run(request(**changes))
    assert delta.finish_reason == reason
    if text is not None:
        assert (delta.text, end.num_completion_tokens) == (text, num_tokens)
    else:
        assert delta.text == letters(DRAWN).partition(changes["stop"][0])[0]


@pytest.mark.parametrize(
    ("changes", "error", "param"),
    [
        ({"choices": ((1,) * 38,)}, ContextTooLong, "structured_outputs.choice"),
        ({"ignore_eos": True}, InvalidRequest, "ignore_eos"),
        ({"eos_ids": ()}, InvalidRequest, "structured_outputs.choice"),
    ],
)
async def test_what_cannot_be_weighed_is_refused(
    changes: dict[str, Any], error: type[ServingError], param: str
) -> None:
    with pytest.raises(error) as caught:
        await run(request(**changes))
    assert caught.value.param == param
