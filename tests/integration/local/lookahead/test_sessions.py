"""What look-aheads share, and what becomes of them when something is lost; a tiny pair."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from models.protocol.errors import InvalidRequest, Unavailable
from models.protocol.messages import Verdict
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits
from router.lookahead.loop import run_lookahead
from router.lookahead.session import open_lookahead
from router.rollout_places import RolloutPlaces
from router.types import Delta, GenerationRequest, LookaheadSettings
from tests.cases.lookahead.compared import TERMS
from tests.cases.lookahead.lossy import check_texts_survive
from tests.cases.tiny_llama import write_tiny_llama
from tests.harness.local import IdDetokenizer, LocalService, local_service, make_request
from tests.harness.rewards.workers import grammar_host, reward_workers

BLOCK = 16
PROMPT = [(7 * place) % 90 + 5 for place in range(3 * BLOCK + 5)]
REWARD = {"kind": "concepts", "concepts": ["11", "12", "13", "14"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("target"), vocab_size=100)


def serving(model: Path, **options: Any) -> Any:
    """The model drafts for itself, so every draft stands."""
    terms: dict[str, Any] = {
        "grammar_host": grammar_host(),
        "rewards": reward_workers(),
        "block_size": BLOCK,
    }
    return local_service(model, model, dtype="float32", **terms | options)


def text_of(ids: Sequence[int]) -> str:
    return "".join(f"{token_id} " for token_id in ids)


def steered(request_id: str, method: str = "cdlh", reward: Any = REWARD, **terms: Any) -> Any:
    max_tokens, prompt = terms.pop("max_tokens", 8), terms.pop("prompt", PROMPT)
    request = make_request(request_id, prompt, max_tokens=max_tokens, seed=4)
    options = TERMS | {"method": method} | terms
    settings = LookaheadSettings(reward=json.dumps(reward), text_of=text_of, **options)
    return replace(request, lookahead=settings)


class Watched:
    """A pool whose sessions' replies are counted, by kind, and what was in the passes of each."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.replies: Counter[str] = Counter()
        self.num_beside: dict[str, list[int]] = {}  # sessions in passes of a session

    async def lease(self, session_id: str, *, timeout_s: float) -> Any:
        lease = await self._inner.lease(session_id, timeout_s=timeout_s)
        receive = lease.channel.receive

        async def counted() -> Any:
            reply = await receive()
            self.replies[type(reply).__name__] += 1
            if isinstance(reply, Verdict):
                beside = self.num_beside.setdefault(session_id, [])
                beside.append(reply.timing.num_sessions - 1)
            return reply

        lease.channel.receive = counted
        return lease


async def test_roll_outs_take_the_prompt_by_reference_and_share_passes(model: Path) -> None:
    request: GenerationRequest = steered("r")
    async with serving(model) as service:
        watched = Watched(service.target_pool)
        services = replace(service.services, target_pool=watched)
        detokenizer = IdDetokenizer()
        async with open_lookahead(request, services, detokenizer) as session:
            async for _ in run_lookahead(session):
                pass
            stats = await session.stats()
        assert [branch.num_cached_tokens for branch in session.rollouts] == [3 * BLOCK] * 4
        # Eight steps of four roll-outs, which the end of the text cuts; one for the candidates.
        assert stats.num_target_passes == 1 + 4 * (4 + 4 + 4 + 4 + 3 + 2 + 1 + 0)
        assert stats.num_rollouts == 8 * 4
        load = service.target.load()
        assert load.num_passes < 0.5 * stats.num_target_passes, "roll-outs ran one after another"
        # Read once: the prompt, its end by each roll-out, and later what another of them wrote.
        assert load.num_prefill_rows == len(PROMPT) - 1 + 4 * (len(PROMPT) - 3 * BLOCK) + 6 * 3
        assert watched.replies["NeedPrefix"] == 0, "a roll-out did not go back by itself"
        assert await service.freed()


@pytest.mark.parametrize(("method", "reward_threshold"), [("cdlh", 0.5), ("cdsl", 0.0)])
async def test_sessions_share_passes_and_draft_steps(
    model: Path, method: str, reward_threshold: float
) -> None:
    """Eight texts take hardly more passes than one: every draft of this pair stands."""

    async def passes(num_sessions: int) -> tuple[int, int, int]:
        asked = [
            steered(f"r{index}", method, reward_threshold=reward_threshold, max_tokens=16)
            for index in range(num_sessions)
        ]
        async with serving(model) as service:
            answers = await asyncio.gather(*(service.generate(one) for one in asked))
            assert service.draft is not None
            stats = [finished.lookahead for _, finished, _ in answers]
            assert len({one.num_target_passes for one in stats if one is not None}) == 1
            assert stats[0] is not None
            drafted = service.draft.load().num_passes
            return service.target.load().num_passes, drafted, stats[0].num_target_passes

    alone, drafted_alone, steps = await passes(1)
    together, drafted_together, same_steps = await passes(8)
    assert same_steps == steps
    assert together < 0.4 * 8 * alone
    if method == "cdsl":
        assert drafted_together < 0.4 * 8 * drafted_alone
    else:
        assert drafted_together == drafted_alone == 0


@pytest.mark.parametrize("num_beyond", [0, 5, BLOCK - 1])
@pytest.mark.parametrize("commit", ["token", "rollout"])
async def test_a_roll_out_reads_the_end_of_a_block_and_what_others_wrote(
    model: Path, num_beyond: int, commit: str
) -> None:
    prompt = PROMPT[: 2 * BLOCK] + [9] * num_beyond
    async with serving(model) as service:
        request = steered("r", prompt=prompt, max_tokens=20, commit=commit, candidates=3)
        _, finished, _ = await service.generate(request)
        assert finished.lookahead is not None
        num_steps = finished.lookahead.states["lookahead"]
        assert num_steps == (4 if commit == "rollout" else 20)
        # At first each roll-out reads what is beyond the last whole block of the prompt. At each
        # later step those that lost read what the text became: a token, or a roll-out and its
        # candidate. Where a candidate was the last token of a block, that is read again.
        at_first = len(prompt) - 1 + 3 * max(num_beyond, 1)
        most_each = 5 if commit == "rollout" else 1
        num_filled = -(-20 // BLOCK)
        most_later = 3 * (most_each * (num_steps - 1) + BLOCK * num_filled)
        assert at_first - 3 <= service.target.load().num_prefill_rows <= at_first + most_later


async def test_roll_outs_leave_an_ordinary_stream_its_pace(model: Path) -> None:
    """Rows of look-aheads are told to the streams beside them, and no more than these put up with
    are in their passes; who goes when changes no text."""

    async def beside(places: RolloutPlaces) -> tuple[list[int], list[list[int]]]:
        async with serving(model) as service:
            watched = Watched(service.target_pool)
            services = replace(service.services, target_pool=watched, rollouts=places)
            generator = SpeculativeGenerator(services, max_model_len=1024)
            plain = make_request("p", PROMPT[:20], max_tokens=900, enabled=False)
            async for _ in generator.generate(steered("w", max_tokens=1), IdDetokenizer()):
                pass  # the process of rewards takes seconds to begin
            stream = generator.generate(plain, IdDetokenizer())
            for _ in range(100):  # its passes were measured
                await anext(stream)

            async def rest() -> None:
                async for _ in stream:
                    pass

            async def answer(request: GenerationRequest) -> list[int]:
                found: list[int] = []
                async for item in generator.generate(request, IdDetokenizer()):
                    found += item.token_ids if isinstance(item, Delta) else []
                return found

            steered_ones = [steered(f"r{index}", max_tokens=6) for index in range(3)]
            answering = asyncio.gather(*(answer(one) for one in steered_ones))
            texts, _ = await asyncio.gather(answering, rest())
            return watched.num_beside["p"], texts

    free, expected = await beside(RolloutPlaces(32, max_slowdown=1e9))
    assert max(free) >= 8, "three look-aheads of four roll-outs ran one after another"
    kept, texts = await beside(RolloutPlaces(32, max_slowdown=1e-9))  # nothing is put up with
    assert max(kept) == 1
    assert texts == expected


async def test_roll_outs_beyond_the_routers_places_wait(model: Path) -> None:
    async with serving(model) as service:
        services = replace(service.services, rollouts=RolloutPlaces(4))
        generator = SpeculativeGenerator(services, max_model_len=256)
        most = 0

        async def answer(number: int) -> None:
            nonlocal most
            async for _ in generator.generate(steered(f"r{number}"), IdDetokenizer()):
                most = max(most, service.target.load().num_sessions)

        await asyncio.gather(*(answer(number) for number in range(3)))
        assert most == 1 + 4
        with pytest.raises(InvalidRequest, match="at most 4 are allowed here"):
            await anext(generator.generate(steered("s", candidates=5), IdDetokenizer()))
        assert await service.freed()


async def test_sessions_beside_it_have_their_own_text(model: Path) -> None:
    plain = make_request("p", PROMPT[:20], max_tokens=40, temperature=0.8, seed=9)
    async with serving(model) as service:
        alone, _, _ = await service.generate(plain)
        beside = replace(plain, request_id="q")
        (ids, _, _), *steered_ones = await asyncio.gather(
            service.generate(beside), *(service.generate(steered(f"r{i}")) for i in range(3))
        )
        assert ids == alone
        assert len({tuple(one[0]) for one in steered_ones}) == 1
        assert await service.freed()


async def test_a_draft_model_that_dies_ends_no_text(model: Path) -> None:
    request = steered("r", "cdsl", max_tokens=12, reward_threshold=0.0)
    limits = SessionLimits(queue_wait_s=0.5, rejoin_interval_s=0.05)
    async with serving(model, limits=limits) as service:
        deltas = []
        generator = service.generator.generate(request, IdDetokenizer())
        async for item in generator:
            deltas.append(item)
            if len(deltas) == 1:
                assert service.draft_pool is not None
                service.draft_pool.fail()
        finished = deltas[-1]
        assert finished.lookahead is not None
        assert finished.lookahead.states["accepted"] >= 1
        assert finished.lookahead.states["no_draft"] > 1
        assert finished.num_completion_tokens == 12


async def test_a_target_that_dies_ends_the_text_with_an_error(model: Path) -> None:
    limits = SessionLimits(failover_s=0.5, rejoin_interval_s=0.05)
    async with serving(model, limits=limits) as service:
        generator = service.generator.generate(steered("r", max_tokens=60), IdDetokenizer())
        await anext(generator)
        service.target_pool.fail()
        with pytest.raises(Unavailable, match="target"):
            await anext(generator)


async def test_a_client_that_leaves_frees_all_sessions(model: Path) -> None:
    async with serving(model) as service:
        generator = service.generator.generate(steered("r", max_tokens=60), IdDetokenizer())
        await anext(generator)
        assert service.target.load().num_sessions == 5
        await generator.aclose()
        assert await service.freed()


async def test_a_bad_reward_touches_no_engine(model: Path) -> None:
    async with serving(model) as service:
        with pytest.raises(InvalidRequest, match=r"lookahead\.reward: kind"):
            await service.generate(steered("r", reward={"kind": "none"}))
        assert service.target.load().num_passes == 0


async def test_a_draft_model_may_be_named(model: Path) -> None:
    async def drafted(service: LocalService, name: str | None) -> int:
        request = steered(f"r-{name}", "cdsl")
        named = replace(request, speculation=replace(request.speculation, drafter=name))
        _, finished, _ = await service.generate(named)
        assert finished.lookahead is not None
        return finished.lookahead.num_draft_steps

    async with serving(model, further_drafts={"tiny": model}) as service:
        assert await drafted(service, "tiny") == await drafted(service, None) > 0
        with pytest.raises(InvalidRequest, match="draft_model, tiny"):
            await drafted(service, "other")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", ["cdlh", "cdsl"])
async def test_lossy_links_change_no_text(model: Path, method: str) -> None:
    asked = [steered(f"r{i}", method, reward_threshold=i / 8) for i in range(4)]
    await check_texts_survive(partial(serving, model), asked)
