"""Both rules in real engines: what is sent, what is refused, sessions of both in one pass."""

import msgspec
import pytest

from models.protocol.messages import Failed, Proposal, Sampling, Verdict
from models.sampling.draft_probs import NUM_PAIRS
from tests.cases.target import PROMPT, text_of
from tests.fakes.engines import (
    CONSTRAINT,
    EOS_ID,
    VOCAB_SIZE,
    ScriptedMasks,
    make_draft,
    random_prompt,
    reference_greedy,
)
from tests.models.engine.asked import DraftOf, TargetOf

pytestmark = pytest.mark.every_engine

REJECTION = Sampling(seed=5, verification="rejection")
COUPLED = Sampling(seed=5)
GREEDY = Sampling(temperature=0, verification="rejection")


@pytest.fixture
def proposal(draft_of: DraftOf) -> Proposal:
    """Draft four tokens under rejection, by a model that is not the target's."""
    return draft_of(noise=0.01, sampling=REJECTION).ask(PROMPT, 4)


def test_a_rejection_draft_brings_a_row_for_each_token(
    target_of: TargetOf, proposal: Proposal
) -> None:
    assert proposal.draft_probs is not None
    assert proposal.draft_probs.num_pairs == NUM_PAIRS
    assert len(proposal.draft_probs.token_ids) == 4 * NUM_PAIRS * len(proposal.tokens)
    target = target_of(sampling=REJECTION)
    (verdict,) = target.ask(PROMPT, proposal.tokens, proposal.draft_probs)
    assert 0 <= verdict.num_accepted <= 4


@pytest.mark.parametrize("sampling", [COUPLED, GREEDY], ids=["coupled", "greedy"])
def test_no_probabilities_are_sent_where_none_are_needed(
    draft_of: DraftOf, sampling: Sampling
) -> None:
    assert draft_of(noise=0.01, sampling=sampling).ask(PROMPT, 4).draft_probs is None


def test_greedy_is_the_same_under_either_rule(target_of: TargetOf) -> None:
    expected = reference_greedy(PROMPT, 4)
    draft = [*expected[:2], (expected[2] + 1) % EOS_ID]
    for sampling in (GREEDY, Sampling(temperature=0)):
        verdicts = target_of(sampling=sampling).ask(PROMPT, draft, run_on=1)
        assert verdicts[0].num_accepted == 2
        assert text_of(verdicts, draft) == expected


def test_an_identical_draft_model_is_accepted_whole(
    target_of: TargetOf, draft_of: DraftOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.sampling.draft_probs.NUM_PAIRS", VOCAB_SIZE)
    for seed in range(20):
        sampling = msgspec.structs.replace(REJECTION, seed=seed)
        proposal = draft_of(sampling=sampling).ask(PROMPT, 4)
        target = target_of(sampling=sampling)
        (verdict,) = target.ask(PROMPT, proposal.tokens, proposal.draft_probs)
        assert verdict.num_accepted == len(proposal.tokens)


def test_plain_steps_behind_a_draft_draw_as_coupled_ones(
    target_of: TargetOf, draft_of: DraftOf
) -> None:
    """What follows a round is a function of the text so far and the seed."""
    proposal = draft_of(noise=0.05, sampling=REJECTION).ask(PROMPT, 4)
    target = target_of(sampling=REJECTION)
    verdicts = target.ask(PROMPT, proposal.tokens, proposal.draft_probs, run_on=5)
    text = text_of(verdicts, proposal.tokens)
    num_judged = verdicts[0].num_accepted + 1
    coupled = target_of(sampling=COUPLED)
    coupled.open()
    assert text_of(coupled.ask(PROMPT + text[:num_judged], run_on=4)) == text[num_judged:]


def test_sessions_of_both_rules_share_a_pass(target_of: TargetOf, draft_of: DraftOf) -> None:
    """Each session gets what it gets alone."""
    samplings = [
        Sampling(
            seed=i, verification=("coupled", "rejection")[i % 2], temperature=(1.0, 0.0)[i > 7]
        )
        for i in range(10)
    ]
    alone = []
    for sampling in samplings:
        proposal = draft_of(noise=0.01, sampling=sampling).ask(PROMPT, 4)
        target = target_of(sampling=sampling)
        (verdict,) = target.ask(PROMPT, proposal.tokens, proposal.draft_probs)
        alone.append((proposal.tokens, proposal.draft_probs, verdict.num_accepted, verdict.token))
    draft, target = draft_of(noise=0.01), target_of()
    for i, sampling in enumerate(samplings):
        draft.open(f"s{i}", sampling=sampling)
        target.open(f"s{i}", sampling=sampling)
        draft.send(PROMPT, 4, name=f"s{i}")
    proposals = {reply.session_id: reply for reply in draft.drain()}
    for name, proposal in proposals.items():
        target.send(PROMPT, proposal.tokens, proposal.draft_probs, name=name)
    verdicts = {reply.session_id: reply for reply in target.drain()}
    assert max(v.timing.num_sessions for v in verdicts.values()) > 2
    for i, expected in enumerate(alone):
        proposal, verdict = proposals[f"s{i}"], verdicts[f"s{i}"]
        assert expected == (
            proposal.tokens,
            proposal.draft_probs,
            verdict.num_accepted,
            verdict.token,
        )


def test_malformed_probabilities_fail_the_message_only(
    target_of: TargetOf, proposal: Proposal
) -> None:
    probs = proposal.draft_probs
    assert probs is not None
    target = target_of(sampling=REJECTION)
    broken = msgspec.structs.replace(probs, probs=probs.probs[:-1])
    (failed,) = target.ask(PROMPT, proposal.tokens, broken)
    assert isinstance(failed, Failed)
    assert failed.code == "invalid"
    assert "draft_probs.probs must have 1024 bytes" in failed.message
    (failed,) = target.ask(PROMPT, proposal.tokens[:2], probs)
    assert isinstance(failed, Failed)
    (verdict,) = target.ask(PROMPT, proposal.tokens, probs)
    assert isinstance(verdict, Verdict)


def test_the_target_cuts_probabilities_with_the_draft(
    target_of: TargetOf, draft_of: DraftOf, proposal: Proposal
) -> None:
    """The context has room for two draft tokens of four: the same judgement as of two."""
    short = target_of(sampling=REJECTION, max_model_len=len(PROMPT) + 3)
    (verdict,) = short.ask(PROMPT, proposal.tokens, proposal.draft_probs)
    two = draft_of(noise=0.01, sampling=REJECTION).ask(PROMPT, 2)
    assert two.tokens == proposal.tokens[:2]
    whole = target_of(sampling=REJECTION)
    (expected,) = whole.ask(PROMPT, two.tokens, two.draft_probs)
    assert (verdict.num_accepted, verdict.token) == (expected.num_accepted, expected.token)


def test_new_terms_count_the_text_again(target_of: TargetOf) -> None:
    """A session opened again with penalties knows the text it already has."""
    penalised = Sampling(seed=5, frequency_penalty=1.0, repetition_penalty=1.5)
    text = PROMPT + random_prompt(2, 6)
    target = target_of()
    target.open(sampling=COUPLED)
    target.ask(text)
    target.open(sampling=penalised)
    again = text_of(target.ask(text, base_len=len(text) - 1, run_on=6))
    fresh, plain = [], []
    for sampling, found in ((penalised, fresh), (COUPLED, plain)):
        target = target_of(sampling=sampling)
        target.open()
        found += text_of(target.ask(text, run_on=6))
    assert again == fresh != plain


def test_a_draft_ended_by_its_masks_brings_no_row_too_many(draft_of: DraftOf) -> None:
    def two_tokens(generated: list[int]) -> set[int]:
        return set(range(30)) if len(generated) < 2 else set()

    draft = draft_of(make_draft(ScriptedMasks(two_tokens)))
    draft.open(sampling=REJECTION, constraint=CONSTRAINT)
    proposal = draft.ask(PROMPT, 4)
    assert (len(proposal.tokens), proposal.cut) == (2, "mask_missing")
    assert proposal.draft_probs is not None
    assert len(proposal.draft_probs.probs) == 2 * 4 * NUM_PAIRS
