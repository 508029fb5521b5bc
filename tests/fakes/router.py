"""Scripted stand-ins for the router's seams: a language, a drafter, a verifier, an engine.

`language` plays the model: the next token is a pure function of the prefix, as it is under shared
noise, so every test can say what the text must be, whatever happens on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from models.protocol.errors import Unavailable
from models.protocol.forced import NOTHING_FORCED, Forced
from models.protocol.grammars import Loosened
from models.protocol.messages import (
    Choose,
    Chosen,
    Close,
    DraftProbs,
    EngineQuestion,
    EngineReply,
    EngineRequest,
    GrammarCommitted,
    NeedOpen,
    NeedPrefix,
    Open,
    Proposal,
    Propose,
    Timing,
    TokenLogprobs,
    Verdict,
    Verify,
)
from models.protocol.token_sequence import TokenSequence
from router.drafters.draft_model import DRAFT_MODEL
from router.drafters.kind import DrafterKind
from router.drafters.side_by_side import SessionDrafters
from router.ports import Drafter

VOCAB_SIZE = 50
TIMING = Timing(pass_ms=1.0, num_rows=1, num_sessions=1)


def language(prefix: Sequence[int]) -> int:
    """The next token after a prefix; never 0, which tests use as eos."""
    state = 7
    for token_id in prefix[-3:]:
        state = (state * 31 + token_id + 1) % 10_007
    return 1 + (state + len(prefix)) % (VOCAB_SIZE - 1)


def continuation(prompt: Sequence[int], num_tokens: int) -> list[int]:
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(language(ids))
    return ids[len(prompt) :]


def chosen_after(prefix: Sequence[int], message: Choose) -> Chosen:
    """What the language draws: a function of the prefix, as under shared noise."""
    index = language(prefix) % len(message.choices)
    return Chosen(
        session_id=message.session_id,
        seq=message.seq,
        index=index,
        end_token=0,
        logprobs=[-1.0 - abs(place - index) for place in range(len(message.choices))],
        timing=TIMING,
        token_logprobs=[TokenLogprobs(t, -0.5, 1) for t in (*message.choices[index], 0)],
    )


class LetterDetokenizer:
    """Token t is the letter at t modulo 26; holds nothing back."""

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(97 + token_id % 26) for token_id in token_ids)

    def flush(self) -> str:
        return ""


def letters(token_ids: Sequence[int]) -> str:
    return LetterDetokenizer().push(token_ids)


class ScriptedVerifier:
    """Verifies against `language`; may end the plain steps early, or bring `num_own` more tokens
    with each, of drafts of its own that are one token longer."""

    def __init__(
        self,
        *,
        eos_at: int | None = None,
        end_parts_after: int | None = None,
        num_own: int = 0,
    ) -> None:
        self._num_own = num_own
        self.rounds: list[tuple[int, int]] = []
        self.draft_probs: list[DraftProbs | None] = []  # of each round
        self.is_closed = False
        self.has_more = False
        self._eos_at = eos_at
        self._end_parts_after = end_parts_after

    def _next(self, ids: Sequence[int]) -> int:
        return 0 if len(ids) == self._eos_at else language(ids)

    async def verify(
        self,
        committed: TokenSequence,
        draft: Sequence[int],
        run_on: int,
        draft_probs: DraftProbs | None = None,
    ) -> AsyncGenerator[Verdict, None]:
        self.rounds.append((len(draft), run_on))
        self.draft_probs.append(draft_probs)
        ids = list(committed.ids)
        accepted = 0
        while accepted < len(draft) and draft[accepted] == self._next(ids):
            ids.append(draft[accepted])
            accepted += 1
        for part in range(run_on + 1):
            if self._end_parts_after is not None and part > self._end_parts_after:
                return
            own: list[int] = []
            while part > 0 and len(own) < self._num_own and 0 not in own:
                own.append(self._next(ids))
                ids.append(own[-1])
            token = self._next(ids)
            ids.append(token)
            yield Verdict(
                session_id="s",
                seq=len(self.rounds),
                part=part,
                num_accepted=accepted if part == 0 else 0,
                token=token,
                is_last=part == run_on,
                timing=TIMING,
                own=own,
                num_own_drafted=len(own) + 1 if own else 0,
            )
            await asyncio.sleep(0)

    async def close(self) -> None:
        self.is_closed = True


class ScriptedDrafter:
    """Drafts the true continuation, wrong from the position that `pattern` names each round."""

    def __init__(self, pattern: Sequence[int | None], *, fails_at: Sequence[int] = ()) -> None:
        self._pattern = pattern
        self._fails_at = set(fails_at)
        self.num_calls = 0
        self.is_ready = True
        self.is_over = False
        self.is_closed = False

    async def propose(self, committed: TokenSequence, num_draft_tokens: int) -> Proposal:
        call, self.num_calls = self.num_calls, self.num_calls + 1
        if call in self._fails_at:
            raise Unavailable("scripted loss")
        tokens = continuation(committed.ids, num_draft_tokens)
        wrong_from = self._pattern[call % len(self._pattern)]
        if wrong_from is not None and wrong_from < len(tokens):
            tokens[wrong_from] = 1 + tokens[wrong_from] % (VOCAB_SIZE - 1)
        return Proposal(session_id="s", seq=call, tokens=tokens, timing=TIMING, step_ms=0.1)

    async def close(self) -> None:
        self.is_closed = True


def alone(drafter: Drafter, kind: DrafterKind = DRAFT_MODEL) -> SessionDrafters:
    """A session for which only this drafter drafts, by the name of `kind`."""
    return SessionDrafters([(kind.traits, lambda: drafter)])


class ScriptedConstrainer:
    """Accepts everything but the generated position `reject_at`, forces what `forced` says."""

    def __init__(
        self,
        reject_at: int | None = None,
        forced: Callable[[Sequence[int]], Forced] = lambda generated: NOTHING_FORCED,
    ) -> None:
        self._reject_at = reject_at
        self._forced = forced
        self.committed: list[int] = []
        self.num_reopened = self.num_commits = 0
        self.loosened: Sequence[Loosened] = ()

    async def open(self) -> Forced:
        return self._forced(self.committed)

    async def commit(self, generated: TokenSequence, tokens: Sequence[int]) -> GrammarCommitted:
        self.num_commits += 1
        num_valid = len(tokens)
        if self._reject_at is not None:
            num_valid = min(num_valid, max(0, self._reject_at - len(generated)))
        self.committed.extend(tokens[:num_valid])
        return GrammarCommitted(
            session_id="s",
            seq=1,
            num_valid=num_valid,
            is_complete=False,
            message="scripted",
            forced=self._forced(self.committed),
        )

    async def reopen(self) -> Forced:
        self.num_reopened += 1
        return self._forced(self.committed)

    async def close(self) -> None:
        pass


class ScriptedEngine:
    """A small engine that obeys the header rules, drafting and verifying `language`."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.logs: dict[str, TokenSequence] = {}
        self._seqs: dict[str, int] = {}
        self._answers: dict[str, list[EngineReply]] = {}
        self.num_tokens_received = 0

    def handle(self, message: EngineRequest) -> list[EngineReply]:
        if isinstance(message, Open):
            if message.epoch == self.epoch and message.session_id not in self.logs:
                self.logs[message.session_id] = TokenSequence()
                self._seqs[message.session_id] = -1
            return []
        if isinstance(message, Close):
            self.logs.pop(message.session_id, None)
            return []
        log = self.logs.get(message.session_id)
        if log is None or message.epoch != self.epoch:
            return [NeedOpen(session_id=message.session_id, seq=message.seq, epoch=self.epoch)]
        last_seq = self._seqs[message.session_id]
        if message.seq < last_seq:
            return []
        if message.seq == last_seq:
            return self._answers[message.session_id]
        self._seqs[message.session_id] = message.seq
        self._answers[message.session_id] = self._act(log, message)
        return self._answers[message.session_id]

    def _act(self, log: TokenSequence, message: EngineQuestion) -> list[EngineReply]:
        is_held = (
            message.base_len <= len(log) and log.hash_at(message.base_len) == message.prefix_hash
        )
        if not is_held:
            have_len = len(log)
            return [
                NeedPrefix(
                    session_id=message.session_id,
                    seq=message.seq,
                    have_len=have_len,
                    have_hash=log.hash_at(have_len),
                )
            ]
        log.truncate(message.base_len)
        log.extend(message.tokens)
        self.num_tokens_received += len(message.tokens)
        if isinstance(message, Propose):
            tokens = continuation(log.ids, message.num_draft_tokens)
            log.extend(tokens[:-1])
            return [
                Proposal(
                    session_id=message.session_id,
                    seq=message.seq,
                    tokens=tokens,
                    timing=TIMING,
                    step_ms=0.1,
                )
            ]
        if isinstance(message, Choose):
            return [chosen_after(log.ids, message)]
        return self._verify(log, message)

    def _verify(self, log: TokenSequence, message: Verify) -> list[EngineReply]:
        ids = list(log.ids)
        accepted = 0
        while accepted < len(message.draft) and message.draft[accepted] == language(ids):
            ids.append(message.draft[accepted])
            accepted += 1
        log.extend(message.draft)
        replies: list[EngineReply] = []
        for part in range(message.run_on + 1):
            token = language(ids)
            replies.append(
                Verdict(
                    session_id=message.session_id,
                    seq=message.seq,
                    part=part,
                    num_accepted=accepted if part == 0 else 0,
                    token=token,
                    is_last=part == message.run_on,
                    timing=TIMING,
                )
            )
            ids.append(token)
        if message.run_on:
            log.truncate(message.base_len + len(message.tokens) + accepted)
            log.extend(ids[len(log) : -1])
        return replies


class AnsweringEngine(ScriptedEngine):
    """Answers what `answer` gives in place of the scripted answer, where it gives something."""

    def __init__(self, answer: Callable[[EngineRequest], list[EngineReply] | None]) -> None:
        super().__init__(epoch=1)
        self.received: list[EngineRequest] = []
        self._answer = answer

    def handle(self, message: EngineRequest) -> list[EngineReply]:
        self.received.append(message)
        answer = self._answer(message)
        return super().handle(message) if answer is None else answer
