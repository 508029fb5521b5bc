"""Who drafts: by request, by deployment, by what there is; and what fills in."""

from __future__ import annotations

import msgspec
import pytest

from models.protocol.errors import InvalidRequest, Unavailable
from models.protocol.messages import Cut, DraftSource, Proposal
from models.protocol.token_sequence import TokenSequence
from router.drafters.choice import FillInDrafter, choose_source, fixed_length
from router.drafters.ngram import NgramDrafter
from router.limits import SpeculationLimits
from router.types import SpeculationSettings
from tests.fakes.router import ScriptedDrafter, continuation


@pytest.mark.parametrize("lookup_max", [0, 4])
@pytest.mark.parametrize("has_model", [False, True])
@pytest.mark.parametrize("method", [None, "draft_model", "ngram"])
def test_without_a_wish_the_deployment_chooses(
    method: DraftSource | None, has_model: bool, lookup_max: int
) -> None:
    allowed = SpeculationLimits(method=method, prompt_lookup_max=lookup_max)
    chosen = choose_source(SpeculationSettings(), allowed, has_draft_model=has_model)
    lookup = "ngram" if lookup_max else None
    assert chosen == ("draft_model" if has_model and method != "ngram" else lookup)


@pytest.mark.parametrize("method", [None, "draft_model", "ngram"])
@pytest.mark.parametrize("wish", ["draft_model", "ngram"])
def test_a_request_may_choose(wish: DraftSource, method: DraftSource | None) -> None:
    wanted = SpeculationSettings(drafter=wish)
    assert choose_source(wanted, SpeculationLimits(method=method), has_draft_model=True) == wish


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [("draft_model", "has no draft model"), ("ngram", "prompt_lookup_max is 0")],
)
@pytest.mark.parametrize("enabled", [False, True])
def test_a_drafter_that_is_not_there_is_refused_by_name(
    wish: DraftSource, complaint: str, enabled: bool
) -> None:
    wanted = SpeculationSettings(drafter=wish, enabled=enabled)
    with pytest.raises(InvalidRequest, match=complaint) as caught:
        choose_source(wanted, SpeculationLimits(prompt_lookup_max=0), has_draft_model=False)
    assert caught.value.param == "speculation.drafter"


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        (SpeculationSettings(enabled=False), SpeculationLimits()),
        (SpeculationSettings(num_speculative_tokens=0), SpeculationLimits()),
        (SpeculationSettings(), SpeculationLimits(enabled=False)),
        (SpeculationSettings(), SpeculationLimits(num_speculative_tokens=0)),
        (SpeculationSettings(num_speculative_tokens=3), SpeculationLimits(enabled=False)),
        (SpeculationSettings(), SpeculationLimits(max_speculative_tokens=0)),
    ],
    ids=["off", "k0", "all-off", "all-k0", "asked-but-off", "limit-0"],
)
def test_nobody_drafts_where_k_is_zero(
    wanted: SpeculationSettings, allowed: SpeculationLimits
) -> None:
    assert choose_source(wanted, allowed, has_draft_model=True) is None


@pytest.mark.parametrize(
    ("wanted", "allowed", "limit", "expected"),
    [
        (None, None, 8, None),
        (3, None, 8, 3),
        (3, 5, 8, 3),
        (None, 5, 8, 5),
        (9, None, 8, 8),
        (None, 9, 8, 8),
        (0, 5, 8, 0),
        (None, None, 0, 0),
    ],
)
def test_a_fixed_length_keeps_within_the_limit(
    wanted: int | None, allowed: int | None, limit: int, expected: int | None
) -> None:
    limits = SpeculationLimits(num_speculative_tokens=allowed, max_speculative_tokens=limit)
    assert fixed_length(SpeculationSettings(num_speculative_tokens=wanted), limits) == expected


def pair(*, fails_at: tuple[int, ...] = ()) -> tuple[FillInDrafter, ScriptedDrafter]:
    model, lookup = ScriptedDrafter([None], fails_at=fails_at), ScriptedDrafter([0])
    lookup.source = "ngram"
    return FillInDrafter(model, lambda: lookup), model


async def test_lookup_fills_in_while_the_model_is_not_ready() -> None:
    drafter, model = pair()
    committed = TokenSequence([5, 9, 2])
    model.is_ready = False
    assert drafter.is_ready
    assert drafter.source == "ngram"
    assert (await drafter.propose(committed, 3)).tokens != continuation(committed.ids, 3)
    assert model.num_calls == 0
    model.is_ready = True
    now: str = drafter.source  # in a variable: to the type checker it is still what it was
    assert now == "draft_model"
    assert (await drafter.propose(committed, 3)).tokens == continuation(committed.ids, 3)


async def test_lookup_fills_in_at_once_for_a_draft_that_is_lost() -> None:
    drafter, model = pair(fails_at=(0,))
    committed = TokenSequence([5, 9, 2])
    assert (await drafter.propose(committed, 3)).tokens != continuation(committed.ids, 3)
    assert model.num_calls == 1
    with pytest.raises(Unavailable):
        await ScriptedDrafter([None], fails_at=(0,)).propose(committed, 3)


class EmptyDrafter(ScriptedDrafter):
    """A draft model that has nothing to say, and no error either."""

    def __init__(self, cut: Cut) -> None:
        super().__init__([None])
        self.cut = cut

    async def propose(self, committed: TokenSequence, num_draft_tokens: int) -> Proposal:
        proposal = await super().propose(committed, num_draft_tokens)
        return msgspec.structs.replace(proposal, tokens=[], cut=self.cut)


@pytest.mark.parametrize("cut", ["context", "starved", "deadline", "mask_late"])
async def test_lookup_fills_in_at_once_for_a_draft_that_is_empty(cut: Cut) -> None:
    model = EmptyDrafter(cut)
    made: list[NgramDrafter] = []

    def new_lookup() -> NgramDrafter:
        made.append(NgramDrafter("s", min_len=1, max_len=2))
        return made[-1]

    drafter = FillInDrafter(model, new_lookup)
    committed = TokenSequence([5, 9, 2, 5, 9])
    for _ in range(3):
        proposal = await drafter.propose(committed, 3)
        assert (proposal.source, proposal.tokens) == ("ngram", [2, 5, 9])
        committed.extend([2, 5, 9])
    assert (model.num_calls, len(made)) == (3, 1)  # the text is not read anew each time
    assert not drafter.is_over


async def test_closing_frees_both() -> None:
    model, lookup = ScriptedDrafter([None]), ScriptedDrafter([None])
    model.is_ready = False
    drafter = FillInDrafter(model, lambda: lookup)
    assert drafter.is_ready
    await drafter.close()
    assert model.is_closed
    assert lookup.is_closed


async def test_lookup_forgets_the_text_once_the_model_drafts_and_reads_it_again_when_missed() -> (
    None
):
    model = ScriptedDrafter([None], fails_at=(1, 3))
    made: list[NgramDrafter] = []

    def new_lookup() -> NgramDrafter:
        made.append(NgramDrafter("s", min_len=1, max_len=2))
        return made[-1]

    drafter = FillInDrafter(model, new_lookup)
    committed = TokenSequence([5, 9, 2, 5, 9])
    model.is_ready = False
    assert (await drafter.propose(committed, 3)).tokens == [2, 5, 9]
    assert made[0]._ends
    model.is_ready = True
    for is_lookup in (False, True, False, True):
        assert ((await drafter.propose(committed, 3)).source == "ngram") == is_lookup
        committed.extend([2, 5, 9])
        assert not made[0]._ends
    assert len(made) == 3
    await drafter.close()
    assert not made[-1]._ends
