"""The child process that scores texts by rewards, those that may run wild in forks (`fork.py`).

Started as `python -m deployments.constraint.reward_child SOCKET_FD PAGE_FD`. It has loaded the
classifiers of the config and users' rewards (entry points). The reach of a reward decides which
process computes a question, and beside which others (`models.rewards.reach`):

- One whose time its text bounds is answered here, where text and reward are short.
- A reward of an installed package has a fork for each question. Nothing of any other question is in
  it. Code that shares a process with a neighbour's question could change the neighbour's answer.
- Patterns and classifiers are data. A reward is asked in a fork of its own until it proved to be
  cheap. Then the questions that wait at a time share a fork, whose limits are tight. Where that
  ends without an answer each of its questions is asked again by itself, with all its limits.

So a reward that is slow, crashes, or takes memory ends its own question. It costs a neighbour that
shared its fork a moment. No more than `_MAX_AT_ONCE` forks run side by side. A reward that was too
costly is refused at once for some time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import select
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from deployments.constraint.canary import HUNG_UP
from deployments.constraint.child import Child, lower_priority, run_child
from deployments.constraint.fork import Fork, ForkEnd, ForkLimits
from deployments.constraint.pipe import ConstraintConfig
from deployments.serve.heap import freeze_heap
from models.lru import LruDict
from models.protocol.rewards import RewardRefused, RewardScore, RewardScored, TextScore
from models.rewards.classifier import Classifier
from models.rewards.reach import Reach, Span, span_of
from models.rewards.registry import Rewards
from models.rewards.reward import Reward

_MAX_AT_ONCE = 8
_MAX_REFUSED = 256  # rewards remembered as too costly
_REFUSED_S = 60.0
_MAX_MESSAGE_CHARS = 1 << 12
_MAX_WORK = 4096.0  # for a question answered here, see `Span.work`: 0.1 s in the dearest language
_MAX_KNOWN = 1024  # rewards whose span and cost are remembered
_MAX_MADE = 256
_MAX_JOINED = 8  # questions in a fork
_SHORT_CPU_S = 0.05  # CPU time of a fork with one question: a reward that never took more is joined
_JOINED_TIMEOUT_S = 1.0

_Answer = RewardScored | RewardRefused


@dataclass
class _Known:
    """The known cost of a reward.

    `cpu_s` is the most that a fork with one question took. It is None if the reward was in no fork,
    or only in an ended one with others.
    """

    span: Span
    cpu_s: float | None = None

    @property
    def is_joined(self) -> bool:
        """True if its questions may share a fork."""
        is_short = self.cpu_s is not None and self.cpu_s <= _SHORT_CPU_S
        return is_short and self.span.reach is not Reach.CODE


@dataclass(frozen=True)
class _Asked:
    """A question, by its number. `work` of answering it here; inf: it takes a fork. `is_alone`: it
    was in a fork with others that was ended.
    """

    number: int
    question: RewardScore
    digest: bytes  # digest of its reward
    work: float
    is_alone: bool = False


class _RewardServer:
    """Questions, answered here or in forks as these end."""

    def __init__(self, child: Child[Rewards]) -> None:
        config = child.config
        self._child = child
        self._limits = ForkLimits(
            config.reward_cpu_s, config.reward_memory_mb, config.reward_timeout_s
        )
        self._decoder = msgspec.msgpack.Decoder(list[RewardScore])
        self._num_taken = 0
        self._here: deque[_Asked] = deque()  # to be answered without a fork
        self._waiting: deque[_Asked] = deque()
        self._running: dict[int, tuple[list[_Asked], Fork]] = {}  # by the fork's descriptor
        self._refused: LruDict[bytes, tuple[str, float]] = LruDict(_MAX_REFUSED)
        self._known: LruDict[bytes, _Known] = LruDict(_MAX_KNOWN)
        self._made: LruDict[bytes, Reward] = LruDict(_MAX_MADE)
        self._poller = select.poll()

    def run(self) -> None:
        """Serve until the parent closes the socket."""
        link = self._child.link
        self._poller.register(link, select.POLLIN | HUNG_UP)
        frames: list[bytes] | None = self._child.frames.ready()
        while frames is not None:
            for frame in frames:
                self._take(frame)
            self._answer_here()
            self._begin()
            events = dict(self._poller.poll(0.0 if self._here else self._pause_ms()))
            self._finish(events)
            frames = self._child.frames.take() if link.fileno() in events else []
        for _, fork in self._running.values():
            fork.end(is_late=True)

    def _take(self, frame: bytes) -> None:
        questions = self._decoder.decode(frame)
        self._child.page.take(len(questions))
        for question in questions:
            digest = hashlib.sha256(question.reward.encode()).digest()
            if self._known.use(digest) is None:
                self._known[digest] = _Known(span_of(question.reward))
            work = self._work(digest, question)
            asked = _Asked(self._num_taken, question, digest, work)
            (self._here if work < math.inf else self._waiting).append(asked)
            self._num_taken += 1

    def _work(self, digest: bytes, question: RewardScore) -> float:
        """Return the work to answer a question here; inf if it is too much or unknown."""
        span = self._known[digest].span
        if span.reach is not Reach.BOUNDED:
            return math.inf
        work = span.work(question.text, question.lookaheads)
        if self._made.use(digest) is None:  # its own words are stemmed first
            work += span.num_stemming * len(question.reward)
        return work if work <= _MAX_WORK else math.inf

    def _answer_here(self) -> None:
        """Answer questions that take no fork, for a while: forks are heard and ended between."""
        spent = 0.0
        while self._here and spent < _MAX_WORK:
            asked = self._here.popleft()
            spent += asked.work
            self._send(asked, self._refusal(asked) or self._scored_here(asked))

    def _scored_here(self, asked: _Asked) -> _Answer:
        if (reward := self._made.use(asked.digest)) is None:
            try:
                reward = self._made[asked.digest] = _made(self._child.loaded, asked.question)
            except (ValueError, RecursionError) as error:
                return _refused(asked.question, str(error), is_client_error=True)
        return _scored(reward, asked.question)

    def _refusal(self, asked: _Asked) -> RewardRefused | None:
        """Return the refusal of a question whose reward was too costly lately."""
        reason, until = self._refused.get(asked.digest, ("", 0.0))
        if time.monotonic() < until:
            return _refused(asked.question, reason, is_client_error=True)
        return None

    def _begin(self) -> None:
        while self._waiting and len(self._running) < _MAX_AT_ONCE:
            first = self._waiting.popleft()
            if (refusal := self._refusal(first)) is not None:
                self._send(first, refusal)
            else:
                self._fork([first, *self._take_joined(first)])

    def _take_joined(self, first: _Asked) -> list[_Asked]:
        """Take the waiting questions that may share the fork of `first`."""
        if not self._is_joined(first):
            return []
        found = [asked for asked in self._waiting if self._is_joined(asked)][: _MAX_JOINED - 1]
        taken = {asked.number for asked in found}
        self._waiting = deque(asked for asked in self._waiting if asked.number not in taken)
        return found

    def _is_joined(self, asked: _Asked) -> bool:
        may_be = self._of(asked).is_joined and not asked.is_alone
        return may_be and self._refusal(asked) is None

    def _of(self, asked: _Asked) -> _Known:
        """Return the known cost of its reward.

        Others may have pushed it out since it was taken.
        """
        if (known := self._known.get(asked.digest)) is None:
            known = self._known[asked.digest] = _Known(span_of(asked.question.reward))
        return known

    def _fork(self, batch: list[_Asked]) -> None:
        limits = self._limits if len(batch) == 1 else self._joined_limits(len(batch))
        try:
            fork = Fork(lambda: self._answers(batch), limits)
        except OSError as error:  # no process to be had now
            reason = f"no process for a reward: {error.strerror}"
            for asked in batch:
                self._send(asked, _refused(asked.question, reason, is_client_error=False))
            return
        self._running[fork.fileno()] = (batch, fork)
        self._poller.register(fork, select.POLLIN)

    def _joined_limits(self, num_questions: int) -> ForkLimits:
        """Tight: what a neighbour may lose. Whatever they end is asked again by itself."""
        limits = self._limits
        return ForkLimits(
            min(limits.cpu_s, 2 * _SHORT_CPU_S * num_questions),
            limits.memory_mb,
            min(limits.timeout_s, _JOINED_TIMEOUT_S),
        )

    def _answers(self, batch: list[_Asked]) -> bytes:
        """Answer the questions in the fork, and encode the answers."""
        self._child.link.close()
        rewards = self._child.loaded
        return msgspec.msgpack.encode([_answer(rewards, asked.question) for asked in batch])

    def _finish(self, events: Mapping[int, int]) -> None:
        now = time.monotonic()
        for descriptor, (batch, fork) in list(self._running.items()):
            is_late = descriptor not in events
            if is_late and now < fork.late_at:
                continue
            self._poller.unregister(descriptor)
            del self._running[descriptor]
            end = fork.end(is_late=is_late)
            if len(batch) == 1:
                self._send(batch[0], self._outcome(batch[0], end))
            elif end.result:
                answers = msgspec.msgpack.decode(end.result, type=list[_Answer])
                for asked, answer in zip(batch, answers, strict=True):
                    self._send(asked, answer)
            else:  # each is asked again by itself, which shows the culprit
                for asked in reversed(batch):
                    self._of(asked).cpu_s = None
                    self._waiting.appendleft(replace(asked, is_alone=True))

    def _pause_ms(self) -> float | None:
        late_at = min((fork.late_at for _, fork in self._running.values()), default=None)
        return None if late_at is None else max(0.0, 1e3 * (late_at - time.monotonic())) + 1.0

    def _outcome(self, asked: _Asked, end: ForkEnd) -> _Answer:
        known = self._of(asked)
        known.cpu_s = max(known.cpu_s or 0.0, end.cpu_s)
        if end.result:
            [answer] = msgspec.msgpack.decode(end.result, type=list[_Answer])
            return answer
        limits = self._limits
        if end.is_late:
            reason = f"it did not answer within {limits.timeout_s:g} s (reward_timeout_s)"
        elif end.used_up_cpu:
            reason = f"its answer took more than {limits.cpu_s:g} s of CPU time (reward_cpu_s)"
        elif end.has_crashed or not end.is_costly:
            reason = f"it ended the process it was computed in (status {end.status})"
        else:
            reason = f"it took more memory than {limits.memory_mb} MB (reward_memory_mb)"
        self._refused[asked.digest] = (reason, time.monotonic() + _REFUSED_S)
        return _refused(asked.question, reason, is_client_error=True)

    def _send(self, asked: _Asked, answer: _Answer) -> None:
        self._child.send([(asked.number, answer)])


def _made(rewards: Rewards, question: RewardScore) -> Reward:
    return rewards.make(json.loads(question.reward))


def _answer(rewards: Rewards, question: RewardScore) -> _Answer:
    try:
        reward = _made(rewards, question)
    except (ValueError, RecursionError) as error:
        return _refused(question, str(error), is_client_error=True)
    return _scored(reward, question)


def _scored(reward: Reward, question: RewardScore) -> _Answer:
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


def load_rewards(config: ConstraintConfig) -> Rewards:
    """Load the classifiers of the config, and users' rewards.

    Raises:
        OSError, ValueError: a classifier cannot be loaded.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork
    lower_priority(config.niceness)
    rewards = Rewards({name: Classifier(path) for name, path in config.reward_classifiers.items()})
    freeze_heap()  # forks share what is here: a collection would copy all of it
    return rewards


if __name__ == "__main__":
    run_child(load_rewards, lambda child: _RewardServer(child).run())
