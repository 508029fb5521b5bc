"""The seams of the router: what the loop needs from others, and what it needs of a transport.

Upper seam, seen by `loop.py`, one object per session: `Drafter`, `Verifier`, `Constrainer`.
`remote/draft.py`, `remote/target.py` and `remote/grammar.py` implement them over the protocol
of `models/protocol/messages.py`; `drafters/ngram.py` or a scripted fake implements them without it.
`DrafterTraits` is what planning, costs and statistics know of a drafter: they never ask its name.

Lower seam, seen by `remote/engine.py` and `remote/grammar.py`: `Pool` hands out a `Lease`, a lease
carries a `Channel`. ZMQ links under Ray Serve leases are one implementation, and engines in the
same process another. A third one is a link that loses, doubles, delays and reorders messages.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Literal, Protocol, TypeVar, runtime_checkable

from models.protocol.forced import Forced
from models.protocol.grammars import Loosened
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    DraftProbs,
    EngineReply,
    EngineRequest,
    GrammarCommitted,
    LeaseGrant,
    Proposal,
    Verdict,
)
from models.protocol.rewards import TextScore
from models.protocol.token_sequence import TokenSequence

Request_contra = TypeVar("Request_contra", contravariant=True)
Reply_co = TypeVar("Reply_co", covariant=True)

TaskClass = Literal["structured", "free", "creative"]  # under a grammar; free; at high temperature


class DraftCost(Enum):
    """The cost of a draft for a session."""

    FREE = "free"  # neither steps nor waits: a look-up in what the router holds
    LOCAL = "local steps"  # steps that no other session shares and no link delays
    REMOTE = "remote engine"  # steps of an engine that sessions share, and the way to it


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterTraits:
    """The properties of a drafter that others must know.

    `prior_acceptance` is the probability that a token of its drafts is accepted, those before it
    accepted. It holds as long as nothing was observed.
    """

    name: str  # in requests, answers, metrics and config
    cost: DraftCost
    prior_acceptance: Mapping[TaskClass, float]

    @property
    def is_free(self) -> bool:
        """True if its drafts cost neither steps nor waits."""
        return self.cost is DraftCost.FREE


@dataclass(frozen=True, slots=True)
class FreeDraft:
    """Tokens that cost no step, and how likely they are to be accepted.

    `survival[j - 1]` is the probability that at least j of them are. It has as many entries as
    there are tokens, and never rises. `cells` say what kind of evidence is behind each token
    (`match_odds.cells`); empty where it is not of matches.
    """

    tokens: Sequence[int] = ()
    survival: Sequence[float] = ()
    cells: Sequence[int] = ()


class FreeDrafter(Protocol):
    """Drafts by looking into text that is known: no model, no step, nothing to wait for."""

    def look(self, text: TokenSequence, num_tokens: int) -> FreeDraft:
        """Draft up to `num_tokens` after `text`, which may end with tokens not yet committed.

        A text that goes back behind an earlier one (a draft was rejected) is no error.
        """
        ...

    def best_case(self, text: TokenSequence, num_tokens: int) -> Sequence[float]:
        """Estimate the survival of the best draft that a look after the committed `text` may find.

        It is cheap, and mostly empty.
        """
        ...


class Drafter(Protocol):
    """Proposes tokens for one session. Losing it never fails a request."""

    async def propose(self, committed: TokenSequence, num_draft_tokens: int) -> Proposal:
        """Draft up to `num_draft_tokens` (>= 1) tokens after the committed ones.

        `committed` may end with tokens that are not committed yet, where others begin a draft.
        A proposal without tokens means that there is nothing to propose here.

        Raises:
            Unavailable: no draft now; the caller goes on with k = 0 and may ask again later.
        """
        ...

    @property
    def is_ready(self) -> bool:
        """True if `propose` is worth calling now."""
        ...

    @property
    def is_over(self) -> bool:
        """True if it will never be ready again: the text has outgrown it."""
        ...

    async def close(self) -> None:
        """Free the session on the other side. Idempotent; never raises."""
        ...


class Verifier(Protocol):
    """Verifies drafts for one session and samples the target's own tokens."""

    @property
    def has_more(self) -> bool:
        """True if the next verdict is there already: to ask for it waits for nothing."""
        ...

    def verify(
        self,
        committed: TokenSequence,
        draft: Sequence[int],
        run_on: int,
        draft_probs: DraftProbs | None = None,
    ) -> AsyncGenerator[Verdict, None]:
        """Verify `draft` after the committed tokens, then up to `run_on` plain steps.

        The draft's tokens were sampled from `draft_probs`, if the rule needs them. If there are
        none, each token counts as chosen for certain, which is right for prompt lookup.

        Yields the verdict on the draft (part 0), then one verdict for each plain step. The caller
        commits the tokens of a verdict before it waits for the next, and may stop early. The plain
        steps may end early too (a replica was lost), never before part 0. Safe to repeat: the same
        committed tokens and draft give the same verdict.

        Raises:
            Unavailable: target or constraint replica is lost and no other was to be had in time.
            MaskUnavailable: the target got no masks; `Constrainer.reopen`, then ask again.
        """
        ...

    async def close(self) -> None:
        """Free the session on the other side. Idempotent; never raises."""
        ...


class Constrainer(Protocol):
    """Guards the grammar of one session.

    `loosened`: what of it is not enforced; known when it is open.
    """

    loosened: Sequence[Loosened]

    async def open(self) -> Forced:
        """Lease a replica and compile the grammar there; what is forced at the text's start.

        Raises:
            UnsupportedGrammar: the grammar is refused.
            Unavailable: no replica answers.
        """
        ...

    async def commit(self, generated: TokenSequence, tokens: Sequence[int]) -> GrammarCommitted:
        """Validate `tokens` after the generated ones and commit them to the matcher.

        The answer says what is forced after them.

        Raises:
            Unavailable: the constraint replica is lost and no other was to be had in time.
        """
        ...

    async def reopen(self) -> Forced:
        """Move to another replica (or child) after masks were lost; replays what is committed.

        Returns what is forced after that.

        Raises:
            Unavailable: the constraint replica is lost and no other was to be had in time.
        """
        ...

    async def close(self) -> None:
        """Free the session on the other side. Idempotent; never raises."""
        ...


class Scorer(Protocol):
    """Asks the reward of one session how texts do."""

    async def score(
        self, text: str, lookaheads: Sequence[str], ends: Sequence[bool]
    ) -> list[TextScore]:
        """Score `text` with each of the look-aheads behind it; `ends`: nothing can follow them.

        Safe to repeat: the same texts have the same scores.

        Raises:
            InvalidRequest: the reward is refused, or it failed or was too slow for these texts.
            Unavailable: nobody answers.
        """
        ...

    async def close(self) -> None:
        """Free the session on the other side. Idempotent; never raises."""
        ...


class Channel(Protocol, Generic[Request_contra, Reply_co]):
    """One session's end of a link to one process. Messages may be lost, doubled or reordered."""

    def send(self, message: Request_contra) -> None:
        """Queue a message for the next frame. Never blocks; a lost link swallows it."""
        ...

    async def receive(self) -> Reply_co:
        """Return the next reply for this session.

        Raises:
            LinkLost: the process is known to be gone; every later call raises it too.
        """
        ...

    def peek(self) -> Reply_co | None:
        """Return the reply that `receive` would return at once; None if it would wait or raise."""
        ...


class Lease(Protocol, Generic[Request_contra, Reply_co]):
    """The right to keep one session on one replica until `release`."""

    @property
    def grant(self) -> LeaseGrant:
        """The address of the replica, and the model that it serves."""
        ...

    @property
    def channel(self) -> Channel[Request_contra, Reply_co]:
        """The session's messages to and from that replica."""
        ...

    async def release(self) -> None:
        """End the lease. Idempotent; never raises."""
        ...


class Pool(Protocol, Generic[Request_contra, Reply_co]):
    """All replicas of one deployment; leases are balanced over them."""

    async def lease(self, session_id: str, *, timeout_s: float) -> Lease[Request_contra, Reply_co]:
        """Lease some replica.

        Raises:
            Unavailable: no replica granted one within `timeout_s`.
        """
        ...


EnginePool = Pool[EngineRequest, EngineReply]


@runtime_checkable
class PlacedPool(Protocol):
    """An engine pool of several replicas that may choose by what each has in its cache."""

    def near(self, prefix_key: str) -> EnginePool:
        """Return the same pool for texts that begin alike: leases prefer the same replica.

        The key has the salt in it, because a text finds nothing that others left.
        """
        ...


EngineLease = Lease[EngineRequest, EngineReply]
ConstraintPool = Pool[ConstraintRequest, ConstraintReply]
ConstraintLease = Lease[ConstraintRequest, ConstraintReply]
