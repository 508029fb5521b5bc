"""Asking a grammar host in tests: the real compiler, and one function for each message."""

from __future__ import annotations

from collections.abc import Callable

from models.grammar.compiler import GrammarCompiler
from models.grammar.host import GrammarHost
from models.grammar.limits import HostLimits
from models.protocol.messages import Grammar, GrammarCommit, GrammarOpen, MaskRequest, Masks
from models.protocol.token_sequence import TokenSequence
from tests.cases.grammar import TEN_SCHEMAS, json_schema

OPTIONAL = json_schema(TEN_SCHEMAS["optional"])
EPOCH = 7


class CountingCompiler:
    """The real compiler, with a count of its calls."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self.row_bytes = compiler.row_bytes
        self.compiled: list[Grammar] = []

    def compile(self, grammar: Grammar) -> object:
        self.compiled.append(grammar)
        return self._compiler.compile(grammar)


def make_host(
    compiler: CountingCompiler, clock: Callable[[], float] | None = None, **limits: float
) -> GrammarHost:
    return GrammarHost(
        compiler,  # type: ignore[arg-type]  # same methods
        HostLimits(**limits),  # type: ignore[arg-type]  # ints where ints are wanted
        **({"clock": clock} if clock else {}),
    )


def open_session(
    host: GrammarHost,
    session_id: str = "s",
    grammar: Grammar = OPTIONAL,
    epoch: int = EPOCH,
    max_forced: int = 0,
) -> object:
    return host.answer(
        GrammarOpen(session_id=session_id, epoch=epoch, grammar=grammar, max_forced=max_forced)
    )


def commit(
    host: GrammarHost,
    tokens: list[int],
    *,
    seq: int = 1,
    base: TokenSequence | None = None,
    session_id: str = "s",
    epoch: int = EPOCH,
) -> object:
    log = base or TokenSequence()
    return host.answer(
        GrammarCommit(
            session_id=session_id,
            epoch=epoch,
            seq=seq,
            base_len=len(log),
            prefix_hash=log.hash_at(len(log)),
            tokens=tokens,
        )
    )


def masks(
    host: GrammarHost,
    chain: list[int],
    num_rows: int,
    *,
    base: TokenSequence | None = None,
    session_id: str = "s",
    epoch: int = EPOCH,
) -> object:
    log = base or TokenSequence()
    return host.answer(
        MaskRequest(
            session_id=session_id,
            epoch=epoch,
            ticket=41,
            base_len=len(log),
            prefix_hash=log.hash_at(len(log)),
            chain=chain,
            num_rows=num_rows,
        )
    )


def rows_of(reply: object) -> list[bytes]:
    assert isinstance(reply, Masks)
    assert len(reply.rows) == reply.num_valid_rows * reply.row_bytes
    return [reply.rows[i : i + reply.row_bytes] for i in range(0, len(reply.rows), reply.row_bytes)]
