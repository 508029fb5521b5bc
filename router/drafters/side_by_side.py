"""The drafters of one session side by side: the first that has a draft gives it.

A drafter that fills in reads the whole text before its first draft and keeps what it found in it.
If drafts are not continued, that is seldom used once a drafter before it drafts. It goes then, and
a new one is made if it is missed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from models.protocol.errors import Unavailable
from models.protocol.messages import Proposal
from models.protocol.token_sequence import TokenSequence
from router.drafters.chain import NamedFree
from router.ports import Drafter, DrafterTraits, FreeDrafter
from router.remote.draft import RemoteDrafter


@dataclass(frozen=True, slots=True)
class NamedProposal:
    """One drafter's answer in a round, after `elapsed_ms`."""

    drafter: DrafterTraits
    proposal: Proposal | None  # None: the drafter was lost
    elapsed_ms: float
    guess: Sequence[int] = ()  # guess of its draft that it was sent


class _Place:
    """One drafter of a session; it is there from its first use to `leave`."""

    __slots__ = ("_drafter", "_make", "traits")

    def __init__(self, traits: DrafterTraits, make: Callable[[], Drafter]) -> None:
        self.traits = traits
        self._make = make
        self._drafter: Drafter | None = None

    @property
    def is_made(self) -> bool:
        return self._drafter is not None

    def drafter(self) -> Drafter:
        if self._drafter is None:
            self._drafter = self._make()
        return self._drafter

    async def propose(
        self, committed: TokenSequence, num_draft_tokens: int, guess: Sequence[int]
    ) -> NamedProposal:
        drafter, asked_at = self.drafter(), time.perf_counter()
        sent: Sequence[int] = ()
        proposal: Proposal | None = None
        try:
            if guess and isinstance(drafter, RemoteDrafter):
                sent = guess
                proposal = await drafter.propose(committed, num_draft_tokens, guess)
            else:
                proposal = await drafter.propose(committed, num_draft_tokens)
        except Unavailable:  # lost just now: it rejoins by itself
            pass
        return NamedProposal(self.traits, proposal, (time.perf_counter() - asked_at) * 1e3, sent)

    async def leave(self) -> None:
        drafter, self._drafter = self._drafter, None
        if drafter is not None:
            await drafter.close()


class SessionDrafters:
    """Asks the drafters of one session in order. If there are none, nobody ever drafts.

    Args:
        drafters: who they are and how each is made, in the order in which they are asked.
        continues: whether free drafters are to continue the drafts of others, and so stay.
    """

    def __init__(
        self,
        drafters: Sequence[tuple[DrafterTraits, Callable[[], Drafter]]],
        *,
        continues: bool = False,
    ) -> None:
        self._places = [_Place(traits, make) for traits, make in drafters]
        self._continues = continues

    def start(self) -> None:
        """Make the first one: it may have to connect, and the others are made when asked."""
        for place in self._places[:1]:
            place.drafter()

    @property
    def preferred(self) -> DrafterTraits | None:
        """The drafter that would draft if all had been made; None where none ever will again."""
        for place in self._places:
            if not (place.is_made and place.drafter().is_over):
                return place.traits
        return None

    @property
    def is_preferred_ready(self) -> bool:
        """True if the preferred drafter was made and is ready."""
        for place in self._places:
            if not (place.is_made and place.drafter().is_over):
                return place.is_made and place.drafter().is_ready
        return False

    @property
    def is_ready(self) -> bool:
        """True if `propose` is worth calling now."""
        return any(place.drafter().is_ready for place in self._places)

    @property
    def next_drafter(self) -> DrafterTraits | None:
        """The drafter that would draft now; None where none ever will again."""
        for place in self._places:
            if place.drafter().is_ready:
                return place.traits
        if all(place.drafter().is_over for place in self._places):
            return None
        return self._places[-1].traits

    def free_drafters(self) -> Iterator[NamedFree]:
        """Yield drafters that can continue a draft, in order; none if drafts are not continued."""
        for place in self._places if self._continues else ():
            # Asked after every token; `isinstance` of a protocol costs as much as the rest of it.
            if place.traits.is_free and hasattr(drafter := place.drafter(), "look"):
                yield NamedFree(place.traits, cast("FreeDrafter", drafter))

    async def propose(
        self, committed: TokenSequence, num_draft_tokens: int, guess: Sequence[int] = ()
    ) -> Sequence[NamedProposal]:
        """Ask one drafter after the other until one has tokens: only the last answer may have any.

        Free drafters that can continue a draft are left out: they stand in without being asked.

        Args:
            committed: the text so far.
            num_draft_tokens: most tokens of a draft, at least 1.
            guess: of the draft, for whoever can verify it; it changes no token.
        """
        proposals: list[NamedProposal] = []
        free = {named.traits.name for named in self.free_drafters()}
        places = [place for place in self._places if place.traits.name not in free]
        for index, place in enumerate(places):
            if not place.drafter().is_ready:
                continue
            named = await place.propose(committed, num_draft_tokens, guess)
            proposals.append(named)
            if named.proposal is not None and named.proposal.tokens:
                for later in places[index + 1 :]:
                    await later.leave()
                break
        return proposals

    async def close(self) -> None:
        """Free all of them. Idempotent; never raises."""
        closings = [place.leave() for place in self._places]
        await asyncio.gather(*closings, return_exceptions=True)


def first_with_tokens(proposals: Sequence[NamedProposal]) -> NamedProposal | None:
    """Return the proposal that a round takes: the first that has tokens."""
    for named in proposals:
        if named.proposal is not None and named.proposal.tokens:
            return named
    return None
