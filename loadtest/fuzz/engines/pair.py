"""A pair of tiny checkpoints whose texts depend on every row of their caches.

Random Llamas with the shipped tokenizer and its 4096 ids. The weights are wide enough that one
wrong row of a KV cache moves an argmax. The draft is the target with noise on its weights, so that
about half of the drafts stand. `random_pair` would not do: there a text hangs on its last token
alone.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from loadtest.fuzz.cases import OpenPart, Outcome, in_world
from loadtest.report.machine import ROOT
from models.grammar.compiler import GrammarCompiler, VocabularyInfo
from models.grammar.host import GrammarHost
from models.grammar.limits import HostLimits
from models.text.tokenizer import Tokenizer

VOCAB_SIZE = 4096
MAX_MODEL_LEN = 512
_DEMO = ROOT / "models" / "demo" / "target"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_STD = 0.2  # spreads the logits
_NOISE = 0.01  # noise in the draft's weights


@cache
def pair_folder() -> Path:
    """Return a folder with `target` and `draft`, written once per process, removed at its end."""
    transformers_logging.disable_progress_bar()
    folder = Path(tempfile.mkdtemp(prefix="outrider-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _write_target(folder / "target")
    _write_draft(folder / "target", folder / "draft")
    for name in ("target", "draft"):
        for file in _TOKENIZER_FILES:
            shutil.copy(_DEMO / file, folder / name / file)
    return folder


@cache
def fuzz_tokenizer() -> Tokenizer:
    """Return the pair's tokenizer."""
    return Tokenizer.load(pair_folder() / "target")


def grammar_host() -> GrammarHost:
    """Return a fresh constraint host for the pair's vocabulary."""
    vocabulary = VocabularyInfo(
        tokenizer_json=(_DEMO / "tokenizer.json").read_text(encoding="utf-8"),
        vocab_size=VOCAB_SIZE,
        eos_ids=fuzz_tokenizer().eos_ids,
    )
    return GrammarHost(GrammarCompiler(vocabulary), HostLimits(max_cached_grammars=32))


def with_grammars(case: Callable[[int, GrammarHost], Awaitable[Outcome]]) -> OpenPart:
    """Make a part of the fuzzer whose cases, by their seed, share one constraint host."""
    return in_world(lambda: nullcontext(grammar_host()), case)


def _write_target(folder: Path) -> None:
    state = torch.get_rng_state()
    torch.manual_seed(11)
    try:
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCAB_SIZE,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=MAX_MODEL_LEN,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=0,
                initializer_range=_STD,
            )
        )
    finally:
        torch.set_rng_state(state)
    model.bfloat16().save_pretrained(folder)


def _write_draft(target: Path, folder: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(target)
    generator = torch.Generator().manual_seed(12)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            parameter.add_((_NOISE * noise).to(parameter.dtype))
    model.bfloat16().save_pretrained(folder)
