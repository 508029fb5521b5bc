"""The child process that scores texts by rewards: each question in a fork of its own (`fork.py`).

Started as `python -m deployments.constraint.reward_child SOCKET_FD PAGE_FD`. It has loaded the
classifiers of the config and users' rewards (entry points), and computes none itself: a fork has
them, one question, and nothing of any other. So a reward that is slow, crashes, or takes memory
ends its own question. Up to `_MAX_AT_ONCE` run side by side, so that it delays no other. A reward
that was too costly is refused at once for some time.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import select
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from deployments.constraint.canary import HUNG_UP
from deployments.constraint.child import Child, lower_priority, run_child
from deployments.constraint.fork import Fork, ForkEnd, ForkLimits
from deployments.constraint.pipe import ConstraintConfig
from models.lru import LruDict
from models.protocol.rewards import RewardRefused, RewardScore, RewardScored, TextScore
from models.rewards.classifier import Classifier
from models.rewards.registry import Rewards

_MAX_AT_ONCE = 8
_MAX_REFUSED = 256  # rewards remembered as too costly
_REFUSED_S = 60.0
_MAX_MESSAGE_CHARS = 1 << 12

_Answer = RewardScored | RewardRefused


class _RewardServer:
    """Questions in forks, answered as these end."""

    def __init__(self, child: Child[Rewards]) -> None:
        config = child.config
        self._child = child
        self._limits = ForkLimits(
            config.reward_cpu_s, config.reward_memory_mb, config.reward_timeout_s
        )
        self._decoder = msgspec.msgpack.Decoder(list[RewardScore])
        self._num_taken = 0
        self._waiting: deque[tuple[int, RewardScore]] = deque()
        self._running: dict[int, tuple[int, RewardScore, Fork]] = {}  # by the fork's descriptor
        self._refused: LruDict[bytes, tuple[str, float]] = LruDict(_MAX_REFUSED)
        self._poller = select.poll()

    def run(self) -> None:
        """Serve until the parent closes the socket."""
        link = self._child.link
        self._poller.register(link, select.POLLIN | HUNG_UP)
        frames: list[bytes] | None = self._child.frames.ready()
        while frames is not None:
            for frame in frames:
                self._take(frame)
            self._begin()
            events = dict(self._poller.poll(self._pause_ms()))
            self._finish(events)
            frames = self._child.frames.take() if link.fileno() in events else []
        for _, _, fork in self._running.values():
            fork.end(is_late=True)

    def _take(self, frame: bytes) -> None:
        questions = self._decoder.decode(frame)
        self._child.page.take(len(questions))
        for question in questions:
            self._waiting.append((self._num_taken, question))
            self._num_taken += 1

    def _begin(self) -> None:
        while self._waiting and len(self._running) < _MAX_AT_ONCE:
            number, question = self._waiting.popleft()
            reason, until = self._refused.get(_digest(question), ("", 0.0))
            if time.monotonic() < until:
                self._send(number, _refused(question, reason, is_client_error=True))
                continue
            try:
                fork = Fork(lambda question=question: self._scored(question), self._limits)  # type: ignore[misc]
            except OSError as error:  # no process to be had now
                reason = f"no process for a reward: {error.strerror}"
                self._send(number, _refused(question, reason, is_client_error=False))
                continue
            self._running[fork.fileno()] = (number, question, fork)
            self._poller.register(fork, select.POLLIN)

    def _scored(self, question: RewardScore) -> bytes:
        """What the fork does; the answer, encoded."""
        self._child.link.close()
        return msgspec.msgpack.encode(_answer(self._child.loaded, question))

    def _finish(self, events: Mapping[int, int]) -> None:
        now = time.monotonic()
        for descriptor, (number, question, fork) in list(self._running.items()):
            is_late = descriptor not in events
            if is_late and now < fork.late_at:
                continue
            self._poller.unregister(descriptor)
            del self._running[descriptor]
            self._send(number, self._outcome(question, fork.end(is_late=is_late)))

    def _pause_ms(self) -> float | None:
        late_at = min((fork.late_at for _, _, fork in self._running.values()), default=None)
        return None if late_at is None else max(0.0, 1e3 * (late_at - time.monotonic())) + 1.0

    def _outcome(self, question: RewardScore, end: ForkEnd) -> _Answer:
        if end.result:
            return msgspec.msgpack.decode(end.result, type=_Answer)
        limits = self._limits
        if end.is_late:
            reason = f"it did not answer within {limits.timeout_s:g} s (reward_timeout_s)"
        elif end.used_up_cpu:
            reason = f"its answer took more than {limits.cpu_s:g} s of CPU time (reward_cpu_s)"
        elif end.has_crashed or not end.is_costly:
            reason = f"it ended the process it was computed in (status {end.status})"
        else:
            reason = f"it took more memory than {limits.memory_mb} MB (reward_memory_mb)"
        self._refused[_digest(question)] = (reason, time.monotonic() + _REFUSED_S)
        return _refused(question, reason, is_client_error=True)

    def _send(self, number: int, answer: _Answer) -> None:
        self._child.send([(number, answer)])


def _answer(rewards: Rewards, question: RewardScore) -> _Answer:
    try:
        reward = rewards.make(json.loads(question.reward))
    except (ValueError, RecursionError) as error:
        return _refused(question, str(error), is_client_error=True)
    scores = []
    try:
        for lookahead, is_end in zip(question.lookaheads, question.ends, strict=True):
            scores.append(_checked(reward.score(question.text, lookahead, is_end)))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a stranger's reward raises
        return _refused(question, f"{type(error).__name__}: {error}", is_client_error=True)
    return RewardScored(session_id=question.session_id, seq=question.seq, scores=scores)


def _checked(scored: Any) -> TextScore:
    score = float(scored.score)
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"a score must be within 0..1, got {score}")
    return TextScore(score, bool(scored.is_met), bool(scored.can_be_met))


def _refused(question: RewardScore, reason: str, *, is_client_error: bool) -> RewardRefused:
    return RewardRefused(
        session_id=question.session_id,
        seq=question.seq,
        message=reason[:_MAX_MESSAGE_CHARS],
        is_client_error=is_client_error,
    )


def _digest(question: RewardScore) -> bytes:
    return hashlib.sha256(question.reward.encode()).digest()


def load_rewards(config: ConstraintConfig) -> Rewards:
    """Load the classifiers of the config, and users' rewards.

    Raises:
        OSError, ValueError: a classifier cannot be loaded.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork
    lower_priority(config.niceness)
    rewards = Rewards({name: Classifier(path) for name, path in config.reward_classifiers.items()})
    gc.freeze()  # forks share what is here: a collection would copy all of it
    return rewards


if __name__ == "__main__":
    run_child(load_rewards, lambda child: _RewardServer(child).run())
