"""State of the engine's sessions, and the header rules of `models/protocol/messages.py`.

A session's tokens are exactly the ids its KV rows were computed from, drafted and not yet verified
ones included. So `(base_len, prefix_hash)` of the next message tells which rows stay. A message
rewrites the tokens from `base_len` on; rows of ids that do not change are kept.

Invariants: `num_computed_tokens <= len(tokens)`; `seq` never falls while the session lives;
answers are stored until a higher `seq` comes. Knows neither tensors' contents nor what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor

from models.grammar.masks import MaskWait
from models.kv.block_pool import BlockTable
from models.protocol.messages import EngineQuestion, EngineReply, NeedOpen, NeedPrefix, Open
from models.protocol.parts import Inspection, Timing, TokenLogprobs
from models.protocol.token_sequence import TokenSequence
from models.sampling.draft_probs import DraftRow
from models.sampling.draft_tree import DraftTree
from models.sampling.penalties import TokenHistory
from models.scheduler.row_states import RowStates


class LogitsTaker(Protocol):
    """Takes the logits of a fork's rows, in their order."""

    @property
    def next_row(self) -> int:
        """The first row of the session whose logits it has not."""
        ...

    def take(self, first_row: int, logits: Tensor) -> None:
        """Take those of rows `first_row`, `first_row` + 1, ...: float32 [R, V]."""
        ...


@dataclass(slots=True, eq=False)
class Job:
    """The message a session is working on; it lives until its last answer.

    The last `num_logits` tokens are the rows whose logits are sampled from next.
    """

    seq: int
    ready_s: float  # since when its next rows could have run; passes are filled in this order
    num_logits: int
    steps_left: int  # steps after the next one that the message asks for
    deadline_s: float = math.inf  # deadline of a draft; the engine ends it then with what it has
    draft: list[int] = field(default_factory=list)  # to verify (target) or made so far (draft)
    tree: DraftTree | None = None  # its first path is `draft`; None: there is no other path
    candidates: list[list[int]] = field(default_factory=list)  # for its draft, by place and rank
    margins: list[float] = field(default_factory=list)  # of their scores, first over second
    side_states: Tensor | None = None  # [side rows, F] of the newest pass; where heads draft
    draft_rows: list[DraftRow] = field(default_factory=list)  # where it came from; `rejection` only
    guess: list[int] = field(default_factory=list)  # guess of the draft; its rows' tokens
    replays: bool = False  # its answer is what is said in each row of the guess
    num_ranks: int = 1  # candidates that are noted for each drafted token
    num_asked: int = 0  # tokens of the draft that was asked for
    num_branches: int = 0  # outcomes to draft after once it is made; 0: none
    num_ahead: int = 0  # of its draft, the tokens that were there before it was asked for
    drafts_itself: bool = False  # its plain steps may verify drafts of the engine's own
    has_own_draft: bool = False  # `draft` is one
    part: int = 0
    is_prompt: bool = False  # its rows are many; they are computed in chunks
    is_forked: bool = False  # forks of its session compute the rest
    mask: MaskWait | None = None  # masks of the rows above; None: unconstrained
    mask_wait_s: float | None = None  # for it, with logits there; None: the engine's limit
    logits: Tensor | None = None  # [num_logits, V] computed, but its masks are not there yet
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # for the next answer's tokens
    inspection: Inspection | None = None  # for the next answer; None: not asked for
    held_since_s: float = 0.0
    since_s: float = 0.0  # arrival, or the last answer: what follows is the next answer's time
    notified_s: float = 0.0  # when its sender last got a sign of life
    pass_ms: float = 0.0
    mask_ms: float = 0.0
    num_rows: int = 0  # rows of its last pass, all sessions together
    num_sessions: int = 0  # in its last pass
    num_rows_done: int = 0  # its own, of all its passes

    def __post_init__(self) -> None:
        """Begin the time of the first answer with the job."""
        self.since_s = self.ready_s

    @property
    def num_side_rows(self) -> int:
        """Rows of its tree beside the first path: they follow the others' in a pass."""
        return 0 if self.tree is None else len(self.tree) - self.num_logits

    @property
    def num_drafted(self) -> int:
        """Draft tokens, on all paths."""
        return len(self.draft) if self.tree is None else len(self.tree) - 1

    def end_pass(
        self, duration_s: float, num_own_rows: int, num_rows: int, num_sessions: int
    ) -> None:
        """Note what that pass took and held, for this job and in all."""
        self.num_rows_done += num_own_rows
        self.pass_ms += duration_s * 1e3
        self.num_rows = num_rows
        self.num_sessions = num_sessions

    def take_timing(self, now: float) -> Timing:
        """Return the times since the last answer, which start again at zero."""
        elsewhere_ms = (now - self.since_s) * 1e3 - self.pass_ms - self.mask_ms
        timing = Timing(
            queue_ms=max(0.0, elsewhere_ms),
            pass_ms=self.pass_ms,
            mask_ms=self.mask_ms,
            num_rows=self.num_rows,
            num_sessions=self.num_sessions,
        )
        self.since_s, self.pass_ms, self.mask_ms = now, 0.0, 0.0
        return timing


@dataclass(slots=True, eq=False)
class Session:
    """One session on this engine, or a fork of one: its tokens with others after them.

    A fork is the engine's own and is asked for nothing; its rows are computed for their logits.
    """

    opened: Open
    order: float  # rises with every new session: a higher one is younger
    table: BlockTable
    last_active_s: float
    away_s: float = math.inf  # from its last answer to its newest message
    tokens: TokenSequence = field(default_factory=TokenSequence)
    generated: TokenSequence = field(default_factory=TokenSequence)  # generated, if constrained
    history: TokenHistory | None = None  # counts of its tokens; if there are penalties
    num_computed_tokens: int = 0  # first tokens whose KV rows are in the cache
    seq: int = -1
    reply_to: object = None
    answers: list[EngineReply] = field(default_factory=list)  # to `seq`, in order
    agreed_len: int = 0  # a prefix that the sender surely has
    committed_len: int = 0  # first tokens that are no guess: none of an open draft
    is_replay: bool = False  # its text is known already: nobody waits for its drafts
    asked_len: int = 0  # tokens looked for in the prefix cache since it has had no blocks
    num_cached_tokens: int = 0  # found there and not yet reported
    mask_base_len: int = 0  # generated tokens the matcher had committed when last heard of
    job: Job | None = None
    prompt_logprobs: list[bytes] = field(default_factory=list)  # for ids 1, 2, ... so far; packed
    is_past_prompt: bool = False  # the sender has more than the prompt, so it has those
    taker: LogitsTaker | None = None  # set in a fork
    states: RowStates = field(default_factory=RowStates)  # its newest rows'; where heads draft
    num_head_tokens: int = 0  # first tokens whose rows are in the cache of the heads
    own_length: int = 0  # tokens of drafts of the engine's own; 0: as many as pay
    copied_block: int | None = None  # a fork's: the next pass copies its rows into the fork's own
    adapter: int = 0  # number of its adapter on this engine, from 1; 0: none

    @property
    def session_id(self) -> str:
        """Its id, the same on every actor."""
        return self.opened.session_id

    @property
    def needs_prompt_logits(self) -> bool:
        """True if prompt rows must be computed for their logits, even if their KV is held."""
        opened = self.opened
        return self.taker is not None or (
            opened.sampling.num_prompt_logprobs >= 0
            and not self.is_past_prompt
            and len(self.prompt_logprobs) < opened.prompt_len - 1
        )

    @property
    def first_prompt_logits(self) -> int:
        """The first of these rows."""
        return len(self.prompt_logprobs) if self.taker is None else self.taker.next_row

    def num_prompt_logits(self, start: int, num_rows: int) -> int:
        """Return how many rows of [start, start + num_rows) must give logits for the prompt.

        They are the last ones before the row of the prompt's last token. A fork's are before that
        of its last token.
        """
        if not self.needs_prompt_logits:
            return 0
        first = max(start, self.first_prompt_logits)
        end = self.opened.prompt_len if self.taker is None else len(self.tokens)
        return max(0, min(start + num_rows, end - 1) - first)

    @property
    def may_use_cached_prefix(self) -> bool:
        """True if rows without logits may be found in the prefix cache instead of computed."""
        return not self.needs_prompt_logits

    def rewrite(self, base_len: int, tokens: Sequence[int]) -> None:
        """Make the log `base_len` tokens long and append `tokens`; equal ids keep their KV."""
        kept = base_len + self.tokens.num_common(base_len, tokens)
        if self.history is not None:
            self.history.remove(kept, self.tokens.ids[kept:])
            self.history.add(kept, tokens[kept - base_len :])
        del self.prompt_logprobs[max(kept - 1, 0) :]
        self.tokens.truncate(kept)
        self.tokens.extend(tokens[kept - base_len :])
        self._forget_rows(kept)
        self.committed_len = min(self.committed_len, kept)
        if self.opened.constraint is not None:
            prompt_len = self.opened.prompt_len
            self.generated.truncate(max(kept - prompt_len, 0))
            self.generated.extend(self.tokens.ids[max(kept, prompt_len) :])

    def append(self, token_id: int) -> None:
        """Appends one id."""
        if self.history is not None:
            self.history.add(len(self.tokens), (token_id,))
        self.tokens.extend((token_id,))
        if self.opened.constraint is not None:
            self.generated.extend((token_id,))

    def reserve_rows(self, start: int) -> None:
        """Makes room for all tokens, to be computed from row `start` on.

        `start` comes from `table.first_row`. Rows after it no longer count as computed: those of
        shared blocks are given up here.

        Raises:
            OutOfBlocks: the pool has too few free blocks; nothing was changed.
        """
        self.table.reserve(len(self.tokens), start)
        if start < self.num_computed_tokens:
            self._forget_rows(start)

    def adopt_blocks(self, first: int, block_ids: list[int]) -> None:
        """Hold these blocks from block `first` on; they were computed of the same ids."""
        self.table.adopt(first, block_ids)
        self.num_computed_tokens = self.num_head_tokens = self.table.num_tokens

    def _forget_rows(self, start: int) -> None:
        """Rows from `start` on are lost, or of other tokens now."""
        self.num_computed_tokens = min(self.num_computed_tokens, start)
        self.num_head_tokens = min(self.num_head_tokens, start)
        self.states.truncate(start)

    def take_cached_tokens(self) -> int:
        """Tokens found in the prefix cache since this was last asked."""
        count, self.num_cached_tokens = self.num_cached_tokens, 0
        return count

    def release_blocks(self) -> None:
        """Gives the KV blocks back; the tokens stay, so the rows can be computed again.

        Blocks that other sessions or the prefix cache share stay theirs.
        """
        self.table.free()
        self._forget_rows(0)
        self.copied_block = None
        self.asked_len = 0
        self.num_cached_tokens = 0


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """Rows [start, start + num_rows) of a session's tokens, to compute in one pass."""

    session: Session
    job: Job
    start: int
    num_rows: int
    num_logits: int  # the last rows'; 0 if more rows must follow in a later pass
    num_prompt_logits: int = 0  # rows before these, for the prompt's logprobs
    is_prompt: bool = False  # all of a long need, or a chunk of it

    @property
    def num_side_rows(self) -> int:
        """Rows of side paths in that pass beside these, until its verdicts."""
        return self.job.num_side_rows if self.num_logits else 0

    @property
    def num_pass_rows(self) -> int:
        """All rows of that pass, until its verdicts."""
        return self.num_rows + self.num_side_rows


class Admitted(NamedTuple):
    """The outcome of a message's header: a session to act for, or replies, or nothing."""

    session: Session | None
    replies: list[EngineReply]


class SessionTable:
    """All sessions of one engine.

    Args:
        epoch: of this engine's life; messages of another one are answered by `NeedOpen`.
        new_table: makes an empty block table.
    """

    def __init__(self, epoch: int, new_table: Callable[[], BlockTable]) -> None:
        self._epoch = epoch
        self._new_table = new_table
        self._sessions: dict[str, Session] = {}
        self._num_opened = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        """Sessions in the order they were opened."""
        return iter(self._sessions.values())

    def get(self, session_id: str) -> Session | None:
        """Return the session with that id, if it is open."""
        return self._sessions.get(session_id)

    def open(self, message: Open, now: float) -> Session | None:
        """Start a session or renew its terms; the session if its terms are new, else None.

        New terms keep the tokens and their KV, which do not depend on them. They keep `seq`, so
        that late messages stay late. Stored answers and the running job were of the old terms. The
        job's message may have overtaken the new ones, so a repeat of it is acted on.
        """
        if message.epoch != self._epoch:
            return None
        session = self._sessions.get(message.session_id)
        if session is None:
            return self._add(message, now)
        session.last_active_s = now
        if session.opened == message:
            return None
        old, session.opened = session.opened, message
        if old.sampling != message.sampling or old.adapter != message.adapter:
            session.prompt_logprobs = []
        if old.salt != message.salt:
            session.release_blocks()  # they may be those of others who have the old salt
        session.answers = []
        if session.job is not None:
            session.seq -= 1
        session.mask_base_len = 0
        session.generated = TokenSequence()
        if message.constraint is not None:
            session.generated.extend(session.tokens.ids[message.prompt_len :])
        return session

    def _add(self, message: Open, now: float) -> Session:
        session = Session(message, self._num_opened, self._new_table(), now)
        self._num_opened += 1
        self._sessions[message.session_id] = session
        return session

    def close(self, session_id: str, epoch: int | None = None) -> Session | None:
        """Forget a session (of this epoch, where one is given) and free its blocks."""
        if epoch is not None and epoch != self._epoch:
            return None
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.release_blocks()
        return session

    def admit(self, message: EngineQuestion, reply_to: object, now: float) -> Admitted:
        """Applies the header rules. The tokens are not changed; a new `seq` has been taken over."""
        session = self._sessions.get(message.session_id)
        if session is None or message.epoch != self._epoch:
            answer = NeedOpen(session_id=message.session_id, seq=message.seq, epoch=self._epoch)
            return Admitted(None, [answer])
        away_s, session.last_active_s = now - session.last_active_s, now
        if message.seq < session.seq:
            return Admitted(None, [])
        session.reply_to = reply_to
        if message.seq == session.seq:
            return Admitted(None, list(session.answers))
        session.seq, session.away_s = message.seq, away_s
        session.answers = []
        correction = self._correction(session, message)
        if correction is None:
            return Admitted(session, [])
        session.answers.append(correction)
        return Admitted(session, [correction])

    @staticmethod
    def _correction(session: Session, message: EngineQuestion) -> NeedPrefix | None:
        """`NeedPrefix` with a length the sender can use, where its prefix is not held."""
        tokens = session.tokens
        base_len = message.base_len
        if tokens.holds(base_len, message.prefix_hash):
            return None
        # Up to agreed_len the ids came from the sender as committed. If it names other ids within
        # them, no length above 0 is known to be common.
        have_len = session.agreed_len if base_len > session.agreed_len else 0
        return NeedPrefix(
            session_id=session.session_id,
            seq=message.seq,
            have_len=have_len,
            have_hash=tokens.hash_at(have_len),
        )
