"""Each sampling parameter through router and real engines: drafted for, it gives the same text.

Tokens, text and logprobs are compared bit for bit between k = 0 and k = 3, greedy and seeded, and
each parameter must have done what it is for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from loadtest.report.prompts import demo_prompts
from models.protocol.messages import TokenLogprobs
from models.protocol.packed_logprobs import unpack
from router.types import Delta, Finished, ShownToken
from tests.harness.local import DEMO, LocalService, demo_tokenizer, local_service, make_request

NUM_TOKENS = 24
EOS_IDS = demo_tokenizer().eos_ids
PROMPT = demo_prompts(1, seed=21, kind="story")[0]
GREEDY = {"temperature": 0.0}
SEEDED = {"temperature": 1.0, "seed": 11}
BOTH = pytest.mark.parametrize("drawn", [GREEDY, SEEDED], ids=["greedy", "seeded"])


@dataclass
class Answer:
    """All that one request gave."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    shown: list[ShownToken] = field(default_factory=list)
    of_prompt: list[tuple[TokenLogprobs, ...]] = field(default_factory=list)
    finish_reason: str = ""
    num_accepted: int = 0

    @property
    def told(self) -> tuple[object, ...]:
        """What must not depend on drafts."""
        return (self.ids, self.text, self.shown, self.of_prompt, self.finish_reason)


@asynccontextmanager
async def pair() -> AsyncIterator[LocalService]:
    async with local_service(DEMO / "target", DEMO / "draft", max_model_len=256) as service:
        yield service


async def ask(service: LocalService, k: int, sampling: dict[str, Any], **fields: Any) -> Answer:
    request = make_request(
        f"k{k}", PROMPT, k=k, max_tokens=fields.pop("max_tokens", NUM_TOKENS), eos_ids=EOS_IDS
    )
    terms = msgspec.structs.replace(request.sampling, **sampling)
    request = replace(request, sampling=terms, **fields)
    answer = Answer()
    async for item in service.generator.generate(request, demo_tokenizer().detokenizer()):
        if isinstance(item, Finished):
            answer.finish_reason = item.finish_reason
            answer.num_accepted = item.speculation.num_accepted_draft_tokens
            assert item.num_completion_tokens == len(answer.ids)
            continue
        assert isinstance(item, Delta)
        answer.ids += item.token_ids
        answer.text += item.text
        answer.shown += item.shown
        assert all(token.offset < len(answer.text) for token in item.shown)
        if item.prompt_logprobs is not None:
            answer.of_prompt.append(tuple(map(unpack, item.prompt_logprobs)))
    return answer


async def same(service: LocalService, sampling: dict[str, Any], **fields: Any) -> Answer:
    """The answer, which must be the same drafted for and not."""
    plain = await ask(service, 0, sampling, **fields)
    drafted = await ask(service, 3, sampling, **fields)
    assert drafted.told == plain.told
    # The draft model is not there yet when a short text is done.
    assert drafted.num_accepted > 0 or len(drafted.ids) < 16, "nothing was drafted that stood"
    return drafted


def holds(ids: Sequence[int], word: Sequence[int]) -> bool:
    return any(tuple(ids[i : i + len(word)]) == tuple(word) for i in range(len(ids)))


@BOTH
async def test_logit_bias(drawn: dict[str, Any]) -> None:
    async with pair() as service:
        free = await same(service, drawn)
        unwanted = free.ids[4]
        away = await same(service, drawn | {"logit_bias": ((unwanted, -100.0),)})
        assert unwanted not in away.ids
        always = await same(service, drawn | {"logit_bias": ((77, 100.0),)})
        assert always.ids == [77] * NUM_TOKENS


@BOTH
async def test_min_tokens(drawn: dict[str, Any]) -> None:
    eager = drawn | {"logit_bias": ((EOS_IDS[0], 100.0),)}
    async with pair() as service:
        assert (await ask(service, 3, eager)).ids == [EOS_IDS[0]]
        held = await same(service, eager | {"min_tokens": 9})
    assert len(held.ids) == 10
    assert held.ids[9] == EOS_IDS[0]
    assert held.finish_reason == "stop"


@BOTH
async def test_bad_words(drawn: dict[str, Any]) -> None:
    async with pair() as service:
        free = await same(service, drawn)
        words = (tuple(free.ids[3:4]), tuple(free.ids[8:10]), tuple(free.ids[12:15]))
        clean = await same(service, drawn | {"bad_words": words})
    assert all(holds(free.ids, word) for word in words)
    assert not any(holds(clean.ids, word) for word in words)


@BOTH
async def test_stop_token_ids_and_ignore_eos(drawn: dict[str, Any]) -> None:
    async with pair() as service:
        free = await same(service, drawn, ignore_eos=True)
        first = next(i for i in range(16, NUM_TOKENS) if free.ids.index(free.ids[i]) == i)
        stop = free.ids[first]
        cut = await same(service, drawn, ignore_eos=True, stop_token_ids=(stop,))
        assert cut.ids == free.ids[: first + 1]
        assert cut.text == demo_tokenizer().decode(free.ids[:first])
        assert cut.finish_reason == "stop"
        kept = await same(
            service, drawn, ignore_eos=True, stop_token_ids=(stop,), includes_stop=True
        )
        assert kept.text == demo_tokenizer().decode(free.ids[: first + 1])
        later = await same(
            service, drawn | {"min_tokens": first + 1}, ignore_eos=True, stop_token_ids=(stop,)
        )
        assert stop not in later.ids[: first + 1]


@BOTH
async def test_stop_strings_wait_for_min_tokens(drawn: dict[str, Any]) -> None:
    async with pair() as service:
        free = await same(service, drawn)
        cut = await same(service, drawn | {"num_logprobs": 1}, stop=("e",))
        assert free.text.startswith(cut.text + "e")
        assert "e" not in cut.text
        assert len(cut.shown) <= len(cut.ids) < NUM_TOKENS
        kept = await same(service, drawn, stop=("e",), includes_stop=True)
        assert kept.text == cut.text + "e"
        later = await same(service, drawn | {"min_tokens": 8}, stop=("e",))
        assert len(later.ids) > 8
        assert later.text.startswith(demo_tokenizer().decode(free.ids[:8]))


@BOTH
async def test_logprobs_and_prompt_logprobs(drawn: dict[str, Any]) -> None:
    wanted = {"num_logprobs": 3, "num_prompt_logprobs": 2}
    async with pair() as service:
        answer = await same(service, drawn | wanted)
        assert answer.ids == (await ask(service, 3, drawn)).ids
    shown_ids = [token.logprobs.token for token in answer.shown]
    assert shown_ids == [token_id for token_id in answer.ids if token_id not in EOS_IDS]
    if drawn is GREEDY:
        assert all(token.logprobs.rank == 1 for token in answer.shown)
    [of_prompt] = answer.of_prompt
    assert [entry.token for entry in of_prompt] == PROMPT[1:]
    assert all(len(entry.top) == 2 for entry in of_prompt)


@pytest.mark.slow
@BOTH
async def test_all_of_them_together(drawn: dict[str, Any]) -> None:
    async with pair() as service:
        free = await same(service, drawn)
        everything = drawn | {
            "logit_bias": ((free.ids[0], -5.0), (EOS_IDS[0], 4.0)),
            "min_tokens": 6,
            "bad_words": (tuple(free.ids[5:7]), (free.ids[9],)),
            "presence_penalty": 0.4,
            "frequency_penalty": 0.2,
            "repetition_penalty": 1.1,
            "top_p": 0.95,
            "num_logprobs": 2,
        }
        answer = await same(service, everything, stop=("ing", "."), max_tokens=60)
    assert len(answer.ids) > 6
