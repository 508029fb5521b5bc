"""References beside ours: `transformers` with and without the draft, `vllm`, and `bare`.

All run on the same checkpoints, the first and the last in this process and with the same threads.
`bare` is our engine alone. Answers are greedy and have exactly as many tokens as were asked for.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from deployments.local.pair import local_config
from loadtest.frame.runs import Answer, Ask, Run
from loadtest.frame.stages import Closing, Models
from loadtest.frame.ways import Way
from models.checkpoint.packed import refuse_groups
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Close, Open, Queued, Sampling, Verdict, Verify
from models.protocol.token_sequence import EMPTY_HASH
from router.drafters.draft_model import POOL

_EPOCH = 1
_VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
_LOAD_S, _ANSWER_S = 300.0, 600.0
ReferenceModel = Any  # a PreTrainedModel; its `generate` is not typed as callable


def load_reference(path: Path, dtype: str, device: str = "cpu") -> ReferenceModel:
    """Load a checkpoint as transformers runs it by default.

    Raises:
        ValueError: its weights are in groups, which transformers does not read.
    """
    refuse_groups(str(path))
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    model.to(device).eval()
    # Given together with max_new_tokens it costs a warning per round of assisted generation.
    model.generation_config.max_length = None
    return model


class _Reference(Closing):
    """A stage that loads its models when it is made, and answers greedily; a base."""

    def __init__(self, models: Models) -> None:
        if "num_threads" in models.engine:
            torch.set_num_threads(models.engine["num_threads"])

    def run(self, asks: Sequence[Ask], way: Way, batch: int) -> Run:
        """See `Stage.run`."""
        if any(ask.temperature or (ask.schema and way.is_constrained) for ask in asks):
            raise ValueError("references answer greedily and without grammars")
        starts = range(0, len(asks), batch)
        parts = [self._answers(asks[start : start + batch], way) for start in starts]
        return Run(answers=[answer for part in parts for answer in part], batch=batch)

    def _answers(self, asks: Sequence[Ask], way: Way) -> list[Answer]:
        raise NotImplementedError


def _all_at_once(texts: Sequence[list[int]], began_s: float, ended_s: float) -> list[Answer]:
    """Return the answers of a batch whose first tokens are not told."""
    return [
        Answer(
            content=tuple(text),
            num_tokens=len(text),
            num_first=len(text),
            began_s=began_s,
            first_s=ended_s,
            ended_s=ended_s,
        )
        for text in texts
    ]


class TransformersStage(_Reference):
    """Implements `Stage` with `generate` of transformers; drafts are those of an assistant.

    A way's k is the assistant's, and transformers' own heuristic chooses it if it is None. Rounds
    and first tokens are not told.
    """

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        dtype, device = models.engine.get("dtype", "bfloat16"), models.engine.get("device", "cpu")
        self._model = load_reference(models.target, dtype, device)
        draft = models.drafts.get(POOL)
        self._assistant: ReferenceModel | None = (
            None if draft is None else load_reference(draft, dtype, device)
        )

    @torch.inference_mode()
    def _answers(self, asks: Sequence[Ask], way: Way) -> list[Answer]:
        """Return the answers of one left-padded batch."""
        if way.k != 0 and (len(asks) > 1 or self._assistant is None):
            raise ValueError("batch, draft: transformers' assistants answer one request at a time")
        [num_tokens] = {ask.max_tokens for ask in asks}  # one limit for a batch
        longest = max(len(ask.prompt_ids) for ask in asks)
        padding = [longest - len(ask.prompt_ids) for ask in asks]
        ids, mask = (
            torch.tensor(rows, device=self._model.device)
            for rows in (
                [[0] * num + [*ask.prompt_ids] for num, ask in zip(padding, asks, strict=True)],
                [[0] * num + [1] * (longest - num) for num in padding],
            )
        )
        began_s = time.perf_counter()
        output = self._model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=num_tokens,
            eos_token_id=None,
            pad_token_id=0,
            **({} if way.k == 0 else {"assistant_model": self._assisting(way.k)}),
        )
        ended_s = time.perf_counter()
        return _all_at_once([row[longest:] for row in output.tolist()], began_s, ended_s)

    def _assisting(self, k: int | None) -> ReferenceModel:
        """Return the assistant, which drafts k tokens a round.

        The heuristic begins with its own values each time. It keeps its knowledge in the
        assistant's configuration.
        """
        assert self._assistant is not None, "it was asked for"
        config = self._assistant.generation_config
        config.num_assistant_tokens = k
        config.num_assistant_tokens_schedule = "heuristic" if k is None else "constant"
        config.assistant_confidence_threshold = None if k is None else 0.0
        return self._assistant


@dataclass
class _Stream:
    """An answer of the bare engine that has not ended."""

    token_ids: list[int]
    first_s: float = 0.0
    ended_s: float = 0.0

    def take(self, verdict: Verdict) -> None:
        """Note a token."""
        self.token_ids.append(verdict.token)
        self.ended_s = time.perf_counter()
        self.first_s = self.first_s or self.ended_s


class BareStage(_Reference):
    """Implements `Stage` with the target engine alone: no link, no router, no draft."""

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        runner = ModelRunner(local_config(models.tree(Way())).target)
        self._engine = TargetEngine(runner, NoMaskSource(), epoch=_EPOCH)
        self._numbers = count()

    def _answers(self, asks: Sequence[Ask], way: Way) -> list[Answer]:
        """Return plain answers; the prompts are read together."""
        if way.k != 0:
            raise ValueError("k: the bare engine decodes without drafts")
        began_s = time.perf_counter()
        streams = {f"bare-{next(self._numbers)}": _Stream([]) for _ in asks}
        for name, ask in zip(streams, asks, strict=True):
            self._start(name, ask)
        num_running = len(streams)
        while num_running:
            if not self._engine.has_work:
                raise RuntimeError(f"the engine left {num_running} answers without an end")
            for _, reply in self._engine.step():
                if isinstance(reply, Queued):
                    continue
                if not isinstance(reply, Verdict):
                    raise RuntimeError(f"the engine answered {reply}")
                streams[reply.session_id].take(reply)
                num_running -= reply.is_last
        for name in streams:
            self._engine.submit(Close(session_id=name, epoch=_EPOCH), None)
        return [
            Answer(
                content=tuple(stream.token_ids),
                num_tokens=len(stream.token_ids),
                num_first=1,
                began_s=began_s,
                first_s=stream.first_s,
                ended_s=stream.ended_s,
            )
            for stream in streams.values()
        ]

    def _start(self, name: str, ask: Ask) -> None:
        """Open a session and ask for all of its tokens at once."""
        opening = Open(
            session_id=name,
            epoch=_EPOCH,
            sampling=Sampling(temperature=0.0),
            eos_ids=[],
            prompt_len=len(ask.prompt_ids),
        )
        self._engine.submit(opening, None)
        self._engine.submit(
            Verify(
                session_id=name,
                epoch=_EPOCH,
                seq=1,
                base_len=0,
                prefix_hash=EMPTY_HASH,
                tokens=list(ask.prompt_ids),
                draft=[],
                run_on=ask.max_tokens - 1,
            ),
            None,
        )


class VllmStage(_Reference):
    """Implements `Stage` with `generate` of vLLM, with its scheduler and sampler.

    A way's k is that of its own speculation with the draft model; first tokens are not told.

    Raises:
        TimeoutError: vLLM is not ready in time.
        EOFError: its process ended; why is on stderr.
    """

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._models = models
        self._engines: dict[int, _VllmProcess] = {}
        self._engine(0)

    def close(self) -> None:
        """End its processes."""
        for engine in self._engines.values():
            engine.close()

    def _engine(self, k: int) -> _VllmProcess:
        if k not in self._engines:
            words: dict[str, Any] = {
                "model": str(self._models.target.resolve()),
                "dtype": self._models.engine.get("dtype", "bfloat16"),
                "max_model_len": self._models.engine["max_model_len"],
            }
            if k > 0:
                draft = str(self._models.drafts[POOL].resolve())
                words["speculative_config"] = {
                    "method": "draft_model",
                    "model": draft,
                    "num_speculative_tokens": k,
                }
            self._engines[k] = _VllmProcess(words)
        return self._engines[k]

    def _answers(self, asks: Sequence[Ask], way: Way) -> list[Answer]:
        if way.k is None:
            raise ValueError("k: vLLM drafts as many tokens as it is told")
        return _all_at_once(*self._engine(way.k).answer(asks))


class _VllmProcess:
    """vLLM's engine in a process to itself, without a second one, which is its faster way.

    It compiles the layers, as it does by default. Times are taken there.
    """

    def __init__(self, words: dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve_vllm, args=(theirs, words), daemon=True)
        self._process.start()
        theirs.close()
        self._receive(_LOAD_S)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.join(_LOAD_S)

    def answer(self, asks: Sequence[Ask]) -> tuple[list[list[int]], float, float]:
        """Return the texts, and when they began and ended."""
        self._pipe.send([([*ask.prompt_ids], ask.max_tokens) for ask in asks])
        found: tuple[list[list[int]], float, float] = self._receive(_ANSWER_S)
        return found

    def _receive(self, limit_s: float) -> Any:
        if not self._pipe.poll(limit_s):
            raise TimeoutError(f"vLLM: nothing within {limit_s:g} s")
        return self._pipe.recv()


def _serve_vllm(pipe: Connection, words: dict[str, Any]) -> None:
    """Answer lists of prompts and lengths with texts and times, until killed."""
    os.environ.update(_VLLM_ENVIRONMENT)
    from vllm import LLM, SamplingParams

    llm: Any = LLM(**words, skip_tokenizer_init=True, enable_prefix_caching=False)
    pipe.send(None)
    while True:
        asked = pipe.recv()
        prompts = [{"prompt_token_ids": ids} for ids, _ in asked]
        wanted = [
            SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
            for _, length in asked
        ]
        began_s = time.perf_counter()
        found = llm.generate(prompts, wanted, use_tqdm=False)
        ended_s = time.perf_counter()
        pipe.send(([list(one.outputs[0].token_ids) for one in found], began_s, ended_s))
