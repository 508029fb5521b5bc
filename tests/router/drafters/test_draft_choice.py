"""Which of several draft models a session has."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from router.drafters.draft_choice import DraftChoice, pinned_draft
from router.drafters.draft_model import draft_model
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits
from router.planning.acceptance import AcceptancePool
from router.planning.costs import PassCosts
from router.ports import DrafterTraits, TaskClass
from router.types import SpeculationSettings
from tests.fakes.pools import ScriptedPool
from tests.fakes.sessions import NO_LOOKUP, Front, asked
from tests.router.replies import proposal

SMALL, TINY = (draft_model(name, name, name).traits for name in ("small", "tiny"))


def costs(step_ms: dict[str, float]) -> PassCosts:
    """Passes of 10 ms whatever their rows; steps as given."""
    found = PassCosts()
    for num_rows in (1, 2, 4, 9, 18):
        found.observe_pass(num_rows, 10.0 + num_rows / 1e3)
    for traits in (SMALL, TINY):
        if traits.name in step_ms:
            found.observe_draft(traits, proposal(1, step_ms[traits.name]))
    return found


def pools(**acceptance: float) -> dict[tuple[str, TaskClass], AcceptancePool]:
    return {(name, "free"): AcceptancePool(rate) for name, rate in acceptance.items()}


def choose(choice: DraftChoice, number: int = 0, **terms: object) -> str:
    said = {"verification": "coupled", "shares": {}, "key": f"s{number}", "max_length": 8} | terms
    drafts: list[DrafterTraits] = [SMALL, TINY]
    return choice.choose(drafts, "free", **said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("small", "tiny", "better"),
    [
        ((0.9, 1.0), (0.5, 0.5), "small"),  # accepted far more
        ((0.9, 5.0), (0.8, 0.5), "tiny"),  # nearly as often accepted, a tenth of the cost
    ],
)
def test_after_both_were_tried_the_one_that_earns_more_is_chosen(
    small: tuple[float, float], tiny: tuple[float, float], better: str
) -> None:
    known = pools(small=small[0], tiny=tiny[0])
    choice = DraftChoice(costs({"small": small[1], "tiny": tiny[1]}), known, lambda: 0)
    chosen = [choose(choice, number) for number in range(120)]
    assert set(chosen[:6]) == {"small", "tiny"}
    later = Counter(chosen[6:])
    assert later[better] > 100
    assert len(later) == 2, "the other one is tried again now and then"


def test_what_never_drafted_is_tried_first() -> None:
    choice = DraftChoice(costs({"small": 1.0}), pools(small=0.9), lambda: 0)
    chosen = Counter(choose(choice, number) for number in range(10))
    assert chosen["tiny"] == chosen["small"] == 5


async def test_what_was_chosen_is_known_under_other_limits_as_well() -> None:
    front, chosen = Front(ScriptedPool()), list[str]()
    pools = {name: ScriptedPool(name=name) for name in ("small", "tiny")}
    services = replace(front.services, draft_pools=pools)
    front.generator = SpeculativeGenerator(services, max_model_len=200)
    for number in range(4):
        front.generator.set_limits(NO_LOOKUP, SessionLimits())
        speculation = SpeculationSettings(num_speculative_tokens=2)
        wanted = asked(request_id=f"s{number}", speculation=speculation)
        _, end = await front.run(wanted, num_turns=20)
        chosen.append(end.replicas["draft"])
    assert chosen == ["small-1", "tiny-1"] * 2


def test_shares_of_all_decide_alone_and_a_key_falls_into_the_same_one() -> None:
    choice = DraftChoice(costs({"small": 1.0, "tiny": 1.0}), pools(small=0.9), lambda: 0)
    shares = {"small": 0.25, "tiny": 0.75}
    chosen = [choose(choice, number, shares=shares) for number in range(800)]
    assert chosen == [choose(choice, number, shares=shares) for number in range(800)]
    assert 0.7 < Counter(chosen)["tiny"] / 800 < 0.8
    assert {choose(choice, n, shares={"small": 1, "tiny": 0}) for n in range(50)} == {"small"}


def test_what_is_pinned_to_nobody_is_chosen() -> None:
    known = pools(small=0.95, tiny=0.1)
    choice = DraftChoice(costs({"small": 1.0, "tiny": 1.0}), known, lambda: 0)
    shares = {"tiny": 0.3}
    pinned = {number for number in range(800) if pinned_draft(["tiny"], shares, f"s{number}")}
    assert 0.25 < len(pinned) / 800 < 0.35
    chosen = [choose(choice, number, shares=shares) for number in range(800)]
    assert {chosen[number] for number in pinned} == {"tiny"}
    others = Counter(name for number, name in enumerate(chosen) if number not in pinned)
    assert others["small"] > 0.9 * others.total(), "it is worth more"


def test_a_larger_share_keeps_the_sessions_of_a_smaller_one() -> None:
    keys = [f"s{number}" for number in range(400)]
    few = {key for key in keys if pinned_draft(["small", "tiny"], {"tiny": 0.2}, key)}
    more = {key for key in keys if pinned_draft(["small", "tiny"], {"tiny": 0.5}, key)}
    assert few < more


def test_a_text_that_depends_on_the_draft_always_has_the_first() -> None:
    choice = DraftChoice(costs({"small": 5.0, "tiny": 0.1}), pools(tiny=0.99), lambda: 0)
    shares = {"tiny": 1.0}
    terms = {"verification": "rejection", "shares": shares}
    assert {choose(choice, number, **terms) for number in range(50)} == {"small"}
