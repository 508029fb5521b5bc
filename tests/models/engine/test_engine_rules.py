"""Both rules in real engines: what is sent, what is refused, sessions of both in one pass."""

import msgspec
import pytest

from models.engine.draft import DraftEngine
from models.engine.target import TargetEngine
from models.protocol.messages import DraftProbs, Failed, Proposal, Sampling, Verdict
from models.sampling.draft_probs import NUM_PAIRS
from tests.cases.messages import opening, proposing, verifying
from tests.fakes.engines import (
    CONSTRAINT,
    EOS_ID,
    VOCAB_SIZE,
    ScriptedMasks,
    drain,
    make_draft,
    make_target,
    random_prompt,
    reference_greedy,
)

pytestmark = pytest.mark.every_engine

PROMPT = random_prompt(1, 12)
REJECTION = Sampling(seed=5, verification="rejection")
COUPLED = Sampling(seed=5)
GREEDY = Sampling(temperature=0, verification="rejection")


def propose(engine: DraftEngine, sampling: Sampling, k: int = 4, **terms: object) -> Proposal:
    engine.submit(opening("s", sampling, len(PROMPT), **terms), "r")
    engine.submit(proposing("s", 1, PROMPT, k), "r")
    (reply,) = drain(engine)
    assert isinstance(reply, Proposal)
    return reply


def verify(
    engine: TargetEngine,
    sampling: Sampling,
    draft: list[int],
    draft_probs: DraftProbs | None = None,
    *,
    run_on: int = 0,
) -> list[Verdict]:
    engine.submit(opening("s", sampling, len(PROMPT)), "r")
    engine.submit(verifying("s", 1, PROMPT, draft, draft_probs, run_on=run_on), "r")
    replies = drain(engine)
    assert all(isinstance(reply, Verdict) for reply in replies), replies
    return replies


def text_of(verdicts: list[Verdict], draft: list[int]) -> list[int]:
    text: list[int] = []
    for verdict in verdicts:
        text += [*draft[: verdict.num_accepted], verdict.token]
        draft = []
    return text


def test_a_rejection_draft_brings_a_row_for_each_token() -> None:
    proposal = propose(make_draft(), REJECTION)
    assert proposal.draft_probs is not None
    assert proposal.draft_probs.num_pairs == NUM_PAIRS
    assert len(proposal.draft_probs.token_ids) == 4 * NUM_PAIRS * len(proposal.tokens)
    (verdict,) = verify(make_target(), REJECTION, proposal.tokens, proposal.draft_probs)
    assert 0 <= verdict.num_accepted <= 4


@pytest.mark.parametrize("sampling", [COUPLED, GREEDY], ids=["coupled", "greedy"])
def test_no_probabilities_are_sent_where_none_are_needed(sampling: Sampling) -> None:
    assert propose(make_draft(), sampling).draft_probs is None


def test_greedy_is_the_same_under_either_rule() -> None:
    expected = reference_greedy(PROMPT, 4)
    draft = [*expected[:2], (expected[2] + 1) % EOS_ID]
    for sampling in (GREEDY, Sampling(temperature=0)):
        verdicts = verify(make_target(), sampling, draft, run_on=1)
        assert verdicts[0].num_accepted == 2
        assert text_of(verdicts, draft) == expected


def test_an_identical_draft_model_is_accepted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.sampling.draft_probs.NUM_PAIRS", VOCAB_SIZE)
    for seed in range(20):
        sampling = msgspec.structs.replace(REJECTION, seed=seed)
        proposal = propose(make_draft(noise=0.0), sampling)
        (verdict,) = verify(make_target(), sampling, proposal.tokens, proposal.draft_probs)
        assert verdict.num_accepted == len(proposal.tokens)


def test_plain_steps_behind_a_draft_draw_as_coupled_ones() -> None:
    """What follows a round is a function of the text so far and the seed."""
    proposal = propose(make_draft(noise=0.05), REJECTION)
    verdicts = verify(make_target(), REJECTION, proposal.tokens, proposal.draft_probs, run_on=5)
    text = text_of(verdicts, proposal.tokens)
    num_judged = verdicts[0].num_accepted + 1
    engine = make_target()
    engine.submit(opening("s", COUPLED, len(PROMPT)), "r")
    engine.submit(verifying("s", 1, PROMPT + text[:num_judged], [], run_on=4), "r")
    assert text_of(drain(engine), []) == text[num_judged:]


def test_sessions_of_both_rules_share_a_pass() -> None:
    """Each session gets what it gets alone."""
    samplings = [
        Sampling(
            seed=i, verification=("coupled", "rejection")[i % 2], temperature=(1.0, 0.0)[i > 7]
        )
        for i in range(10)
    ]
    alone = []
    for sampling in samplings:
        proposal = propose(make_draft(), sampling)
        (verdict,) = verify(make_target(), sampling, proposal.tokens, proposal.draft_probs)
        alone.append((proposal.tokens, proposal.draft_probs, verdict.num_accepted, verdict.token))
    draft, target = make_draft(), make_target()
    for i, sampling in enumerate(samplings):
        for engine in (draft, target):
            engine.submit(opening(f"s{i}", sampling, len(PROMPT)), i)
        draft.submit(proposing(f"s{i}", 1, PROMPT, 4), i)
    proposals = {reply.session_id: reply for reply in drain(draft)}
    for i in range(len(samplings)):
        proposal = proposals[f"s{i}"]
        target.submit(verifying(f"s{i}", 1, PROMPT, proposal.tokens, proposal.draft_probs), i)
    verdicts = {reply.session_id: reply for reply in drain(target)}
    assert max(v.timing.num_sessions for v in verdicts.values()) > 2
    for i, expected in enumerate(alone):
        proposal, verdict = proposals[f"s{i}"], verdicts[f"s{i}"]
        assert expected == (
            proposal.tokens,
            proposal.draft_probs,
            verdict.num_accepted,
            verdict.token,
        )


def test_malformed_probabilities_fail_the_message_only() -> None:
    proposal = propose(make_draft(), REJECTION)
    probs = proposal.draft_probs
    assert probs is not None
    engine = make_target()
    engine.submit(opening("s", REJECTION, len(PROMPT)), "r")
    broken = msgspec.structs.replace(probs, probs=probs.probs[:-1])
    engine.submit(verifying("s", 1, PROMPT, proposal.tokens, broken), "r")
    (failed,) = drain(engine)
    assert isinstance(failed, Failed)
    assert failed.code == "invalid"
    assert "draft_probs.probs must have 1024 bytes" in failed.message
    engine.submit(verifying("s", 2, PROMPT, proposal.tokens[:2], probs), "r")
    (failed,) = drain(engine)
    assert isinstance(failed, Failed)
    engine.submit(verifying("s", 3, PROMPT, proposal.tokens, probs), "r")
    (verdict,) = drain(engine)
    assert isinstance(verdict, Verdict)


def test_the_target_cuts_probabilities_with_the_draft() -> None:
    """The context has room for two draft tokens of four: the same judgement as of two."""
    proposal = propose(make_draft(), REJECTION)
    short = make_target(max_model_len=len(PROMPT) + 3)
    (verdict,) = verify(short, REJECTION, proposal.tokens, proposal.draft_probs)
    two = propose(make_draft(), REJECTION, k=2)
    assert two.tokens == proposal.tokens[:2]
    (expected,) = verify(make_target(), REJECTION, two.tokens, two.draft_probs)
    assert (verdict.num_accepted, verdict.token) == (expected.num_accepted, expected.token)


def test_new_terms_count_the_text_again() -> None:
    """A session opened again with penalties knows the text it already has."""
    penalised = Sampling(seed=5, frequency_penalty=1.0, repetition_penalty=1.5)
    text = PROMPT + random_prompt(2, 6)
    engine = make_target()
    engine.submit(opening("s", COUPLED, len(PROMPT)), "r")
    engine.submit(verifying("s", 1, text, []), "r")
    drain(engine)
    engine.submit(opening("s", penalised, len(PROMPT)), "r")
    engine.submit(verifying("s", 2, text, [], base_len=len(text) - 1, run_on=6), "r")
    again = text_of(drain(engine), [])
    fresh = make_target()
    fresh.submit(opening("s", penalised, len(PROMPT)), "r")
    fresh.submit(verifying("s", 1, text, [], run_on=6), "r")
    assert again == text_of(drain(fresh), [])
    plain = make_target()
    plain.submit(opening("s", COUPLED, len(PROMPT)), "r")
    plain.submit(verifying("s", 1, text, [], run_on=6), "r")
    assert again != text_of(drain(plain), [])


def test_a_draft_ended_by_its_masks_brings_no_row_too_many() -> None:
    def two_tokens(generated: list[int]) -> set[int]:
        return set(range(30)) if len(generated) < 2 else set()

    engine = make_draft(ScriptedMasks(two_tokens))
    proposal = propose(engine, REJECTION, constraint=CONSTRAINT)
    assert (len(proposal.tokens), proposal.cut) == (2, "mask_missing")
    assert proposal.draft_probs is not None
    assert len(proposal.draft_probs.probs) == 2 * 4 * NUM_PAIRS
