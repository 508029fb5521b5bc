"""The `rejection` rule through router and engines: its distribution, and what stays as it was.

Real models with 16 tokens, so that the distribution of a whole short text can be compared with the
target's exact one. That the test sees a mistake of the router is shown by one.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from typing import Any

import msgspec
import pytest

from models.protocol.messages import Proposal
from router.limits import SpeculationLimits
from router.planning.adaptive import RouterPlanner
from router.planning.costs import PassCosts
from router.remote.draft import RemoteDrafter
from router.types import Finished
from tests.cases.distribution import CASES, EOS_ID, NUM_TOKENS, exact_distribution, p_value
from tests.harness.distribution_engines import distribution_checkpoint
from tests.harness.local import LocalService, local_service, make_request

CASE = CASES["plain"]
NUM_SESSIONS = 2400
AT_ONCE = 50
LOOKUP = SpeculationLimits(prompt_lookup_min=1, prompt_lookup_max=3)


async def generate(
    service: LocalService, name: str, seed: int, k: int | None, **wanted: object
) -> tuple[tuple[int, ...], Finished]:
    request = make_request(
        f"{name}-{seed}-{k}",
        CASE.prompt,
        k=k,
        seed=seed,
        max_tokens=NUM_TOKENS,
        eos_ids=[EOS_ID],
        **{"temperature": 1.0, "verification": "rejection", **wanted},  # type: ignore[arg-type]
    )
    ids, finished, _ = await service.generate(request)
    return tuple(ids) + (EOS_ID,) * (NUM_TOKENS - len(ids)), finished


async def sampled_texts(
    drafter: str,
    k: int | None = 2,
    planner: RouterPlanner | None = None,
    speculation: SpeculationLimits = LOOKUP,
    verification: str = "rejection",
    **options: Any,
) -> tuple[list[tuple[int, ...]], Counter[str]]:
    """Many short texts of the pair, and how many draft tokens stood, by drafter."""
    texts: list[tuple[int, ...]] = []
    accepted_by = Counter[str]()
    async with local_service(
        distribution_checkpoint("target"),
        distribution_checkpoint("draft"),
        dtype="float32",
        speculation=speculation,
        max_model_len=16,
        planner=planner,
        **options,
    ) as service:
        for first in range(0, NUM_SESSIONS, AT_ONCE):
            outcomes = await asyncio.gather(
                *(
                    generate(
                        service, "sampled", seed, k, drafter=drafter, verification=verification
                    )
                    for seed in range(first, first + AT_ONCE)
                )
            )
            texts += [text for text, _ in outcomes]
            for _, finished in outcomes:
                accepted_by.update(finished.speculation.num_accepted_by)
    return texts, accepted_by


@pytest.mark.parametrize("drafter", ["draft_model", "suffix", "ngram"])
async def test_texts_follow_the_law_of_the_target(drafter: str) -> None:
    texts, accepted_by = await sampled_texts(drafter)
    assert p_value(texts, exact_distribution(distribution_checkpoint("target"), CASE)) > 1e-4
    assert accepted_by[drafter] > 0


class LateTarget:
    """Lets the draft model connect first: a text that is done before has none of its tokens."""

    def __init__(self, name: str, pool: Any) -> None:
        self._pool, self._pause_s = pool, 0.05 if name == "target" else 0.0

    async def lease(self, session_id: str, *, timeout_s: float) -> Any:
        lease = await self._pool.lease(session_id, timeout_s=timeout_s)
        await asyncio.sleep(self._pause_s)
        return lease


async def test_so_they_do_where_a_draft_is_a_chain() -> None:
    """Sampled tokens with their distributions, and behind them tokens that came for certain."""
    planner = RouterPlanner(PassCosts(), pinned=1)
    texts, accepted_by = await sampled_texts(
        "draft_model", k=None, planner=planner, link_to=LateTarget
    )
    assert p_value(texts, exact_distribution(distribution_checkpoint("target"), CASE)) > 1e-4
    assert min(accepted_by["draft_model"], accepted_by["suffix"]) > 0


async def test_a_router_that_changes_the_draft_probabilities_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # To lose them would not be seen: the rule is exact for a certain draft, too.
    propose = RemoteDrafter.propose

    async def flatten(self: RemoteDrafter, *args: object) -> Proposal:
        proposal = await propose(self, *args)  # type: ignore[arg-type]
        probs = proposal.draft_probs
        if probs is None:
            return proposal
        flat = struct.pack("<f", 1 / probs.num_pairs) * (len(probs.probs) // 4)
        return msgspec.structs.replace(
            proposal, draft_probs=msgspec.structs.replace(probs, probs=flat)
        )

    monkeypatch.setattr(RemoteDrafter, "propose", flatten)
    texts, _ = await sampled_texts("draft_model")
    assert p_value(texts, exact_distribution(distribution_checkpoint("target"), CASE)) < 1e-6


async def test_without_drafts_and_without_temperature_the_rules_agree() -> None:
    async with local_service(
        distribution_checkpoint("target"),
        distribution_checkpoint("draft"),
        dtype="float32",
        max_model_len=16,
    ) as service:
        for seed in range(20):
            coupled, _ = await generate(service, "coupled", seed, 2, verification="coupled")
            plain, _ = await generate(service, "plain", seed, 0)
            assert plain == coupled
        greedy = [
            (await generate(service, rule, 0, k, temperature=0.0, verification=rule))[0]
            for rule in ("coupled", "rejection")
            for k in (0, 2)
        ]
        assert len(set(greedy)) == 1


@pytest.mark.parametrize("rule", ["rejection", "coupled"])
async def test_greedy_drafts_leave_the_law_of_the_target(rule: str) -> None:
    """By `rejection` such a token came for certain: it stands with p, the residual lacks it."""
    lookup = LOOKUP.model_copy(update={"draft_sample_method": "greedy"})
    texts, accepted_by = await sampled_texts("draft_model", speculation=lookup, verification=rule)
    assert p_value(texts, exact_distribution(distribution_checkpoint("target"), CASE)) > 1e-4
    assert accepted_by["draft_model"] > 0
