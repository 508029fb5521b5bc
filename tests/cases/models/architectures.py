"""Tiny random checkpoints of many architectures, their text by transformers, and by our engines."""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    LagunaConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.utils import logging as transformers_logging

from models.config import AttentionName, DtypeName, EngineConfig, EngineName
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.kv.block_pool import BlockPool
from models.protocol.messages import Sampling
from tests.cases.models.greedy import greedy_text
from tests.fakes.engines import EPOCH, Client, Link, run_clients

VOCAB_SIZE = 256
MAX_LEN = 160
WINDOW = 12
NUM_TOKENS = 32
GREEDY = Sampling(temperature=0.0)
PROMPT_LENGTHS = (3, 11, 45, 20)  # the others get as far as the window while they generate

transformers_logging.disable_progress_bar()

_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}


def sizes(head_dim: int) -> dict[str, Any]:
    """Fields that all configs share: four heads of `head_dim`."""
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 4 * head_dim,
        "intermediate_size": 6 * head_dim,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,  # spreads the logits, so that an error would move an argmax
        "tie_word_embeddings": False,  # tied ones make a random model repeat its last token
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def configs(head_dim: int) -> dict[str, PreTrainedConfig]:
    """Configs of all architectures, by name."""
    plain = sizes(head_dim)
    headed = {**plain, "head_dim": head_dim}
    return {
        "llama": LlamaConfig(**plain),
        "qwen2": Qwen2Config(
            **plain, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
        ),
        "qwen3": Qwen3Config(**headed),
        "mistral": MistralConfig(**plain, sliding_window=WINDOW),
        "gemma2": Gemma2Config(
            **headed,
            sliding_window=WINDOW,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=30.0,
            query_pre_attn_scalar=4,
        ),
        "gemma3": Gemma3TextConfig(
            **{**headed, "num_hidden_layers": 3, "sliding_window_pattern": 2},
            sliding_window=WINDOW,
            query_pre_attn_scalar=40,
        ),
        "phi3": Phi3Config(**plain, sliding_window=WINDOW),
        "olmo2": Olmo2Config(**plain),
        "gpt_oss": GptOssConfig(**headed, sliding_window=WINDOW, **_EXPERTS),
        "qwen3_moe": Qwen3MoeConfig(
            **headed, moe_intermediate_size=3 * head_dim, num_experts=8, num_experts_per_tok=2
        ),
        "mixtral": MixtralConfig(**plain, sliding_window=WINDOW, **_EXPERTS),
        "laguna": LagunaConfig(  # its layers have different numbers of query heads
            **headed,
            num_attention_heads_per_layer=[4, 8],
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=2 * head_dim,
            shared_expert_intermediate_size=2 * head_dim,
        ),
        "gpt2": GPT2Config(
            vocab_size=VOCAB_SIZE,
            n_positions=256,
            n_embd=4 * head_dim,
            n_layer=2,
            n_head=4,
            initializer_range=0.2,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
        ),
    }


CONFIGS = configs(16)


@cache
def checkpoint(name: str, noise: float = 0.0) -> Path:
    """A random model of `CONFIGS[name]`; `noise` on its weights makes a draft that often agrees."""
    path = Path(tempfile.mkdtemp(prefix="outrider-arch-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    write(CONFIGS[name], path, noise)
    return path


def write(config: PreTrainedConfig, path: Path, noise: float = 0.0) -> None:
    """Save a random model of a config, with values where models start with zeros or ones."""
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 or "router" in name or "gate.weight" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
            if "sinks" in name:
                parameter.fill_(2.0)
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(path)


def runner(
    path: Path,
    dtype: DtypeName = "float32",
    attention: AttentionName = "auto",
    early_exit: int | None = None,
    engine: EngineName = "own",
) -> ModelRunner:
    """A runner over a checkpoint, loaded once; it comes with a new block pool each time."""
    loaded = _load(str(path), dtype, attention, early_exit, engine)
    loaded.pool = BlockPool(loaded.config.num_blocks, loaded.config.block_tokens)
    return loaded


def forget_runners() -> None:
    """Let go of all that are loaded: a module that needs them no more frees 250 MB."""
    _load.cache_clear()


@cache
def _load(
    path: str,
    dtype: DtypeName,
    attention: AttentionName,
    early_exit: int | None,
    engine: EngineName,
) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            model_path=path,
            dtype=dtype,
            max_model_len=MAX_LEN,
            kv_cache_tokens=6 * MAX_LEN,
            max_num_batched_tokens=64,
            num_threads=1,
            attention=attention,
            early_exit=early_exit,
            engine=engine,
            graphs="off" if engine == "vllm" else "auto",  # to compile takes 20 s a model
        )
    )


def prompts() -> list[list[int]]:
    """Random token ids, of several lengths."""
    choose = random.Random(5)
    return [choose.choices(range(VOCAB_SIZE), k=length) for length in PROMPT_LENGTHS]


@cache
def reference_texts(path: Path) -> list[list[int]]:
    """Return the ids that transformers adds to each of `prompts`, one after the other."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    return [greedy_text(model, prompt, NUM_TOKENS) for prompt in prompts()]


@dataclass
class Served:
    """What the engines generated, and how the drafts fared."""

    texts: list[list[int]]
    num_drafted: int
    num_accepted: int


def serve(
    target_path: Path,
    draft_path: Path | None = None,
    k: int = 0,
    sampling: Sampling = GREEDY,
    attention: AttentionName = "auto",
    engine: EngineName = "own",
) -> Served:
    """The text of all `prompts` together, in rounds of up to k draft tokens."""
    load = partial(runner, attention=attention, engine=engine)
    target = Link(TargetEngine(load(target_path), NoMaskSource(), EPOCH))
    draft = None
    if draft_path is not None:
        draft = Link(DraftEngine(load(draft_path), NoMaskSource(), EPOCH))
    clients = [
        Client(str(n), prompt, sampling, NUM_TOKENS, target, draft, num_draft_tokens=lambda: k)
        for n, prompt in enumerate(prompts())
    ]
    return Served(
        texts=run_clients(clients),
        num_drafted=sum(len(each.tokens) for client in clients for each in client.proposals),
        num_accepted=sum(each.num_accepted for client in clients for each in client.verdicts),
    )
