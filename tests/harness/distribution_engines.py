"""Thousands of sessions through real engines, by real messages, a few tokens each."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

import msgspec
import torch
from transformers import LlamaForCausalLM

from models.config import EngineConfig
from models.engine.base import Engine
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.kv.block_pool import BlockPool
from models.protocol.messages import EngineReply, Open, Proposal, Verdict, Verification
from tests.cases.distribution import (
    EOS_ID,
    NUM_TOKENS,
    VOCAB_SIZE,
    Case,
    allowed_after,
    certain_draft,
)
from tests.cases.messages import opening, proposing, verifying
from tests.cases.tiny_llama import write_tiny_llama
from tests.fakes.engines import CONSTRAINT, EPOCH, ScriptedMasks

_BATCH = 250  # sessions at a time; the planner's work grows with the square of their number
_NOISE = 0.1  # of weights that are about 0.2
_NO_NOTICES_S = 1e6
_BLOCK_SIZE = 16  # one block holds a whole session
_BLOCKS_EACH = 10  # and as many more side paths of its draft


@cache
def distribution_checkpoint(name: str) -> Path:
    """A random Llama of one layer, `target`, or the same with noise on its weights, `draft`.

    A token drafted by one stands with the other about two times of three.
    """
    path = Path(tempfile.mkdtemp(prefix="outrider-dist-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    write_tiny_llama(
        path,
        seed=1,
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        eos_token_id=EOS_ID,
    )
    if name == "draft":
        model = LlamaForCausalLM.from_pretrained(path)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(_NOISE * torch.randn(parameter.shape, generator=generator))
        model.save_pretrained(path)
    return path


@lru_cache(maxsize=3)  # of target and draft model, and of a target with the heads of one test
def _runner(name: str, heads: str | None = None) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            model_path=str(distribution_checkpoint(name)),
            heads=heads,
            dtype="float32",
            max_model_len=_BLOCK_SIZE,
            kv_cache_tokens=_BLOCK_SIZE * _BATCH * _BLOCKS_EACH,
            block_size=_BLOCK_SIZE,
            max_num_batched_tokens=2 * _BLOCK_SIZE * _BATCH,
            num_threads=1,
        )
    )


def _fresh_runner(name: str, heads: str | None = None) -> ModelRunner:
    runner = _runner(name, heads)
    runner.pool = BlockPool(runner.config.num_blocks, runner.config.block_tokens)
    return runner


@dataclass
class Run:
    """The texts, and whether the first draft token of each stood."""

    texts: list[tuple[int, ...]] = field(default_factory=list)
    first_stood: list[bool] = field(default_factory=list)


def run_sessions(
    case: Case,
    rule: Verification,
    k: int,
    num_sessions: int,
    *,
    is_target_masked: bool = True,
) -> Run:
    """Sessions with the seeds 0, 1, ..., in rounds of up to k draft tokens."""
    run = Run()
    for first in range(0, num_sessions, _BATCH):
        seeds = range(first, min(first + _BATCH, num_sessions))
        _run_batch(run, case, rule, k, seeds, is_target_masked=is_target_masked)
    return run


def _run_batch(
    run: Run,
    case: Case,
    rule: Verification,
    k: int,
    seeds: range,
    *,
    is_target_masked: bool,
) -> None:
    """Sessions that share their passes."""

    def masks(is_on: bool) -> ScriptedMasks:
        return ScriptedMasks(allowed_after if is_on else lambda _: set(range(VOCAB_SIZE)))

    target = TargetEngine(
        _fresh_runner("target"), masks(is_target_masked), EPOCH, queued_interval_s=_NO_NOTICES_S
    )
    draft = DraftEngine(
        _fresh_runner("draft"), masks(case.is_draft_masked), EPOCH, queued_interval_s=_NO_NOTICES_S
    )
    texts = {seed: list(case.prompt) for seed in seeds}
    for seed in seeds:
        opened = _opening(case, rule, seed)
        target.submit(opened, seed)
        draft.submit(opened, seed)
    for seq in range(1, NUM_TOKENS + 1):
        open_seeds = [seed for seed, text in texts.items() if not _is_done(case, text)]
        proposals = _propose(draft, case, seq, open_seeds, texts, k)
        for seed in open_seeds:
            proposal = proposals[seed]
            message = verifying(str(seed), seq, texts[seed], proposal.tokens, proposal.draft_probs)
            target.submit(message, seed)
        for seed, verdict in answers(target).items():
            assert isinstance(verdict, Verdict), verdict
            accepted = proposals[seed].tokens[: verdict.num_accepted]
            texts[seed] += [*accepted, verdict.token]
            if seq == 1 and k > 0:  # an eos that stands is the verdict's own token
                first = (*accepted, verdict.token)[0]
                run.first_stood.append(first == proposals[seed].tokens[0])
    for text in texts.values():
        generated = text[len(case.prompt) :]
        generated += [EOS_ID] * NUM_TOKENS
        run.texts.append(tuple(generated[:NUM_TOKENS]))


def run_by_heads(case: Case, rule: Verification, num_sessions: int, heads: Path) -> Run:
    """Sessions of one message each, for whose plain steps the target's own heads draft.

    Whether drafts stood is that of all tokens that heads drafted.
    """
    run = Run()
    for first in range(0, num_sessions, _BATCH):
        seeds = range(first, min(first + _BATCH, num_sessions))
        masks = ScriptedMasks(allowed_after)
        runner = _fresh_runner("target", str(heads))
        target = TargetEngine(runner, masks, EPOCH, queued_interval_s=_NO_NOTICES_S)
        texts: dict[int, list[int]] = {seed: [] for seed in seeds}
        for seed in seeds:
            message = verifying(str(seed), 1, case.prompt, [], run_on=NUM_TOKENS - 1)
            target.submit(_opening(case, rule, seed), seed)
            target.submit(msgspec.structs.replace(message, own_drafts=True), seed)
        while target.has_work:
            for address, verdict in target.step():
                assert isinstance(address, int)
                assert isinstance(verdict, Verdict), verdict
                texts[address] += [*verdict.own, verdict.token]
                num_wrong = verdict.num_own_drafted - len(verdict.own)
                run.first_stood += [True] * len(verdict.own) + [False] * num_wrong
        for text in texts.values():
            run.texts.append(tuple((text + [EOS_ID] * NUM_TOKENS)[:NUM_TOKENS]))
    return run


def answers(engine: Engine) -> dict[int, EngineReply]:
    """Step until nothing is left to do; the reply to each address, one each."""
    replies: dict[int, EngineReply] = {}
    while engine.has_work:
        for address, reply in engine.step():
            assert isinstance(address, int)
            assert address not in replies
            replies[address] = reply
    return replies


def _opening(case: Case, rule: Verification, seed: int) -> Open:
    return opening(
        str(seed),
        msgspec.structs.replace(case.sampling, seed=seed, verification=rule),
        len(case.prompt),
        eos_ids=[EOS_ID],
        constraint=CONSTRAINT if case.is_masked else None,
    )


def _is_done(case: Case, text: list[int]) -> bool:
    return text[-1] == EOS_ID or len(text) >= len(case.prompt) + NUM_TOKENS


@dataclass(frozen=True)
class _Looked:
    """A draft that came for certain, or none."""

    tokens: list[int]
    draft_probs: None = None


def _propose(
    engine: DraftEngine,
    case: Case,
    seq: int,
    seeds: Sequence[int],
    texts: dict[int, list[int]],
    k: int,
) -> dict[int, Proposal] | dict[int, _Looked]:
    if case.is_certain or k == 0:
        return {seed: _Looked(certain_draft(texts[seed], k)) for seed in seeds}
    for seed in seeds:
        engine.submit(proposing(str(seed), seq, texts[seed], k), seed)
    proposals: dict[int, Proposal] = {}
    for seed, proposal in answers(engine).items():
        assert isinstance(proposal, Proposal), proposal
        proposals[seed] = proposal
    return proposals
