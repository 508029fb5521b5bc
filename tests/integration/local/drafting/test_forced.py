"""Forced text as drafts with real engines and grammars: fewer passes, and never another text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadtest.report.prompts import demo_prompts as held_out_prompts
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    Grammar,
)
from router.limits import SpeculationLimits
from router.types import Finished, GenerationRequest
from tests.cases.constraint import CONSTRAINTS
from tests.harness.local import (
    DEMO,
    NO_LOOKUP,
    IdDetokenizer,
    LocalService,
    demo_grammar_host,
    demo_tokenizer,
    local_service,
    make_request,
)

ON = NO_LOOKUP
OFF = NO_LOOKUP.model_copy(update={"forced_text": False})
NAMES = ("long keys", "schema-nested", "schema-const", "schema-enum", "choice-many", "regex-quoted")
LONG_KEYS = Grammar(
    kind="json_schema",
    text=json.dumps(
        {
            "type": "object",
            "properties": {
                "customer_full_name": {"type": "string"},
                "shipping_method": {"enum": ["standard delivery", "express delivery"]},
                "requested_quantity": {"type": "integer"},
                "currency_of_the_order": {"const": "US dollars"},
            },
            "required": [
                *("customer_full_name", "shipping_method"),
                *("requested_quantity", "currency_of_the_order"),
            ],
            "additionalProperties": False,
        }
    ),
)
GRAMMARS = {**CONSTRAINTS, "long keys": LONG_KEYS}


def request_for(name: str, temperature: float, **wanted: object) -> GenerationRequest:
    return make_request(
        f"{name}-{temperature}-{wanted}",
        held_out_prompts(1, seed=17, kind="extraction")[0],
        temperature=temperature,
        max_tokens=96,
        eos_ids=list(demo_tokenizer().eos_ids),
        grammar=GRAMMARS[name],
        **{"seed": 5, **wanted},  # type: ignore[arg-type]
    )


async def answer(
    service: LocalService, name: str, temperature: float, **wanted: object
) -> tuple[list[int], Finished]:
    ids, finished, _ = await service.generate(request_for(name, temperature, **wanted))
    return ids, finished


async def answers(
    service: LocalService, temperature: float, names: Sequence[str] = NAMES, **wanted: object
) -> dict[str, tuple[list[int], Finished]]:
    """All at once: a pass has drafts of several texts."""
    got = await asyncio.gather(*(answer(service, name, temperature, **wanted) for name in names))
    return dict(zip(names, got, strict=True))


def texts(got: dict[str, tuple[list[int], Finished]]) -> dict[str, list[int]]:
    return {name: ids for name, (ids, _) in got.items()}


async def plain_texts(temperature: float) -> dict[str, list[int]]:
    async with local_service(
        DEMO / "target", None, grammar_host=demo_grammar_host(), speculation=OFF
    ) as service:
        return texts(await answers(service, temperature, k=0))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "seeded"])
async def test_forced_drafts_change_no_text_whoever_else_drafts(temperature: float) -> None:
    expected = await plain_texts(temperature)
    host = demo_grammar_host()
    async with local_service(DEMO / "target", None, grammar_host=host, speculation=ON) as service:
        alone = await answers(service, temperature)
        assert texts(alone) == expected
        assert await service.freed()
    async with local_service(
        DEMO / "target", DEMO / "draft", grammar_host=host, speculation=ON
    ) as service:
        for k in (0, 1, 4, None):
            got = await answers(service, temperature, k=k)
            assert texts(got) == expected, k
            drafted_by = got["long keys"][1].speculation.num_drafted_by
            # Adaptive k may go on alone through it: one control round is 33 of its 51 tokens.
            if k is not None:
                assert ("forced" in drafted_by) == (k != 0)
        off = await answers(service, temperature, enabled=False)
        assert texts(off) == expected
        assert not off["long keys"][1].speculation.num_drafted_by
    everything = SpeculationLimits()
    async with local_service(
        DEMO / "target", DEMO / "draft", grammar_host=host, speculation=everything
    ) as service:
        assert texts(await answers(service, temperature)) == expected


@pytest.mark.slow
async def test_without_a_draft_model_forced_text_saves_most_passes() -> None:
    num_rounds = {}
    for limits in (OFF, ON):
        async with local_service(
            DEMO / "target", None, grammar_host=demo_grammar_host(), speculation=limits
        ) as service:
            ids, finished = await answer(service, "long keys", 0.0)
            stats = finished.speculation
            num_rounds[limits.forced_text] = stats.num_rounds
    assert num_rounds[False] == len(ids)
    assert num_rounds[True] < len(ids) / 2
    assert stats.num_accepted_by["forced"] > len(ids) / 2
    assert stats.num_accepted_by["forced"] >= 0.9 * stats.num_drafted_by["forced"]


class DyingHost:
    """A grammar process that knows no session any more once it was killed and started again."""

    def __init__(self) -> None:
        self._host = demo_grammar_host()
        self.num_deaths = 0

    def handle(self, requests: list[ConstraintRequest]) -> list[ConstraintReply]:
        return self._host.handle(requests)

    def kill(self) -> None:
        self._host = demo_grammar_host()
        self.num_deaths += 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("draft", [None, DEMO / "draft"], ids=["alone", "with-a-draft-model"])
async def test_a_grammar_process_that_dies_midway_changes_no_text(draft: Path | None) -> None:
    """What it forced stays right, and the next one takes up from the committed text."""
    expected = (await plain_texts(1.0))["long keys"]
    host = DyingHost()
    async with local_service(
        DEMO / "target",
        draft,
        grammar_host=host,  # type: ignore[arg-type]  # handles what the real one does
        speculation=ON,
    ) as service:
        request = request_for("long keys", 1.0)
        ids: list[int] = []
        async for event in service.generator.generate(request, IdDetokenizer()):
            if isinstance(event, Finished):
                stats = event.speculation
                break
            ids.extend(event.token_ids)
            if len(ids) >= 8 * (host.num_deaths + 1):
                host.kill()
        assert ids == expected
        assert host.num_deaths >= 3
        # Some rounds have no draft: until a new process is there, and as the planner's control.
        assert stats.num_accepted_by["forced"] > len(ids) / 8
        assert await service.freed()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_preempted_sessions_keep_their_texts() -> None:
    """Twelve texts that need twice the KV blocks there are."""

    async def all_at_once(service: LocalService) -> list[tuple[list[int], Finished]]:
        texts = (answer(service, "long keys", 1.0, seed=seed) for seed in range(12))
        return await asyncio.gather(*texts)

    async with local_service(
        DEMO / "target", None, grammar_host=demo_grammar_host(), speculation=OFF
    ) as service:
        expected = [ids for ids, _ in await all_at_once(service)]
    async with local_service(
        DEMO / "target",
        DEMO / "draft",
        grammar_host=demo_grammar_host(),
        speculation=ON,
        kv_cache_tokens=256,
        block_size=16,
        max_model_len=256,
    ) as service:
        got = await all_at_once(service)
        assert [ids for ids, _ in got] == expected
        assert service.target.load().num_preemptions > 0
        assert all(finished.speculation.num_accepted_by["forced"] > 0 for _, finished in got)
        assert await service.freed()
