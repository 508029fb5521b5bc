"""The child process that tries new grammars: each in a fork of its own, which it outlives.

Started as `python -m deployments.constraint.canary SOCKET_FD PAGE_FD`. A fork has the tokenizer
and nothing of any other grammar; it is ended by the system when it has used its CPU time
(SIGPROF) or its memory (RLIMIT_DATA), and whatever it does, the canary itself and every other
grammar are as before. The system measures what the trial took: CPU time does not pass while other
processes have the core, so a busy machine makes no grammar too slow, only late.

One trial at a time; which comes next is the parent's choice (`trials.py`).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from dataclasses import asdict, dataclass
from typing import Literal

import msgspec

from deployments.constraint.child import Child, lower_priority, run_child
from deployments.constraint.memory import data_bytes, limit_memory
from deployments.constraint.pipe import (
    OUT_OF_MEMORY_EXIT,
    ConstraintConfig,
    Trial,
    Tried,
)
from models.grammar.check import check_text
from models.grammar.compiler import GrammarCompiler, MatcherBroken
from models.protocol.errors import UnsupportedGrammar

_MAX_RESULT_BYTES = 1 << 16
_ENDED_ITSELF = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS})
_HUNG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)


@dataclass(frozen=True)
class _End:
    """How a trial's process ended."""

    result: bytes  # what it wrote, "" when it was ended
    status: int  # exit status, or minus the signal
    cpu_s: float
    is_late: bool  # ended for its wall-clock time


def serve_trials(child: Child) -> None:
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


def _try(child: Child, trial: Trial) -> Tried:
    try:
        child.compiler.check(trial.grammar)
    except UnsupportedGrammar as refusal:
        return Tried(outcome="refused", message=refusal.message)
    reading, writing = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:  # no process to be had now
        os.close(reading)
        os.close(writing)
        return Tried(outcome="failed", message=f"no process for a trial: {error.strerror}")
    if not pid:
        _run_trial(child.compiler, trial, child.config, writing)
    os.close(writing)
    with open(reading, "rb", buffering=0) as results:
        end = _watch(pid, results.fileno(), child.link, child.config.compile_timeout_s)
    return _outcome(end, trial, child.config)


def _run_trial(
    compiler: GrammarCompiler, trial: Trial, config: ConstraintConfig, writing: int
) -> None:
    """Compile, write the result and end the process, which is the fork. Never returns."""
    status = 1
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 2)  # the allocator's last words; the parent says it better
        signal.setitimer(signal.ITIMER_REAL, 2 * config.compile_timeout_s)  # for an orphan
        signal.setitimer(signal.ITIMER_PROF, trial.cpu_s)
        used = data_bytes()
        if used:
            limit_memory(used + (config.compile_memory_mb << 20))
        started_s = time.process_time()
        outcome, message, compared = "compiled", "", None
        try:
            compiled = compiler.compile(trial.grammar)
            if trial.text is not None:
                compared = asdict(check_text(compiled, trial.text))
        except UnsupportedGrammar as refusal:
            outcome, message = "refused", refusal.message
        except MatcherBroken as broken:
            outcome, message = "refused", f"the grammar became too complex: {broken.message}"
        tried = {
            "type": "tried",
            "outcome": outcome,
            "message": message[: _MAX_RESULT_BYTES // 8],
            "cpu_s": time.process_time() - started_s,
            "memory_mb": (data_bytes() - used) / (1 << 20),
            "compared": compared,
        }
        os.write(writing, msgspec.msgpack.encode(tried))
        status = 0
    except MemoryError:
        status = OUT_OF_MEMORY_EXIT
    finally:
        os._exit(status)


def _watch(pid: int, results: int, link: socket.socket, timeout_s: float) -> _End:
    """Wait for the fork's result; end it when it is late or the parent is gone."""
    poller = select.poll()
    poller.register(results, select.POLLIN)
    poller.register(link, _HUNG_UP)
    events = dict(poller.poll(1e3 * timeout_s))
    result = b""
    if results in events:
        result = os.read(results, _MAX_RESULT_BYTES)
    else:
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so the id is its own
    _, status, usage = os.wait4(pid, 0)
    cpu_s = usage.ru_utime + usage.ru_stime
    return _End(result, os.waitstatus_to_exitcode(status), cpu_s, is_late=not events)


def _outcome(end: _End, trial: Trial, config: ConstraintConfig) -> Tried:
    if end.result:
        return msgspec.msgpack.decode(end.result, type=Tried)
    outcome: Literal["costly", "failed"] = "failed"
    took = f"compiling it took {end.cpu_s:.2f} s of CPU time"
    if end.is_late:
        message = (
            f"{took} and was not done within {config.compile_timeout_s} s (compile_timeout_s), "
            f"the limit is {trial.cpu_s:.2f} s of CPU time (compile_cpu_s)"
        )
    elif end.status == -signal.SIGPROF:
        outcome = "costly"
        message = (
            f"after {end.cpu_s:.2f} s of CPU time it was not compiled, "
            f"the limit is {trial.cpu_s:.2f} s (compile_cpu_s)"
        )
    elif -end.status in _ENDED_ITSELF or end.status > 0:
        outcome = "costly"
        message = (
            f"{took} and needs more memory than the limit of {config.compile_memory_mb} MB "
            "(compile_memory_mb)"
        )
        if -end.status in _ENDED_ITSELF - {signal.SIGABRT} or end.status == 1:
            message = f"{took} and ended the process it was tried in (status {end.status})"
    else:
        message = f"its trial was ended from outside (signal {-end.status})"
    return Tried(outcome=outcome, message=message, cpu_s=end.cpu_s)


if __name__ == "__main__":
    run_child(serve_trials)
