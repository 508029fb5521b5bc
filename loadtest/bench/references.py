"""The references of the benchmark: the bare engine, and transformers with and without a draft.

All run in the benchmark's own process, one after another, on the same checkpoints and prompts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Close, Open, Queued, Sampling, Verdict, Verify
from models.protocol.token_sequence import EMPTY_HASH

ReferenceModel = Any  # a PreTrainedModel; its `generate` is not typed as callable


def load_reference(path: Path, dtype: str, device: str = "cpu") -> ReferenceModel:
    """Load a checkpoint as transformers runs it by default."""
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    model.to(device).eval()
    # Given together with max_new_tokens it costs a warning per round of assisted generation.
    model.generation_config.max_length = None
    return model


@torch.inference_mode()
def generate_tokens_per_s(
    model: ReferenceModel,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    *,
    assistant: ReferenceModel | None = None,
    num_assistant_tokens: int | None = None,
) -> float:
    """Greedy `generate` of exactly `num_tokens` per prompt, one prompt after another.

    `num_assistant_tokens` None leaves k to transformers' own heuristic. It starts from its own
    values in each run, because it keeps its knowledge in the assistant's configuration.
    """
    options: dict[str, Any] = {}
    if assistant is not None:
        options["assistant_model"] = assistant
        if num_assistant_tokens is None:
            assistant.generation_config.num_assistant_tokens = None
            assistant.generation_config.assistant_confidence_threshold = None
            assistant.generation_config.num_assistant_tokens_schedule = "heuristic"
        else:
            assistant.generation_config.num_assistant_tokens = num_assistant_tokens
            assistant.generation_config.num_assistant_tokens_schedule = "constant"
            assistant.generation_config.assistant_confidence_threshold = 0.0
    num_generated = 0
    started_at = time.perf_counter()
    for prompt in prompts:
        ids = torch.tensor([list(prompt)], device=model.device)
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=num_tokens,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
        num_generated += output.shape[1] - ids.shape[1]
    return num_generated / (time.perf_counter() - started_at)


def generate_batch_tokens_per_s(
    model: ReferenceModel, prompts: Sequence[Sequence[int]], num_tokens: int
) -> float:
    """Greedy `generate` of all prompts in one left-padded batch."""
    longest = max(len(prompt) for prompt in prompts)
    padding = [longest - len(prompt) for prompt in prompts]
    ids = torch.tensor(
        [[0] * missing + list(prompt) for missing, prompt in zip(padding, prompts, strict=True)],
        device=model.device,
    )
    mask = torch.tensor(
        [
            [0] * missing + [1] * len(prompt)
            for missing, prompt in zip(padding, prompts, strict=True)
        ],
        device=model.device,
    )
    started_at = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=num_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
    elapsed_s = time.perf_counter() - started_at
    return (output.shape[1] - longest) * len(prompts) / elapsed_s


class BareEngine:
    """The target engine with nothing around it: no link, no router, no waiting for anybody."""

    def __init__(self, runner: ModelRunner) -> None:
        self._engine = TargetEngine(runner, NoMaskSource(), epoch=1)
        self._num_runs = 0

    def tokens_per_s(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """Plain greedy decoding of all prompts at once, `num_tokens` each, prefill included."""
        self._num_runs += 1
        names = [f"bare-{self._num_runs}-{index}" for index in range(len(prompts))]
        started_at = time.perf_counter()
        for name, prompt in zip(names, prompts, strict=True):
            self._start(name, list(prompt), num_tokens)
        num_generated = num_finished = 0
        while num_finished < len(prompts):
            for _, reply in self._engine.step():
                if isinstance(reply, Queued):
                    continue
                if not isinstance(reply, Verdict):
                    raise RuntimeError(f"engine answered {reply}")
                num_generated += 1
                num_finished += reply.is_last
        elapsed_s = time.perf_counter() - started_at
        for name in names:
            self._engine.submit(Close(session_id=name, epoch=1), None)
        return num_generated / elapsed_s

    def _start(self, name: str, prompt: list[int], num_tokens: int) -> None:
        self._engine.submit(
            Open(
                session_id=name,
                epoch=1,
                sampling=Sampling(temperature=0.0),
                eos_ids=[],
                prompt_len=len(prompt),
            ),
            None,
        )
        self._engine.submit(
            Verify(
                session_id=name,
                epoch=1,
                seq=1,
                base_len=0,
                prefix_hash=EMPTY_HASH,
                tokens=prompt,
                draft=[],
                run_on=num_tokens - 1,
            ),
            None,
        )
