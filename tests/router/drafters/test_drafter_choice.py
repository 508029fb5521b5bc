"""Who drafts: by request, by deployment, by what there is; and what fills in."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from models.protocol.errors import InvalidRequest
from models.protocol.messages import Cut, Proposal, Sampling
from models.protocol.token_sequence import TokenSequence
from router.drafters.choice import choose_drafters, draft_sampling, fixed_length
from router.drafters.draft_model import DRAFT_MODEL, POOL
from router.drafters.ngram import NGRAM, NgramDrafter
from router.drafters.side_by_side import SessionDrafters, first_with_tokens
from router.limits import SpeculationLimits
from router.ports import Drafter
from router.types import GenerationRequest, SpeculationSettings
from tests.fakes.router import ScriptedDrafter, alone, continuation


def chosen(
    wanted: SpeculationSettings, allowed: SpeculationLimits, *, has_draft_model: bool = True
) -> list[str]:
    """Return who drafts, by name, and who fills in for it."""
    kinds = choose_drafters(wanted, allowed, [POOL] if has_draft_model else [])
    return [kind.name for kind in kinds]


FREE: dict[tuple[int, int], list[str]] = {  # the preferred one, by tree depth and longest n-gram
    (24, 4): ["suffix"],
    (24, 0): ["suffix"],
    (0, 4): ["ngram"],
    (0, 0): [],
}


@pytest.mark.parametrize(("depth", "lookup_max"), FREE)
@pytest.mark.parametrize("has_model", [False, True])
@pytest.mark.parametrize("method", [None, "draft_model", "suffix"])
def test_without_a_wish_the_deployment_chooses_and_one_free_drafter_fills_in(
    method: str | None, has_model: bool, depth: int, lookup_max: int
) -> None:
    allowed = SpeculationLimits(
        method=method, prompt_lookup_max=lookup_max, suffix_decoding_max_tree_depth=depth
    )
    found = chosen(SpeculationSettings(), allowed, has_draft_model=has_model)
    model = ["draft_model"] if has_model and method != "suffix" else []
    assert found == model + FREE[depth, lookup_max]


@pytest.mark.parametrize("method", [None, "draft_model", "suffix", "ngram"])
@pytest.mark.parametrize("wish", ["draft_model", "suffix", "ngram"])
def test_a_request_may_choose(wish: str, method: str | None) -> None:
    found = chosen(SpeculationSettings(drafter=wish), SpeculationLimits(method=method))
    assert found == (["draft_model", "suffix"] if wish == "draft_model" else [wish])


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [
        ("draft_model", "has no draft model"),
        ("suffix", "suffix_decoding_max_tree_depth is 0"),
        ("ngram", "prompt_lookup_max is 0"),
    ],
)
@pytest.mark.parametrize("enabled", [False, True])
def test_a_drafter_that_is_not_there_is_refused_by_name(
    wish: str, complaint: str, enabled: bool
) -> None:
    wanted = SpeculationSettings(drafter=wish, enabled=enabled)
    with pytest.raises(InvalidRequest, match=complaint) as caught:
        chosen(
            wanted,
            SpeculationLimits(prompt_lookup_max=0, suffix_decoding_max_tree_depth=0),
            has_draft_model=False,
        )
    assert caught.value.param == "speculation.drafter"


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        (SpeculationSettings(enabled=False), SpeculationLimits()),
        (SpeculationSettings(num_speculative_tokens=0), SpeculationLimits()),
        (SpeculationSettings(), SpeculationLimits(enabled=False)),
        (SpeculationSettings(), SpeculationLimits(num_speculative_tokens=0)),
        (SpeculationSettings(num_speculative_tokens=3), SpeculationLimits(enabled=False)),
        (SpeculationSettings(), SpeculationLimits(max_num_speculative_tokens=0)),
    ],
    ids=["off", "k0", "all-off", "all-k0", "asked-but-off", "limit-0"],
)
def test_nobody_drafts_where_k_is_zero(
    wanted: SpeculationSettings, allowed: SpeculationLimits
) -> None:
    assert chosen(wanted, allowed) == []


@pytest.mark.parametrize(
    ("wanted", "allowed", "limit", "expected"),
    [
        (None, None, 8, None),
        (3, None, 8, 3),
        (3, 5, 8, 3),
        (None, 5, 8, 5),
        (9, None, 8, 8),
        (0, 5, 8, 0),
        (None, None, 0, 0),
    ],
)
def test_a_fixed_length_keeps_within_the_limit(
    wanted: int | None, allowed: int | None, limit: int, expected: int | None
) -> None:
    limits = SpeculationLimits(
        num_speculative_tokens="adaptive" if allowed is None else allowed,
        max_num_speculative_tokens=limit,
    )
    assert fixed_length(SpeculationSettings(num_speculative_tokens=wanted), limits) == expected


def side_by_side(model: Drafter, new_lookup: Callable[[], Drafter]) -> SessionDrafters:
    return SessionDrafters([(DRAFT_MODEL.traits, lambda: model), (NGRAM.traits, new_lookup)])


def beside_lookup(model: Drafter) -> tuple[SessionDrafters, list[NgramDrafter]]:
    """Have lookup fill in for a model; return the lookups that are made for it, too."""
    made: list[NgramDrafter] = []

    def new_lookup() -> NgramDrafter:
        made.append(NgramDrafter("s", min_len=1, max_len=2))
        return made[-1]

    return side_by_side(model, new_lookup), made


def pair(*, fails_at: tuple[int, ...] = ()) -> tuple[SessionDrafters, ScriptedDrafter]:
    model, lookup = ScriptedDrafter([None], fails_at=fails_at), ScriptedDrafter([0])
    return side_by_side(model, lambda: lookup), model


def next_name(drafters: SessionDrafters) -> str:
    traits = drafters.next_drafter
    assert traits is not None
    return traits.name


async def taken(
    drafters: SessionDrafters, committed: TokenSequence, k: int = 3
) -> tuple[str, list[int]]:
    named = first_with_tokens(await drafters.propose(committed, k))
    assert named is not None
    assert named.proposal is not None
    return named.drafter.name, named.proposal.tokens


async def test_lookup_fills_in_while_the_model_is_not_ready() -> None:
    drafters, model = pair()
    committed = TokenSequence([5, 9, 2])
    model.is_ready = False
    assert drafters.is_ready
    assert next_name(drafters) == "ngram"
    name, tokens = await taken(drafters, committed)
    assert name == "ngram"
    assert tokens != continuation(committed.ids, 3)
    assert model.num_calls == 0
    model.is_ready = True
    assert next_name(drafters) == "draft_model"
    assert await taken(drafters, committed) == ("draft_model", continuation(committed.ids, 3))


async def test_lookup_fills_in_at_once_for_a_draft_that_is_lost() -> None:
    drafters, model = pair(fails_at=(0,))
    committed = TokenSequence([5, 9, 2])
    lost, filled_in = await drafters.propose(committed, 3)
    assert (lost.drafter, lost.proposal) == (DRAFT_MODEL.traits, None)
    assert filled_in.drafter == NGRAM.traits
    assert model.num_calls == 1


async def test_a_drafter_that_is_lost_alone_leaves_the_round_without_a_draft() -> None:
    drafters = alone(ScriptedDrafter([None], fails_at=(0,)))
    proposals = await drafters.propose(TokenSequence([5, 9, 2]), 3)
    assert [named.proposal for named in proposals] == [None]
    assert first_with_tokens(proposals) is None


async def test_without_drafters_nobody_ever_drafts() -> None:
    drafters = SessionDrafters([])
    assert (drafters.is_ready, drafters.next_drafter) == (False, None)
    assert await drafters.propose(TokenSequence([5]), 3) == []
    await drafters.close()


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
    drafters, made = beside_lookup(model)
    committed = TokenSequence([5, 9, 2, 5, 9])
    for _ in range(3):
        assert await taken(drafters, committed) == ("ngram", [2, 5, 9])
        committed.extend([2, 5, 9])
    assert (model.num_calls, len(made)) == (3, 1)  # the text is not read anew each time
    assert drafters.next_drafter is not None


async def test_closing_frees_both() -> None:
    model, lookup = ScriptedDrafter([None]), ScriptedDrafter([None])
    model.is_ready = False
    drafters = side_by_side(model, lambda: lookup)
    assert drafters.is_ready
    await drafters.close()
    assert model.is_closed
    assert lookup.is_closed


async def test_lookup_forgets_the_text_once_the_model_drafts_and_reads_it_again_when_missed() -> (
    None
):
    model = ScriptedDrafter([None], fails_at=(1, 3))
    drafters, made = beside_lookup(model)
    committed = TokenSequence([5, 9, 2, 5, 9])
    model.is_ready = False
    assert await taken(drafters, committed) == ("ngram", [2, 5, 9])
    assert made[0]._ends
    model.is_ready = True
    for name in ("draft_model", "ngram", "draft_model", "ngram"):
        assert (await taken(drafters, committed))[0] == name
        committed.extend([2, 5, 9])
        assert not made[0]._ends
    assert len(made) == 3
    await drafters.close()
    assert not made[-1]._ends


@pytest.mark.parametrize(
    ("asked", "config", "temperature"),
    [
        (None, "probabilistic", 0.7),
        (None, "greedy", 0.0),
        ("greedy", "probabilistic", 0.0),
        ("probabilistic", "greedy", 0.7),
    ],
)
def test_a_draft_is_sampled_or_greedy_as_the_request_says_else_the_config(
    asked: str | None, config: str, temperature: float
) -> None:
    request = GenerationRequest(
        request_id="r",
        prompt_ids=(1,),
        sampling=Sampling(temperature=0.7, seed=3, top_k=5, num_logprobs=2),
        eos_ids=(),
        max_tokens=4,
        speculation=SpeculationSettings(draft_sample_method=asked),
    )
    allowed = SpeculationLimits.model_validate({"draft_sample_method": config})
    assert draft_sampling(request, allowed) == Sampling(temperature=temperature, seed=3, top_k=5)
