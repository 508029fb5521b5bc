from __future__ import annotations

import pytest
from transformers import GPT2Config, LlamaConfig, Olmo2Config, Phi3Config

from models.checkpoint.architecture import refuse_unsupported
from models.checkpoint.loader import load_checkpoint
from models.config import EngineConfig
from models.parallel.plan import divides_heads, refuse_unshardable, tensor_parallel_plan


@pytest.mark.parametrize(
    ("hf_config", "world_size", "reason"),
    [
        (
            GPT2Config(),
            2,
            "'gpt2' cannot be served with tensor_parallel_size 2: .*no tensor-parallel plan",
        ),
        (
            LlamaConfig(hidden_size=96, num_attention_heads=6),
            4,
            "'llama' .* divide num_attention_heads, 6",
        ),
        (
            LlamaConfig(num_attention_heads=32, num_key_value_heads=2),
            4,
            "tensor_parallel_size 4: it does not divide num_key_value_heads, 2",
        ),
        (LlamaConfig(intermediate_size=1001), 2, "divide intermediate_size, 1001"),
        (LlamaConfig(vocab_size=32001), 2, "divide vocab_size, 32001"),
    ],
    ids=["no_plan", "heads", "key_heads", "ffn", "vocabulary"],
)
def test_what_cannot_be_shared_is_refused_by_name(hf_config, world_size, reason):
    with pytest.raises(ValueError, match=reason):
        refuse_unshardable(hf_config, world_size)


def test_the_refusal_comes_before_weights_are_read():
    config = EngineConfig(model_path="unused", max_model_len=256, tensor_parallel_size=3)
    with pytest.raises(ValueError, match="tensor_parallel_size 3"):
        refuse_unsupported(LlamaConfig(), config)


@pytest.mark.parametrize("hf_config", [LlamaConfig(), GPT2Config()], ids=["llama", "gpt2"])
def test_one_rank_needs_nothing(hf_config):
    refuse_unshardable(hf_config, 1)


def test_heads_that_every_rank_keeps_need_not_divide():
    refuse_unshardable(Olmo2Config(hidden_size=96, num_attention_heads=6, num_key_value_heads=3), 4)


def test_plans_tell_whether_heads_are_divided():
    assert divides_heads(tensor_parallel_plan(LlamaConfig()))
    assert not divides_heads(tensor_parallel_plan(Phi3Config()))


def test_ranks_and_config_must_agree(tiny_target):
    config = EngineConfig(model_path=tiny_target, max_model_len=256, tensor_parallel_size=2)
    with pytest.raises(ValueError, match="tensor_parallel_size is 2, got 1 ranks"):
        load_checkpoint(config)
