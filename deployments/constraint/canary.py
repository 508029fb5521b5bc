"""The child process that tries new grammars: each in a fork of its own (`fork.py`).

Started as `python -m deployments.constraint.canary SOCKET_FD PAGE_FD`. A fork has the tokenizer
and nothing of any other grammar.

One trial at a time; which comes next is the parent's choice (`trials.py`).
"""

from __future__ import annotations

import select
import socket
from dataclasses import asdict
from typing import Literal

import msgspec

from deployments.constraint.child import Child, load_compiler, lower_priority, run_child
from deployments.constraint.fork import Fork, ForkEnd, ForkLimits
from deployments.constraint.pipe import ConstraintConfig, Trial, Tried
from models.grammar.check import check_text
from models.grammar.compiler import GrammarCompiler
from models.grammar.state import MatcherBroken
from models.protocol.errors import UnsupportedGrammar
from models.protocol.grammars import GrammarChecked, Loosened

_MAX_MESSAGE_CHARS = 1 << 13
HUNG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)


def serve_trials(child: Child[GrammarCompiler]) -> None:
    """Answer `Trial`s until the parent closes the socket."""
    decoder = msgspec.msgpack.Decoder(list[Trial])
    lower_priority(child.config.niceness)
    number = 0
    while (frame := child.frames.next()) is not None:
        trials = decoder.decode(frame)
        child.page.take(len(trials))
        for trial in trials:
            child.page.compiling.begin(number)
            tried = _try(child, trial)
            child.page.compiling.finish()
            child.send([(number, tried)])
            number += 1


def _try(child: Child[GrammarCompiler], trial: Trial) -> Tried:
    compiler, config = child.loaded, child.config
    try:
        compiler.check(trial.grammar)
    except UnsupportedGrammar as refusal:
        return Tried(outcome="refused", message=refusal.message)
    limits = ForkLimits(trial.cpu_s, config.compile_memory_mb, config.compile_timeout_s)
    try:
        fork = Fork(lambda: _compiled(compiler, trial), limits)
    except OSError as error:  # no process to be had now
        return Tried(outcome="failed", message=f"no process for a trial: {error.strerror}")
    return _outcome(_watched(fork, child.link, config.compile_timeout_s), trial, config)


def _compiled(compiler: GrammarCompiler, trial: Trial) -> bytes:
    """Compile and say how it went, as an encoded `Tried`."""
    outcome: Literal["compiled", "refused"] = "compiled"
    message, compared = "", None
    dropped: tuple[Loosened, ...] = ()
    try:
        compiled = compiler.compile(trial.grammar)
        dropped = compiled.dropped
        if trial.text is not None:
            found = asdict(check_text(compiled, trial.text))
            compared = GrammarChecked(session_id="", loosened=compiled.loosened, **found)
    except UnsupportedGrammar as refusal:
        outcome, message = "refused", refusal.message
    except MatcherBroken as broken:
        outcome, message = "refused", f"the grammar became too complex: {broken.message}"
    tried = Tried(
        outcome=outcome,
        message=message[:_MAX_MESSAGE_CHARS],
        dropped=dropped,
        compared=compared,
    )
    return msgspec.msgpack.encode(tried)


def _watched(fork: Fork, link: socket.socket, timeout_s: float) -> ForkEnd:
    """Wait for the fork's result; end it when it is late or the parent is gone."""
    poller = select.poll()
    poller.register(fork, select.POLLIN)
    poller.register(link, HUNG_UP)
    events = dict(poller.poll(1e3 * timeout_s))
    return fork.end(is_late=fork.fileno() not in events)


def _outcome(end: ForkEnd, trial: Trial, config: ConstraintConfig) -> Tried:
    if end.result:
        return msgspec.msgpack.decode(end.result, type=Tried)
    outcome: Literal["costly", "failed"] = "costly" if end.is_costly else "failed"
    took = f"compiling it took {end.cpu_s:.2f} s of CPU time"
    if end.is_late:
        message = (
            f"{took} and was not done within {config.compile_timeout_s} s (compile_timeout_s), "
            f"the limit is {trial.cpu_s:.2f} s of CPU time (compile_cpu_s)"
        )
    elif end.used_up_cpu:
        message = (
            f"after {end.cpu_s:.2f} s of CPU time it was not compiled, "
            f"the limit is {trial.cpu_s:.2f} s (compile_cpu_s)"
        )
    elif end.has_crashed:
        message = f"{took} and ended the process it was tried in (status {end.status})"
    elif end.is_costly:
        message = (
            f"{took} and needs more memory than the limit of {config.compile_memory_mb} MB "
            "(compile_memory_mb)"
        )
    else:
        message = f"its trial was ended from outside (signal {-end.status})"
    return Tried(outcome=outcome, message=message)


if __name__ == "__main__":
    run_child(load_compiler, serve_trials)
