"""Tiny real models for engine tests, a client of the protocol, and a link that loses messages.

`Client` is a deliberately small sender: one message in flight, everything resent from what the
engine says it has. It decodes one session to its end, whatever the link does.
"""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from models.config import DtypeName, EngineConfig
from models.engine.base import Engine
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner, SequenceRows
from models.engine.target import TargetEngine
from models.grammar.masks import MaskSource, NoMaskSource
from models.kv.block_pool import BlockPool
from models.protocol.messages import (
    Close,
    DraftProbs,
    Endpoint,
    EngineReply,
    EngineRequest,
    Failed,
    MaskMiss,
    MaskRequest,
    Masks,
    NeedOpen,
    NeedPrefix,
    Open,
    Proposal,
    Propose,
    Queued,
    Sampling,
    Verdict,
    Verify,
)
from models.protocol.token_sequence import TokenSequence
from tests.cases.models.greedy import greedy_text
from tests.harness.runs import engines

VOCAB_SIZE = 256
EOS_ID = VOCAB_SIZE - 1
EPOCH = 7
BLOCK = engines.block_tokens()  # tokens of a block where a test gives no size
_NO_NOTICES_S = 1e6  # on a busy machine anybody may have waited for a second
CONSTRAINT = Endpoint(address="tcp://127.0.0.1:1", public_key="", epoch=3)

transformers_logging.disable_progress_bar()


@cache
def tiny_checkpoint(*, noise: float) -> Path:
    """A Llama of two layers; `noise` on its weights makes a draft model that often agrees."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=engines.head_dim(),
        max_position_embeddings=2048,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=EOS_ID,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    path = Path(tempfile.mkdtemp(prefix="outrider-tiny-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    model.save_pretrained(path)
    return path


def tiny_config(path: Path | str, **changes: Any) -> EngineConfig:
    """Return a config for short texts in float32; `changes` are fields of `EngineConfig`."""
    sizes = {"max_model_len": 256, "kv_cache_tokens": 1024, "num_threads": 1}
    fields: dict[str, Any] = {"dtype": "float32", **sizes, **changes}
    return EngineConfig(model_path=str(path), **fields)


def make_runner(*, noise: float = 0.0, dtype: DtypeName = "float32", **limits: Any) -> ModelRunner:
    """A runner over a tiny checkpoint; `limits` are fields of `EngineConfig`.

    Loaded once for all tests, with a new block pool each time: one engine at a time may use it.
    """
    sizes = engines.settings() | {"kv_cache_tokens": 2048, "max_num_batched_tokens": 64}
    path = tiny_checkpoint(noise=noise)
    runner = _load_runner(tiny_config(path, dtype=dtype, **(sizes | limits)))
    runner.pool = BlockPool(runner.config.num_blocks, runner.config.block_tokens)
    return runner


@lru_cache(maxsize=8)  # a test has few sizes, all tests have many, and some hold 50 MB
def _load_runner(config: EngineConfig) -> ModelRunner:
    return ModelRunner(config)


def text_logits(
    runner: ModelRunner, ids: Sequence[int], num_logits: int | None = None
) -> torch.Tensor:
    """Compute a text's last logits in one pass; those of all its rows if no number is given."""
    table = runner.pool.new_table()
    table.resize(len(ids))
    count = len(ids) if num_logits is None else num_logits
    try:
        return runner.forward([SequenceRows(table, 0, list(ids), count)]).clone()
    finally:
        table.free()


@cache
def reference_model() -> Any:
    """Load the target's checkpoint by transformers, in float32."""
    return LlamaForCausalLM.from_pretrained(tiny_checkpoint(noise=0.0), dtype=torch.float32)


def reference_greedy(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """`transformers.generate` on the target's checkpoint; it ends behind an eos."""
    return greedy_text(reference_model(), prompt, num_tokens)


def random_prompt(seed: int, length: int) -> list[int]:
    """Token ids without the eos."""
    generator = random.Random(seed)
    return [generator.randrange(EOS_ID) for _ in range(length)]


def lowest_third(generated: Sequence[int]) -> set[int]:
    """A grammar: tokens go up through the thirds of the vocabulary; eos after six tokens."""
    if len(generated) >= 6:
        return {EOS_ID}
    return {token for token in range(EOS_ID) if token % 3 == len(generated) % 3}


class ScriptedMasks:
    """A `MaskSource` of one grammar for all sessions, `rule(generated tokens) -> allowed ids`.

    `delay_polls` polls pass before a reply comes; `miss` answers every request with that reason
    and `is_silent` with nothing.
    """

    def __init__(self, rule: Callable[[Sequence[int]], set[int]] = lowest_third) -> None:
        self.rule = rule
        self.delay_polls = 0
        self.miss: Any = ""
        self.is_silent = False
        self.committed: dict[str, TokenSequence] = {}
        self.frames: list[list[MaskRequest]] = []
        self._due: list[tuple[int, Masks | MaskMiss]] = []
        self._num_polls = 0

    def open(self, session_id: str, endpoint: Endpoint) -> None:
        self.committed.setdefault(session_id, TokenSequence())

    def close(self, session_id: str) -> None:
        self.committed.pop(session_id, None)

    def request(self, requests: Sequence[MaskRequest]) -> None:
        self.frames.append(list(requests))
        if not self.is_silent:
            due = self._num_polls + self.delay_polls
            self._due += [(due, self._answer(request)) for request in requests]

    def poll(self, timeout_s: float) -> list[Masks | MaskMiss]:
        self._num_polls += 1
        ready = [reply for due, reply in self._due if due < self._num_polls]
        self._due = [(due, reply) for due, reply in self._due if due >= self._num_polls]
        return ready

    def _answer(self, request: MaskRequest) -> Masks | MaskMiss:
        log = self.committed[request.session_id]
        where: dict[str, Any] = {"committed_len": len(log), "committed_hash": log.hash_at(len(log))}
        names: dict[str, Any] = {"session_id": request.session_id, "ticket": request.ticket}
        if self.miss:
            return MaskMiss(**names, **where, reason=self.miss)
        if request.base_len > len(log) or log.hash_at(request.base_len) != request.prefix_hash:
            return MaskMiss(**names, **where, reason="stale")
        tokens = log.ids[: request.base_len]
        first_state = len(tokens) + len(request.chain) - request.num_rows + 1
        rows: list[bytes] = []
        for i in range(len(request.chain) + 1):
            allowed = self.rule(tokens)
            if len(tokens) >= first_state:
                rows.append(sum(1 << t for t in allowed).to_bytes(VOCAB_SIZE // 8, "little"))
            if i == len(request.chain) or request.chain[i] not in allowed:
                break
            if request.chain[i] == EOS_ID:
                break
            tokens = [*tokens, request.chain[i]]
        return Masks(
            **names,
            **where,
            num_valid_rows=len(rows),
            row_bytes=VOCAB_SIZE // 8,
            rows=b"".join(rows),
        )


class FakeClock:
    """Seconds that move only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Link:
    """Carries messages to one engine and back, in order and without loss."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def send(self, message: EngineRequest) -> None:
        self.engine.submit(message, "reply-to")

    def tick(self) -> list[EngineReply]:
        return [reply for _, reply in self.engine.step()] if self.engine.has_work else []

    def check_blocks(self) -> None:
        """Check that each block belongs to the sessions whose tables name it."""
        if isinstance(self.engine, Engine):
            self.engine.runner.pool.check(self.engine.block_tables())
        else:
            self.engine.check_blocks()  # it is in another process


class BadLink(Link):
    """Loses, doubles, delays and reorders messages both ways, as `seed` says."""

    def __init__(self, engine: Engine, seed: int, *, fault_rate: float = 0.3) -> None:
        super().__init__(engine)
        self._random = random.Random(seed)
        self._fault_rate = fault_rate
        self._requests: list[tuple[int, EngineRequest]] = []
        self._replies: list[tuple[int, EngineReply]] = []
        self._time = 0

    def send(self, message: EngineRequest) -> None:
        self._scatter(self._requests, message)

    def tick(self) -> list[EngineReply]:
        self._time += 1
        for message in self._due(self._requests):
            self.engine.submit(message, "reply-to")
        for reply in super().tick():
            self._scatter(self._replies, reply)
        return self._due(self._replies)

    def _scatter(self, queue: list, message: object) -> None:
        fault = self._random.random() / self._fault_rate
        if fault < 0.25:
            return
        copies = 2 if fault < 0.5 else 1
        for _ in range(copies):
            delay = self._random.randrange(1, 12) if fault < 1 else 0
            queue.append((self._time + delay, message))

    def _due(self, queue: list) -> list:
        due = [message for at, message in queue if at <= self._time]
        queue[:] = [(at, message) for at, message in queue if at > self._time]
        if self._random.random() < self._fault_rate:
            self._random.shuffle(due)
        return due


@dataclass
class Channel:
    """One session's state towards one engine: header, and what was asked last."""

    link: Link
    opened: Open
    seq: int = 0
    agreed_len: int = 0
    in_flight: Propose | Verify | None = None
    idle_ticks: int = 0

    def header(self, committed: TokenSequence) -> dict:
        self.seq += 1
        base_len = min(self.agreed_len, len(committed) - 1)
        return {
            "session_id": self.opened.session_id,
            "epoch": self.opened.epoch,
            "seq": self.seq,
            "base_len": base_len,
            "prefix_hash": committed.hash_at(base_len),
            "tokens": committed.ids[base_len:],
        }

    def send(self, message: Propose | Verify) -> None:
        self.in_flight = message
        self.idle_ticks = 0
        self.link.send(message)

    def accept(self, reply: EngineReply, committed: TokenSequence) -> EngineReply | None:
        """The reply if it answers what is in flight, else None; a correction is taken to heart."""
        message = self.in_flight
        if message is None or reply.session_id != message.session_id or reply.seq != message.seq:
            return None
        self.idle_ticks = 0
        if isinstance(reply, Queued):
            return None
        if isinstance(reply, NeedOpen):
            self.link.send(self.opened)
            self.agreed_len = 0
        elif isinstance(reply, NeedPrefix):
            is_ours = (
                reply.have_len < len(committed)
                and committed.hash_at(reply.have_len) == reply.have_hash
            )
            self.agreed_len = reply.have_len if is_ours else 0
        return reply

    def send_again(self, committed: TokenSequence) -> None:
        """The same question with a new header."""
        assert self.in_flight is not None
        self.send(msgspec.structs.replace(self.in_flight, **self.header(committed)))

    def repeat_if_silent(self, max_ticks: int) -> None:
        self.idle_ticks += 1
        if self.in_flight is not None and self.idle_ticks > max_ticks:
            self.send(self.in_flight)


@dataclass
class Client:
    """Decodes one session: drafts where there is a drafter, verifies, commits.

    `num_draft_tokens` and `run_on` are asked afresh each round.
    """

    session_id: str
    prompt: list[int]
    sampling: Sampling
    num_tokens: int
    target_link: Link
    draft_link: Link | None = None
    num_draft_tokens: Callable[[], int] = lambda: 0
    run_on: Callable[[], int] = lambda: 0
    constraint: Endpoint | None = None
    eos_ids: list[int] = field(default_factory=list)
    on_commit: Callable[[list[int]], None] = lambda tokens: None
    patience_ticks: int = 30
    own_drafts: bool = False
    own_length: int = 0
    committed: TokenSequence = field(init=False)
    proposals: list[Proposal] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    failures: list[Failed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.committed = TokenSequence(self.prompt)
        opened = Open(
            session_id=self.session_id,
            epoch=EPOCH,
            sampling=self.sampling,
            eos_ids=self.eos_ids,
            prompt_len=len(self.prompt),
            constraint=self.constraint,
        )
        self._target = Channel(self.target_link, opened)
        self._draft = Channel(self.draft_link, opened) if self.draft_link else None
        self._parts: dict[int, Verdict] = {}
        self._num_parts = 0
        self.target_link.send(opened)
        if self._draft is not None:
            self._draft.link.send(opened)
        self._next_round()

    @property
    def text(self) -> list[int]:
        return self.committed.ids[len(self.prompt) :][: self.num_tokens]

    @property
    def is_done(self) -> bool:
        text = self.text
        ended = any(token in self.eos_ids for token in text)
        return ended or bool(self.failures) or len(text) >= self.num_tokens

    def on_replies(self, from_draft: list[EngineReply], from_target: list[EngineReply]) -> None:
        for reply in from_draft:
            if self._draft is not None and not self.is_done:
                self._on_proposal(self._draft.accept(reply, self.committed))
        for reply in from_target:
            if not self.is_done:
                self._on_verdict(self._target.accept(reply, self.committed))
        for channel in (self._draft, self._target):
            if channel is not None and not self.is_done:
                channel.repeat_if_silent(self.patience_ticks)

    def close(self) -> None:
        for channel in (self._draft, self._target):
            if channel is not None:
                # Straight to the engine: a lost Close is the lease time-out's business.
                channel.link.engine.submit(
                    Close(session_id=self.session_id, epoch=EPOCH), "reply-to"
                )

    def _next_round(self) -> None:
        if self.is_done:
            return
        k = self.num_draft_tokens() if self._draft is not None else 0
        if k == 0 or self._draft is None:
            self._verify([])
            return
        header = self._draft.header(self.committed)
        self._draft.send(Propose(**header, num_draft_tokens=k, deadline_ms=1e6))

    def _verify(self, draft: list[int], draft_probs: DraftProbs | None = None) -> None:
        self._parts, self._num_parts = {}, 0
        header = self._target.header(self.committed)
        self._target.send(
            Verify(
                **header,
                draft=draft,
                draft_probs=draft_probs,
                run_on=self.run_on(),
                own_drafts=self.own_drafts,
                own_length=self.own_length,
            )
        )
        self._drafted = draft

    def _on_proposal(self, reply: EngineReply | None) -> None:
        if reply is None or self._draft is None:
            return
        if isinstance(reply, NeedOpen | NeedPrefix):
            self._draft.send_again(self.committed)
            return
        self._draft.in_flight = None
        if isinstance(reply, Proposal):
            self.proposals.append(reply)
            self._draft.agreed_len = len(self.committed) + max(len(reply.tokens) - 1, 0)
            self._verify(list(reply.tokens), reply.draft_probs)
        else:
            assert isinstance(reply, Failed)
            self.failures.append(reply)

    def _on_verdict(self, reply: EngineReply | None) -> None:
        if isinstance(reply, Failed):
            self.failures.append(reply)
        if isinstance(reply, NeedOpen | NeedPrefix):
            if self._num_parts == 0:
                self._target.send_again(self.committed)
            else:  # what came of this round stands; its draft does not follow it
                self._next_round()
        if not isinstance(reply, Verdict):
            return
        self._parts[reply.part] = reply
        while self._num_parts in self._parts and not self.is_done:
            verdict = self._parts.pop(self._num_parts)
            self._num_parts += 1
            self.verdicts.append(verdict)
            tokens = [*self._drafted[: verdict.num_accepted], *verdict.own, verdict.token]
            self._drafted = []
            self._target.agreed_len = len(self.committed) + len(tokens) - 1
            self._commit(tokens)
            if verdict.is_last:
                self._target.in_flight = None
                self._next_round()
                return

    def _commit(self, tokens: list[int]) -> None:
        if self._draft is not None:
            # The draft model's cache holds what it drafted; its first wrong token ends it.
            held = self.proposals[-1].tokens if self.proposals else []
            num_same = 0
            while num_same < min(len(tokens), len(held)) and tokens[num_same] == held[num_same]:
                num_same += 1
            limit = len(self.committed) + min(num_same, max(len(held) - 1, 0))
            self._draft.agreed_len = min(self._draft.agreed_len, limit)
        self.committed.extend(tokens)
        self.on_commit(tokens)


def run_clients(clients: Sequence[Client], *, max_ticks: int = 20_000) -> list[list[int]]:
    """Drive all links until every client is done, and close each then; their texts."""
    links = {id(c.target_link): c.target_link for c in clients}
    drafts = {id(c.draft_link): c.draft_link for c in clients if c.draft_link is not None}
    running = list(clients)
    for _ in range(max_ticks):
        from_draft = [reply for link in drafts.values() for reply in link.tick()]
        from_target = [reply for link in links.values() for reply in link.tick()]
        for client in running:
            client.on_replies(from_draft, from_target)
        for client in [each for each in running if each.is_done]:
            client.close()  # others may wait for its blocks
            running.remove(client)
        for link in (*links.values(), *drafts.values()):
            link.check_blocks()
        if not running:
            return [client.text for client in clients]
    raise AssertionError(f"not done after {max_ticks} ticks")


def make_target(mask_source: MaskSource | None = None, **limits: Any) -> TargetEngine:
    """A target engine over the tiny checkpoint in float32."""
    runner = make_runner(**limits)
    return TargetEngine(
        runner, mask_source or NoMaskSource(), EPOCH, queued_interval_s=_NO_NOTICES_S
    )


def make_draft(
    mask_source: MaskSource | None = None, *, noise: float = 0.01, **limits: Any
) -> DraftEngine:
    """A draft engine over the tiny checkpoint with noise."""
    runner = make_runner(noise=noise, **limits)
    return DraftEngine(
        runner, mask_source or NoMaskSource(), EPOCH, queued_interval_s=_NO_NOTICES_S
    )


def drain(engine: Engine, *, max_steps: int = 2000) -> list[EngineReply]:
    """Step until nothing is left to do; the replies."""
    replies: list[EngineReply] = []
    for _ in range(max_steps):
        if not engine.has_work:
            return replies
        replies += [reply for _, reply in engine.step()]
    raise AssertionError(f"still busy after {max_steps} steps")
