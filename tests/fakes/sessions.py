"""Sessions over scripted parts, requests, and a router in front of scripted pools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from models.protocol.forced import Forced
from models.protocol.messages import Sampling
from models.protocol.token_sequence import TokenSequence
from router.drafters.chain import ChainTerms
from router.drafters.draft_model import POOL
from router.drafters.drafting import Drafting
from router.drafters.side_by_side import SessionDrafters
from router.generator import SpeculativeGenerator
from router.guard import GrammarGuard, NoGrammar
from router.limits import SpeculationLimits
from router.planning.costs import PassCosts
from router.planning.fixed import FixedPlanner
from router.remote.engine import OpenTemplate
from router.rounds import RoundWatch
from router.services import Services
from router.session import Session
from router.stats import RoundStats
from router.stops import StopChecker
from router.types import Delta, Finished, GenerationRequest
from tests.fakes.pools import ScriptedPool
from tests.fakes.router import LetterDetokenizer, ScriptedConstrainer, ScriptedVerifier

PROMPT = (5, 9, 2)
OPENING = OpenTemplate(session_id="s", sampling=Sampling(), eos_ids=(0,), prompt_len=len(PROMPT))
NO_LOOKUP = SpeculationLimits(prompt_lookup_max=0, suffix_decoding_max_tree_depth=0)


def scripted_session(
    planner: FixedPlanner,
    *,
    drafters: SessionDrafters | None = None,
    terms: ChainTerms | None = None,
    verifier: ScriptedVerifier | None = None,
    constrainer: ScriptedConstrainer | None = None,
    on_forced: Callable[[Sequence[int], Forced], None] | None = None,
    stop: Sequence[str] = (),
    max_tokens: int = 40,
) -> Session:
    """Make a session of the scripted language; nobody drafts unless it is said who does."""
    committed, generated, stats = TokenSequence(PROMPT), TokenSequence(), RoundStats()
    watch = RoundWatch(stats, PassCosts(), planner)
    guard = constrainer and GrammarGuard(constrainer, generated, stats, on_forced)
    return Session(
        committed=committed,
        generated=generated,
        stops=StopChecker(LetterDetokenizer(), eos_ids=[0], stop=stop, max_tokens=max_tokens),
        drafting=Drafting(drafters or SessionDrafters([]), committed, watch, terms or ChainTerms()),
        verifier=verifier or ScriptedVerifier(),
        guard=guard or NoGrammar(),
        watch=watch,
    )


def asked(**fields: Any) -> GenerationRequest:
    """Make a request; `fields` replace those that most have."""
    usual: dict[str, Any] = {
        "request_id": "s",
        "prompt_ids": PROMPT,
        "sampling": Sampling(),
        "eos_ids": (0,),
        "max_tokens": 60,
    }
    return GenerationRequest(**(usual | fields))


class Front:
    """A router in front of a target and a draft model; `services` are fields of `Services`."""

    def __init__(
        self,
        target: ScriptedPool,
        draft: ScriptedPool | None = None,
        *,
        max_model_len: int = 200,
        **services: Any,
    ) -> None:
        self.services = Services(
            target_pool=target,
            draft_pools={} if draft is None else {POOL: draft},
            constraint_pool=None,
            **services,
        )
        self.generator = SpeculativeGenerator(self.services, max_model_len=max_model_len)

    async def deltas(
        self, wanted: GenerationRequest, *, num_turns: int = 0
    ) -> tuple[list[Delta], Finished]:
        """Return the answer and its end; the loop turns so often after each event.

        Without a turn a scripted target is faster than any draft model can join.
        """
        events: list[Delta | Finished] = []
        async for event in self.generator.generate(wanted, LetterDetokenizer()):
            events.append(event)
            for _ in range(num_turns):
                await asyncio.sleep(0)
        deltas = [event for event in events if isinstance(event, Delta)]
        assert isinstance(events[-1], Finished)
        assert len(deltas) == len(events) - 1
        return deltas, events[-1]

    async def run(
        self, wanted: GenerationRequest, *, num_turns: int = 0
    ) -> tuple[list[int], Finished]:
        """Return the token ids of the answer, and its end."""
        deltas, end = await self.deltas(wanted, num_turns=num_turns)
        return [token for delta in deltas for token in delta.token_ids], end
