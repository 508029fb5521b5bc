"""The registry of verification rules: each can be loaded, and a new one is served by its name."""

from __future__ import annotations

import msgspec
import pytest

from models.protocol.messages import Sampling, Verdict
from models.protocol.rules import COUPLED, RULES
from models.sampling.verification import needs_draft_probs, rule_function
from tests.cases.messages import opening, verifying
from tests.fakes.engines import drain, make_target, random_prompt
from tests.fakes.timid_rule import TIMID

PROMPT = random_prompt(1, 12)
NUM_TOKENS = 12


@pytest.mark.parametrize("name", list(RULES))
def test_every_rule_has_a_function_or_goes_by_the_targets_samples(name: str) -> None:
    rule = RULES[name]
    sampling = Sampling(verification=name)
    assert (rule_function(sampling) is None) == (not rule.function)
    assert needs_draft_probs(sampling) == rule.needs_draft_probs
    greedy = msgspec.structs.replace(sampling, temperature=0.0)
    assert rule_function(greedy) is None
    assert not needs_draft_probs(greedy)


def test_a_rule_that_is_not_there_is_refused_here_and_from_the_wire() -> None:
    with pytest.raises(ValueError, match="one of coupled, rejection, got 'timid'"):
        Sampling(verification=TIMID.name)
    with pytest.raises(msgspec.ValidationError, match="got 'timid'"):
        msgspec.json.decode(b'{"verification": "timid"}', type=Sampling)


def rounds(sampling: Sampling, drafts: list[list[int]]) -> tuple[list[int], list[int]]:
    """The text of a session that drafts what `drafts` says, and how much of each was accepted."""
    engine, ids, accepted = make_target(), list(PROMPT), []
    engine.submit(opening("s", sampling, len(PROMPT)), "r")
    for seq, draft in enumerate(drafts, start=1):
        engine.submit(verifying("s", seq, ids, draft), "r")
        (verdict,) = drain(engine)
        assert isinstance(verdict, Verdict)
        ids += [*draft[: verdict.num_accepted], verdict.token]
        accepted.append(verdict.num_accepted)
    return ids[len(PROMPT) :], accepted


def test_a_new_rule_verifies_by_its_name_and_gives_the_targets_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(RULES, TIMID.name, TIMID)
    plain, _ = rounds(Sampling(seed=5, verification=COUPLED.name), [[]] * NUM_TOKENS)
    timid = Sampling(seed=5, verification=TIMID.name)
    text, accepted = rounds(timid, [plain[:4], [], [*plain[3:5], plain[5] + 1], [plain[5] + 1]])
    assert accepted == [1, 0, 1, 0]
    assert text == plain[: len(text)]
    assert len(text) == 6
