"""Sessions under grammars: answers the messages of the constraint service, one at a time.

A pure handler: messages in, replies out, no sockets, no tasks, no clock of its own. It holds a
compile cache (least recently used goes first; refusals are kept too) and a table of sessions. A
caller may go on answering while a grammar compiles. It asks `lacks`, compiles elsewhere and hands
the result in by `put`. The caller also watches the memory (`evict`, `forget`). A session holds
committed generated tokens only, and a mask request walks on a copy. So draft and target may ask for
the same session in any order, from any committed length they know of.

Repeats are harmless: opening an open session keeps it, committing committed tokens answers as the
first time. A commit that contradicts the committed tokens rolls back first, as everywhere in the
protocol. It needs a `seq` above all seen before, so a late message changes nothing.

A matcher that hits a limit is of no further use. Neither is its lexer, which it shares with the
other sessions of its grammar and which they may have filled. So a session that breaks for the first
time is forgotten. Its router opens and replays it on a fresh lexer. If it breaks again, the grammar
is refused, because the same tokens would always break it.

The host does not know the epoch of its process. A session belongs to the epoch it was opened with.
It never raises for what a message contains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from models.grammar.check import check_text
from models.grammar.compiler import GrammarCompiler
from models.grammar.limits import HostLimits
from models.grammar.session import GrammarText, resume_at, rows_after
from models.grammar.state import CompiledGrammar, MatcherBroken, walk_rows
from models.lru import LruDict
from models.protocol.errors import UnsupportedGrammar
from models.protocol.forced import NOTHING_FORCED, Forced
from models.protocol.grammars import GrammarCheck, GrammarChecked
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    Grammar,
    GrammarClose,
    GrammarCommit,
    GrammarCommitted,
    GrammarOpen,
    GrammarReady,
    GrammarRefused,
    GrammarStale,
    MaskMiss,
    MaskRequest,
    Masks,
)
from models.protocol.rewards import RewardRefused, RewardScore


class GrammarHost:
    """Answers constraint messages for one vocabulary.

    Args:
        compiler: compiles the grammars.
        limits: cache size, number of sessions, rows.
        clock: seconds, for measuring compile times and idle sessions.
    """

    def __init__(
        self,
        compiler: GrammarCompiler,
        limits: HostLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compiler = compiler
        self._limits = limits or HostLimits()
        self._clock = clock
        self._cache: LruDict[Grammar, CompiledGrammar | UnsupportedGrammar] = LruDict(
            self._limits.max_cached_grammars
        )
        self._sessions: LruDict[str, GrammarText] = LruDict(self._limits.max_sessions)
        # The tokens that broke a session's matcher, from the start, by its id.
        self._broken: LruDict[str, list[int]] = LruDict(self._limits.max_sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def compiler(self) -> GrammarCompiler:
        """The compiler of its grammars."""
        return self._compiler

    def handle(self, requests: Iterable[ConstraintRequest]) -> list[ConstraintReply]:
        """Answer a batch in order; messages without an answer leave none."""
        replies = (self.answer(request) for request in requests)
        return [reply for reply in replies if reply is not None]

    def answer(self, request: ConstraintRequest) -> ConstraintReply | None:
        """Return the reply to one message; None for a close and for a commit that came too late."""
        match request:
            case MaskRequest():
                return self._masks(request)
            case GrammarCommit():
                return self._commit(request)
            case GrammarOpen():
                return self._open(request)
            case GrammarCheck():
                return self._check(request)
            case GrammarClose():
                self._close(request)
                return None
            case RewardScore():  # never sent here: rewards have processes of their own
                return RewardRefused(
                    session_id=request.session_id,
                    seq=request.seq,
                    message="there are no rewards in this process",
                    is_client_error=False,
                )

    # --- compiled grammars --------------------------------------------------------------------

    def lacks(self, request: GrammarOpen) -> bool:
        """Return whether answering `request` would compile its grammar."""
        session = self._sessions.get(request.session_id)
        is_open = session is not None and session.epoch == request.epoch
        is_known = is_open and session is not None and session.grammar == request.grammar
        return not is_known and request.grammar not in self._cache

    def put(self, grammar: Grammar, compiled: CompiledGrammar | UnsupportedGrammar) -> None:
        """Keep what the compiler made of a grammar."""
        self._cache[grammar] = compiled

    def evict(self) -> int:
        """Drop the older half of the cached grammars that no session uses; return how many."""
        used = {session.grammar for session in self._sessions.values()}
        idle = [grammar for grammar in self._cache if grammar not in used]
        old = idle[: (len(idle) + 1) // 2]
        for grammar in old:
            del self._cache[grammar]
        return len(old)

    def forget(self) -> int:
        """Drop the grammar whose latest use is oldest, with its sessions; return their number.

        The sessions are unknown from then on: their routers open and replay them, on a fresh lexer.
        """
        if not self._sessions:
            return 0
        latest = {session.grammar: session.used_at for session in self._sessions.values()}
        oldest = min(latest, key=latest.__getitem__)
        self._cache.pop(oldest, None)
        gone = [name for name, session in self._sessions.items() if session.grammar == oldest]
        for session_id in gone:
            del self._sessions[session_id]
        return len(gone)

    # --- open ---------------------------------------------------------------------------------

    def _open(self, request: GrammarOpen) -> ConstraintReply:
        session = self._find(request.session_id, request.epoch)
        if session is not None and session.grammar == request.grammar:
            session.last_seq = -1  # a sender that opens again may count from the start
            return self._ready(request, session, 0.0)
        if session is None and not self._make_room():
            return GrammarRefused(
                session_id=request.session_id,
                message=f"{len(self._sessions)} sessions are open here, which is the limit",
                is_client_error=False,
            )
        started_at = self._clock()
        is_cached = request.grammar in self._cache
        compiled = self._compiled(request.grammar)
        if isinstance(compiled, UnsupportedGrammar):
            return GrammarRefused(
                session_id=request.session_id, message=compiled.message, is_client_error=True
            )
        opened = GrammarText(
            request.epoch, request.grammar, compiled.start(), self._clock(), compiled.loosened
        )
        self._sessions[request.session_id] = opened
        compile_ms = 0.0 if is_cached else max((opened.used_at - started_at) * 1e3, 1e-3)
        return self._ready(request, opened, compile_ms)

    def _ready(self, request: GrammarOpen, session: GrammarText, compile_ms: float) -> GrammarReady:
        session.max_forced = request.max_forced
        return GrammarReady(
            session_id=request.session_id,
            compile_ms=compile_ms,
            committed_len=len(session.tokens),
            forced=self._forced(session),
            loosened=session.loosened,
        )

    def _forced(self, session: GrammarText) -> Forced:
        """Return the tokens that are forced after those committed."""
        return session.state.forced(session.tokens.ids[-1:], session.max_forced)

    def _compiled(self, grammar: Grammar) -> CompiledGrammar | UnsupportedGrammar:
        found = self._cache.use(grammar)
        if found is not None:
            return found
        try:
            found = self._compiler.compile(grammar)
        except UnsupportedGrammar as refusal:
            found = refusal
        self.put(grammar, found)
        return found

    def _check(self, request: GrammarCheck) -> ConstraintReply:
        compiled = self._compiled(request.grammar)
        if isinstance(compiled, UnsupportedGrammar):
            return GrammarRefused(
                session_id=request.session_id, message=compiled.message, is_client_error=True
            )
        try:
            found = check_text(compiled, request.text)
        except MatcherBroken as broken:
            return GrammarRefused(
                session_id=request.session_id, message=_too_complex(broken), is_client_error=True
            )
        return GrammarChecked(
            session_id=request.session_id,
            num_bytes=found.num_bytes,
            may_end=found.may_end,
            expected=found.expected,
            loosened=compiled.loosened,
        )

    def _make_room(self) -> bool:
        if len(self._sessions) < self._limits.max_sessions:
            return True
        session_id, oldest = next(iter(self._sessions.items()))
        if self._clock() - oldest.used_at < self._limits.session_idle_s:
            return False
        del self._sessions[session_id]  # its router has gone silently, or will open again
        return True

    def _close(self, request: GrammarClose) -> None:
        """End an open session; one whose matcher broke just now is not, and may be opened again."""
        session = self._sessions.get(request.session_id)
        if session is not None and session.epoch == request.epoch:
            del self._sessions[request.session_id]
            self._broken.pop(request.session_id, None)

    # --- commit -------------------------------------------------------------------------------

    def _commit(self, request: GrammarCommit) -> ConstraintReply | None:
        session = self._find(request.session_id, request.epoch)
        if session is None:
            return GrammarStale(session_id=request.session_id, seq=request.seq, is_unknown=True)
        base_len = request.base_len
        if not session.tokens.holds(base_len, request.prefix_hash):
            committed_len, committed_hash = resume_at(session.tokens, base_len)
            return GrammarStale(
                session_id=request.session_id,
                seq=request.seq,
                committed_len=committed_len,
                committed_hash=committed_hash,
            )
        is_late = request.seq < session.last_seq
        session.last_seq = max(session.last_seq, request.seq)
        num_valid = session.tokens.num_common(base_len, request.tokens)
        try:
            if num_valid < len(request.tokens):
                if is_late and base_len + num_valid < len(session.tokens):
                    return None
                session.truncate(base_len + num_valid)
                for token in request.tokens[num_valid:]:
                    if not session.push(token):
                        break
                    num_valid += 1
            self._walk_again(request.session_id, session)
        except MatcherBroken as broken:
            return self._broken_commit(request, session, broken)
        return self._committed(request, session, base_len, num_valid)

    def _committed(
        self, request: GrammarCommit, session: GrammarText, base_len: int, num_valid: int
    ) -> GrammarCommitted:
        message = ""
        is_newest = base_len + num_valid == len(session.tokens)
        if num_valid < len(request.tokens):
            reason = "follows the end of the text" if session.state.has_ended else "is not allowed"
            message = (
                f"token {request.tokens[num_valid]} at position {base_len + num_valid} {reason}"
            )
        return GrammarCommitted(
            session_id=request.session_id,
            seq=request.seq,
            num_valid=num_valid,
            is_complete=session.completes[base_len + num_valid],
            message=message,
            forced=self._forced(session) if is_newest else NOTHING_FORCED,
        )

    def _walk_again(self, session_id: str, session: GrammarText) -> None:
        """Ask for the masks that broke this session before: a lost mask carries no reason."""
        ids = self._broken.get(session_id, [])
        num_committed = len(session.tokens)
        if ids[:num_committed] == session.tokens.ids:
            walk_rows(session.state.copy(), ids[num_committed:], 0)

    def _broken_commit(
        self, request: GrammarCommit, session: GrammarText, broken: MatcherBroken
    ) -> ConstraintReply:
        is_first = request.session_id not in self._broken
        self._drop_broken(request.session_id, session, request.base_len, request.tokens)
        if is_first:
            return GrammarStale(session_id=request.session_id, seq=request.seq, is_unknown=True)
        del self._broken[request.session_id]
        return GrammarRefused(
            session_id=request.session_id, message=_too_complex(broken), is_client_error=True
        )

    def _drop_broken(
        self, session_id: str, session: GrammarText, base_len: int, tokens: list[int]
    ) -> None:
        del self._sessions[session_id]
        self._cache.pop(session.grammar, None)
        self._broken[session_id] = [*session.tokens.ids[:base_len], *tokens]

    # --- masks --------------------------------------------------------------------------------

    def _masks(self, request: MaskRequest) -> ConstraintReply:
        session = self._find(request.session_id, request.epoch)
        if session is None:
            return _miss(request, "unknown")
        num_rows = request.num_rows
        if not 1 <= num_rows <= min(len(request.chain) + 1, self._limits.max_rows):
            return _miss(
                request,
                "failed",
                f"num_rows {num_rows} must be 1..{len(request.chain) + 1} (chain + 1) "
                f"and at most {self._limits.max_rows}",
            )
        tokens = session.tokens
        if not tokens.holds(request.base_len, request.prefix_hash):
            committed_len, committed_hash = resume_at(tokens, request.base_len)
            return MaskMiss(
                session_id=request.session_id,
                ticket=request.ticket,
                reason="stale",
                committed_len=committed_len,
                committed_hash=committed_hash,
            )
        try:
            rows = rows_after(session, request.base_len, request.chain, num_rows)
        except MatcherBroken as broken:
            self._drop_broken(request.session_id, session, request.base_len, request.chain)
            return _miss(request, "failed", _too_complex(broken))
        return Masks(
            session_id=request.session_id,
            ticket=request.ticket,
            committed_len=len(tokens),
            committed_hash=tokens.hash_at(len(tokens)),
            num_valid_rows=len(rows),
            row_bytes=self._compiler.row_bytes,
            rows=b"".join(rows),
        )

    def _find(self, session_id: str, epoch: int) -> GrammarText | None:
        session = self._sessions.get(session_id)
        if session is None or session.epoch != epoch:
            return None
        session.used_at = self._clock()
        self._sessions.use(session_id)
        return session


def _too_complex(broken: MatcherBroken) -> str:
    return f"the grammar became too complex: {broken.message}"


def _miss(request: MaskRequest, reason: str, message: str = "") -> MaskMiss:
    return MaskMiss(
        session_id=request.session_id,
        ticket=request.ticket,
        reason="unknown" if reason == "unknown" else "failed",
        message=message,
    )
