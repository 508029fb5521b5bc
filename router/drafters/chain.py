"""A round's draft as a chain of segments: text that is certain, a drafter's, text that repeats.

Free drafters (`ports.FreeDrafter`) may begin a draft. The drafter that costs steps is then asked to
go on behind them. They may continue the draft behind that drafter's last token. A token is accepted
only if all before it are, so free tokens are worth less along the chain. They are taken while the
product of survivals is at least `RoundPlan.min_survival`, which a row of the pass must bring.

    committed  ... {"name": |          front: `"Ada"` is all that the grammar allows
    draft      " Ada " | , "age | ": 3    front, then the draft model, then what followed before

Coupled verification takes any draft. Drafts may travel with the distributions that their tokens
were sampled from. A free token's distribution has that token alone, because it was chosen for
certain, given the text before it. The rule asks for no more (`models.sampling.verification`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from models.protocol.messages import MAX_DRAFT_TOKENS, DraftProbs, Proposal
from models.protocol.token_sequence import TokenSequence
from router.drafters.repeats.known import KnownTokens
from router.ports import DrafterTraits, FreeDraft, FreeDrafter
from router.rounds import Segment

# Where no plan says what a row must bring. Where a row costs a twentieth of a pass, suffix decoding
# is fastest on texts of SmolLM2 with 0.1 (0.3: 3% slower, 0.5: 9%); a row may cost more than that.
LEAST_SURVIVAL = 0.3


@dataclass(frozen=True, slots=True)
class NamedFree:
    """A free drafter and what others must know of it."""

    traits: DrafterTraits
    drafter: FreeDrafter


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTerms:
    """The limits and the drafters of a session's chains.

    Args:
        front: they begin the draft, each after the one before it.
        max_tokens: of a draft altogether.
        max_free_tokens: of these, tokens of free drafters beside the planned ones.
        survival: for a drafter and a number of tokens: the probabilities that at least 1, 2, ...
            of its tokens are accepted.
        known: drafts what the client has of an answer; None: it has nothing.
    """

    front: Sequence[NamedFree] = ()
    max_tokens: int = MAX_DRAFT_TOKENS
    max_free_tokens: int = 0
    survival: Callable[[DrafterTraits, int], Sequence[float]] = lambda _, num: (1.0,) * num
    known: KnownTokens | None = None


class Chain:
    """The draft of one round while it grows. The front's tokens begin it.

    Args:
        committed: the text that it follows; it is left as it is.
        terms: of the session.
        room: most tokens that the round can take.
        min_survival: what a free token must survive with.

    Attributes:
        tokens: the draft.
        survival: probability that at least 1, 2, ... of its tokens are accepted.
        segments: who drafted them.
        room: for so many tokens more.
    """

    def __init__(
        self, committed: TokenSequence, terms: ChainTerms, room: int, min_survival: float
    ) -> None:
        self._committed = committed
        self.tokens: list[int] = []
        self.survival: list[float] = []
        self.segments: list[Segment] = []
        self.room = max(0, min(room, terms.max_tokens))
        self._terms = terms
        self._free_room = terms.max_free_tokens
        self._min_survival = min_survival
        self._probs: DraftProbs | None = None
        self._sampled = slice(0)  # the tokens that have them
        for named in terms.front:
            self.add_free([named])

    @property
    def text(self) -> TokenSequence:
        """The committed tokens and the draft."""
        return self._committed.followed_by(self.tokens) if self.tokens else self._committed

    @property
    def draft_probs(self) -> DraftProbs | None:
        """The distributions that its tokens were sampled from; None if no drafter gave any."""
        if self._probs is None:
            return None
        before, after = self.tokens[: self._sampled.start], self.tokens[self._sampled.stop :]
        return _among_certain(self._probs, before, after) if before or after else self._probs

    def add_free(self, drafters: Iterable[NamedFree], planned: DrafterTraits | None = None) -> None:
        """Add what the first of `drafters` that has tokens has, as far as they are worth a row.

        `planned` is whom the plan was made for, maybe one of them.
        """
        for named in drafters:
            most = min(self.room, self._free_room)
            if most == 0:
                return
            draft = named.drafter.look(self.text, most)
            num_tokens = self._num_worth(draft, most)
            if num_tokens > 0:
                segment = Segment(named.traits, num_tokens, is_planned=named.traits is planned)
                self._add(segment, draft.tokens, draft.survival)
                self._free_room -= num_tokens
                return

    def add_proposal(self, drafter: DrafterTraits, proposal: Proposal) -> None:
        """Add the draft of a drafter that was asked to go on after `text`; nothing follows eos."""
        num_tokens, num_before = len(proposal.tokens), len(self.tokens)
        self._probs = proposal.draft_probs
        self._sampled = slice(num_before, num_before + num_tokens)
        survival = self._terms.survival(drafter, num_tokens)
        segment = Segment(drafter, num_tokens, is_planned=True, num_ahead=proposal.num_ahead)
        self._add(segment, proposal.tokens, survival)
        if proposal.cut == "eos":
            self.room = 0

    def _num_worth(self, draft: FreeDraft, most: int) -> int:
        before = self._alive()
        return sum(before * alive >= self._min_survival for alive in draft.survival[:most])

    def _alive(self) -> float:
        return self.survival[-1] if self.survival else 1.0

    def _add(self, segment: Segment, tokens: Sequence[int], survival: Sequence[float]) -> None:
        num_tokens, before = segment.num_tokens, self._alive()
        self.tokens.extend(tokens[:num_tokens])
        self.survival.extend(before * alive for alive in survival[:num_tokens])
        self.segments.append(segment)
        self.room -= num_tokens


def _among_certain(probs: DraftProbs, before: Sequence[int], after: Sequence[int]) -> DraftProbs:
    """`probs` with a row for each token before and after those that were sampled."""
    # An id may repeat in a row, with probability 0.
    ids = [
        b"".join(struct.pack("<i", token) * probs.num_pairs for token in tokens)
        for tokens in (before, after)
    ]
    certain = struct.pack("<f", 1.0) + bytes(4 * (probs.num_pairs - 1))
    return DraftProbs(
        num_pairs=probs.num_pairs,
        token_ids=ids[0] + probs.token_ids + ids[1],
        probs=certain * len(before) + probs.probs + certain * len(after),
    )
