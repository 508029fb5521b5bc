"""Look-aheads under grammars: one matcher for all of them, and what becomes of them without it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.grammar.host import GrammarHost
from models.protocol.errors import MaskUnavailable, Unavailable, UnsupportedGrammar
from models.protocol.messages import ConstraintReply, ConstraintRequest, Grammar, MaskRequest
from router.limits import SessionLimits
from router.types import Finished, GenerationRequest, LookaheadSettings
from tests.cases.lookahead.compared import TERMS
from tests.cases.lookahead.letters import EOS_IDS, VOCAB_SIZE, letters_compiler, text_of
from tests.cases.lookahead.lossy import check_texts_survive
from tests.cases.lookahead.pair import write_pair
from tests.harness.local import IdDetokenizer, LocalService, local_service, make_request
from tests.harness.rewards.workers import reward_workers

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "maxLength": 5},
        "n": {"type": "integer", "minimum": 10, "maximum": 99},
    },
    "required": ["a", "n"],
    "additionalProperties": False,
}
GRAMMAR = Grammar(kind="json_schema", text=json.dumps(SCHEMA))
REWARD = {"kind": "words", "required": ["cab", "12"]}
METHODS = ("cdlh", "cdsl")


class Host:
    """A grammar host whose messages are counted, and which may forget its sessions.

    `forgets_at`: before these mask requests, by number; None: before all of them.
    """

    def __init__(self, forgets_at: frozenset[int] | None = frozenset()) -> None:
        self.inner = GrammarHost(letters_compiler())
        self.forgets_at = forgets_at
        self.counts: Counter[str] = Counter()
        self.matchers: set[str] = set()

    def handle(self, requests: list[ConstraintRequest]) -> list[ConstraintReply]:
        for request in requests:
            name = type(request).__name__
            self.counts[name] += 1
            if isinstance(request, MaskRequest):
                self.matchers.add(request.session_id)
                if self.forgets_at is None or self.counts[name] in self.forgets_at:
                    self.inner.forget()
        return self.inner.handle(requests)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"), VOCAB_SIZE)


@asynccontextmanager
async def serving(
    pair: tuple[Path, Path], host: Host, **options: Any
) -> AsyncIterator[LocalService]:
    terms: dict[str, Any] = {"rewards": reward_workers(), "block_size": 16} | options
    async with local_service(*pair, dtype="float32", grammar_host=host, **terms) as service:
        yield service


def steered(request_id: str, method: str, **terms: Any) -> GenerationRequest:
    request = make_request(
        request_id,
        [(7 * place) % 50 + 5 for place in range(20)],
        max_tokens=32,
        temperature=0.8,
        seed=3,
        eos_ids=EOS_IDS,
        grammar=terms.pop("grammar", GRAMMAR),
        verification="rejection" if method == "cdsl" else "coupled",
    )
    options = TERMS | {"method": method, "candidates": 3, "rollout": "sampled"} | terms
    settings = LookaheadSettings(reward=json.dumps(REWARD), text_of=text_of, **options)
    return replace(request, lookahead=settings)


async def answer(service: LocalService, method: str) -> tuple[list[int], Finished]:
    ids, finished, _ = await service.generate(steered("r", method))
    json.loads(text_of(ids))
    return ids, finished


@pytest.mark.parametrize("method", METHODS)
async def test_a_text_and_its_roll_outs_have_one_matcher(
    pair: tuple[Path, Path], method: str
) -> None:
    host = Host()
    async with serving(pair, host) as service:
        generator = service.generator.generate(steered("r", method), IdDetokenizer())
        num_deltas = 0
        async for _ in generator:
            num_deltas += 1
            assert len(host.inner) <= 1
        assert await service.freed()
    assert host.matchers == {"r"}
    assert len(host.inner) == 0
    # Opened, and once more to let the engines in; a commit for each round, none for a roll-out.
    assert host.counts["GrammarOpen"] == 2
    assert host.counts["GrammarCommit"] == num_deltas - 1  # the last item is the end
    assert host.counts["MaskRequest"] > host.counts["GrammarCommit"]


@pytest.mark.parametrize("method", METHODS)
async def test_masks_that_are_lost_change_no_text(pair: tuple[Path, Path], method: str) -> None:
    async with serving(pair, Host()) as service:
        expected, whole = await answer(service, method)
    host = Host(frozenset((3, 9, 40, 41, 75, 110)))
    async with serving(pair, host) as service:
        ids, finished = await answer(service, method)
        assert await service.freed()
    assert ids == expected
    assert host.counts["GrammarOpen"] > 2 + 3
    assert whole.lookahead is not None
    assert finished.lookahead is not None
    assert finished.lookahead.states == whole.lookahead.states


async def test_masks_that_are_lost_each_time_end_the_text(pair: tuple[Path, Path]) -> None:
    async with serving(pair, Host(None)) as service:
        with pytest.raises(MaskUnavailable, match="7 times in a row"):
            await answer(service, "cdlh")
        assert await service.freed()


async def test_a_constraint_service_that_dies_ends_the_text(pair: tuple[Path, Path]) -> None:
    limits = SessionLimits(failover_s=0.3, rejoin_interval_s=0.05)
    async with serving(pair, Host(), limits=limits) as service:
        generator = service.generator.generate(steered("r", "cdlh"), IdDetokenizer())
        await anext(generator)
        pool: Any = service.services.constraint_pool
        pool.fail()
        with pytest.raises(Unavailable, match="constraint service lost"):
            await anext(generator)
        assert await service.freed()


async def test_a_client_that_leaves_frees_the_matcher(pair: tuple[Path, Path]) -> None:
    host = Host()
    async with serving(pair, host) as service:
        generator = service.generator.generate(steered("r", "cdsl"), IdDetokenizer())
        await anext(generator)
        assert len(host.inner) == 1
        await generator.aclose()
        assert await service.freed()
    assert len(host.inner) == 0


async def test_a_bad_grammar_touches_no_engine_and_no_reward(pair: tuple[Path, Path]) -> None:
    bad = Grammar(kind="regex", text="a(?=b)")
    async with serving(pair, Host()) as service:
        with pytest.raises(UnsupportedGrammar):
            await service.generate(steered("r", "cdsl", grammar=bad))
        assert service.target.load().num_passes == 0


async def test_the_only_token_allowed_needs_no_look(pair: tuple[Path, Path]) -> None:
    """Text that must be, then a choice of two, then one of two tokens that end a text."""
    grammar = Grammar(kind="regex", text="dede[fg]")
    async with serving(pair, Host()) as service:
        ids, finished, _ = await service.generate(steered("r", "cdlh", grammar=grammar))
    assert text_of(ids) in ("dedef", "dedeg")
    stats = finished.lookahead
    assert stats is not None
    assert stats.states == {"forced": 1, "lookahead": 2}
    assert stats.num_rollouts == 2 + 2
    assert stats.num_reward_calls == 1 + 2 + 1  # before, of the candidates, of the whole


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", METHODS)
async def test_lossy_links_change_no_masked_text(pair: tuple[Path, Path], method: str) -> None:
    asked = [steered(f"r{i}", method, reward_threshold=i / 8) for i in range(4)]
    await check_texts_survive(lambda **options: serving(pair, Host(), **options), asked)
