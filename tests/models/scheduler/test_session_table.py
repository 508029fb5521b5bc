"""The header rules, rule by rule, and what rewriting a log keeps."""

from typing import Any

import pytest
from msgspec import structs

from models.kv.block_pool import BlockPool
from models.protocol.messages import NeedOpen, NeedPrefix, Open, Proposal, Propose, Sampling, Timing
from models.protocol.token_sequence import TokenSequence
from models.scheduler.sessions import Job, Session, SessionTable
from tests.cases.messages import EPOCH, opening, proposing
from tests.fakes.engines import CONSTRAINT

POOL = BlockPool(16, 4)


def make_open(**changes: Any) -> Open:
    return opening("s", Sampling(), **({"eos_ids": [1], "prompt_len": 2} | changes))


def make_propose(
    seq: int, base: list[int], tokens: list[int], epoch: int = EPOCH, session_id: str = "s"
) -> Propose:
    return proposing(session_id, seq, [*base, *tokens], 1, epoch=epoch, base_len=len(base))


@pytest.fixture
def table() -> SessionTable:
    return SessionTable(EPOCH, POOL.new_table)


@pytest.fixture
def session(table: SessionTable) -> Session:
    opened = table.open(make_open(), 0.0)
    assert opened is not None
    return opened


def accept(table: SessionTable, message: Propose) -> Session:
    session, replies = table.admit(message, "r", 0.0)
    assert replies == []
    assert session is not None
    session.rewrite(message.base_len, message.tokens)
    session.agreed_len = len(session.tokens) - 1
    return session


@pytest.mark.parametrize(
    ("session_id", "epoch"), [("other", EPOCH), ("s", EPOCH + 1)], ids=["session", "epoch"]
)
def test_unknown_is_answered_by_need_open(
    table: SessionTable, session: Session, session_id: str, epoch: int
) -> None:
    message = make_propose(4, [], [5], epoch, session_id)
    assert table.admit(message, "r", 0.0) == (
        None,
        [NeedOpen(session_id=session_id, seq=4, epoch=EPOCH)],
    )


def test_an_open_of_another_epoch_opens_nothing(table: SessionTable) -> None:
    assert table.open(make_open(epoch=EPOCH - 1), 0.0) is None
    assert len(table) == 0


def test_lower_seq_is_dropped(table: SessionTable, session: Session) -> None:
    accept(table, make_propose(5, [], [2, 3]))
    assert table.admit(make_propose(4, [], [9]), "late", 0.0) == (None, [])
    assert session.tokens.ids == [2, 3]
    assert session.reply_to == "r"


def test_equal_seq_repeats_the_answers_to_the_newest_address(
    table: SessionTable, session: Session
) -> None:
    message = make_propose(5, [], [2, 3])
    accept(table, message)
    assert table.admit(message, "again", 0.0) == (None, [])
    answer = Proposal(session_id="s", seq=5, tokens=[4], timing=Timing(), step_ms=0.0)
    session.answers.append(answer)
    assert table.admit(message, "again", 0.0) == (None, [answer])
    assert session.reply_to == "again"


def test_an_absence_is_from_the_last_answer_to_a_new_message(
    table: SessionTable, session: Session
) -> None:
    message = make_propose(5, [], [2, 3])
    session.last_active_s = 10.0
    table.admit(message, "r", 13.0)
    assert session.away_s == 3.0
    table.admit(message, "again", 20.0)
    assert (session.away_s, session.last_active_s) == (3.0, 20.0)


def test_need_prefix_is_repeated_too(table: SessionTable, session: Session) -> None:
    message = make_propose(5, [1, 2], [3])
    expected = NeedPrefix(session_id="s", seq=5, have_len=0, have_hash=0)
    assert table.admit(message, "r", 0.0) == (session, [expected])
    assert table.admit(message, "r", 0.0) == (None, [expected])


@pytest.mark.parametrize(
    ("base", "agreed"),
    [([2, 3, 4, 5, 6], [2, 3]), ([2, 3, 4, 8], [2, 3]), ([7, 7], [])],
    ids=["beyond the log", "rejected tokens of the right length", "other committed tokens"],
)
def test_a_base_that_is_not_held_is_answered_by_what_is_agreed(
    table: SessionTable, session: Session, base: list[int], agreed: list[int]
) -> None:
    accept(table, make_propose(1, [], [2, 3, 4]))
    session.append(9)  # drafted: not the sender's
    _, replies = table.admit(make_propose(2, base, [7]), "r", 0.0)
    have_len, have_hash = len(agreed), TokenSequence(agreed).hash_at(len(agreed))
    expected = NeedPrefix(session_id="s", seq=2, have_len=have_len, have_hash=have_hash)
    assert replies == [expected]
    accept(table, make_propose(3, agreed, [4, 5, 6, 7]))


def test_a_negative_base_is_a_mismatch(table: SessionTable, session: Session) -> None:
    message = structs.replace(make_propose(1, [], [2]), base_len=-1)
    _, replies = table.admit(message, "r", 0.0)
    assert isinstance(replies[0], NeedPrefix)


def test_rewrite_keeps_the_rows_of_equal_ids(session: Session) -> None:
    session.rewrite(0, [2, 3, 4, 5, 6])
    session.num_computed_tokens = 5
    session.rewrite(0, [2, 3, 4, 9])
    assert session.tokens.ids == [2, 3, 4, 9]
    assert session.num_computed_tokens == 3
    session.rewrite(2, [4])
    assert session.tokens.ids == [2, 3, 4]
    assert session.num_computed_tokens == 3
    assert session.tokens.hash_at(3) == TokenSequence([2, 3, 4]).hash_at(3)


def test_generated_tokens_follow_the_log(table: SessionTable) -> None:
    session = table.open(make_open(constraint=CONSTRAINT, prompt_len=3), 0.0)
    assert session is not None
    for base_len, tokens, expected in [
        (0, [2, 3], []),
        (2, [4, 5, 6], [5, 6]),
        (4, [7], [5, 7]),
        (1, [3, 4, 5], [5]),
        (0, [9, 9, 9, 9], [9]),
    ]:
        session.rewrite(base_len, tokens)
        assert session.generated.ids == expected
    session.append(8)
    assert session.generated.ids == [9, 8]


def test_the_same_open_again_changes_nothing(table: SessionTable, session: Session) -> None:
    accept(table, make_propose(1, [], [2, 3]))
    assert table.open(make_open(), 1.0) is None
    assert session.tokens.ids == [2, 3]


def test_new_terms_keep_log_and_seq(table: SessionTable, session: Session) -> None:
    accept(table, make_propose(5, [], [2, 3, 4]))
    session.num_computed_tokens = 3
    renewed = table.open(make_open(constraint=CONSTRAINT), 1.0)
    assert renewed is session
    assert session.generated.ids == [4]
    assert (session.seq, session.num_computed_tokens) == (5, 3)
    assert table.admit(make_propose(4, [], [9]), "r", 1.0) == (None, [])


def test_a_message_that_overtook_its_terms_is_acted_on_when_it_is_repeated(
    table: SessionTable, session: Session
) -> None:
    question = make_propose(5, [], [2, 3, 4])
    accept(table, question)
    session.job = Job(seq=5, ready_s=0.0, num_logits=1, steps_left=0)
    table.open(make_open(constraint=CONSTRAINT), 1.0)
    assert accept(table, question) is session
    assert table.admit(make_propose(4, [], [9]), "r", 1.0) == (None, [])


def test_close_frees_the_blocks_once(table: SessionTable, session: Session) -> None:
    session.table.resize(10)
    assert table.close("s", EPOCH + 1) is None
    assert table.close("s", EPOCH) is session
    assert table.close("s", EPOCH) is None
    assert POOL.num_free == POOL.num_blocks
    POOL.check([])


def test_a_job_accounts_for_all_time_between_its_answers() -> None:
    job = Job(seq=1, ready_s=1.0, num_logits=1, steps_left=0)
    job.end_pass(0.002, num_own_rows=4, num_rows=6, num_sessions=2)
    job.mask_ms += 1.0
    timing = job.take_timing(1.005)
    assert (timing.num_rows, timing.num_sessions) == (6, 2)
    assert timing.pass_ms + timing.mask_ms + timing.queue_ms == pytest.approx(5.0)
    assert timing.queue_ms == pytest.approx(2.0)
    assert job.take_timing(1.006).queue_ms == pytest.approx(1.0)


@pytest.mark.parametrize("changes", [{"cache_salt": "mine"}, {"adapter": "lora"}])
def test_another_salt_or_adapter_gives_up_the_blocks(
    table: SessionTable, session: Session, changes: dict[str, str]
) -> None:
    accept(table, make_propose(5, [], [2, 3, 4, 5, 6]))
    session.table.resize(5)
    session.num_computed_tokens = 5
    assert table.open(make_open(prompt_len=3), 1.0) is session
    assert session.num_computed_tokens == 5
    assert table.open(make_open(prompt_len=3, **changes), 1.0) is session
    assert (session.num_computed_tokens, session.table.block_ids) == (0, [])
    assert session.tokens.ids == [2, 3, 4, 5, 6]
    POOL.check([session.table])
    table.close("s")


def test_committed_tokens_end_where_the_log_is_rewritten(
    table: SessionTable, session: Session
) -> None:
    accept(table, make_propose(5, [], [2, 3, 4, 5, 6]))
    session.committed_len = 5
    session.rewrite(0, [2, 3, 4, 7])
    assert session.committed_len == 3
    session.append(8)
    assert session.committed_len == 3
    table.close("s")
