"""Models that go on as another: deeper, in the parts of another family, from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from models.demo.training.training import (
    Shape,
    deepened,
    in_family,
    load_model,
    new_model,
    save_checkpoint,
)

TINY = Shape(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16)


def test_a_deeper_model_begins_as_the_one_it_came_from_and_learns(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    model = new_model(TINY, tokenizer, seed=1)
    deeper = deepened(model, 4, seed=2)
    ids = torch.randint(5, 4000, (2, 30), generator=torch.Generator().manual_seed(3))
    assert deeper.config.num_hidden_layers == 4
    assert torch.equal(model(ids).logits, deeper(ids).logits)
    deeper(ids).logits.sum().backward()
    added = deeper.model.layers[1].self_attn.o_proj.weight
    assert added.grad is not None
    assert added.grad.abs().sum() > 0
    assert deepened(model, 2, seed=2) is model, "it is deep enough"


def test_a_llama_in_qwen2s_parts_says_the_same_and_its_biases_learn(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    model = new_model(TINY, tokenizer, seed=1)
    other = in_family(model, tokenizer, "qwen2")
    ids = torch.randint(5, 4000, (2, 30), generator=torch.Generator().manual_seed(3))
    assert isinstance(other, Qwen2ForCausalLM)
    torch.testing.assert_close(other(ids).logits, model(ids).logits)
    other(ids).logits.square().sum().backward()
    bias = other.model.layers[0].self_attn.v_proj.bias
    assert bias.grad is not None
    assert bias.grad.abs().sum() > 0


def test_biases_are_not_dropped_on_the_way_to_another_family(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    model = new_model(TINY, tokenizer, seed=1, family="qwen2")
    with pytest.raises(ValueError, match=r"'llama' has no place for .*bias of a 'qwen2' model"):
        in_family(model, tokenizer, "llama")


def test_a_checkpoint_and_a_deeper_model_keep_their_family(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = new_model(TINY, tokenizer, seed=1, family="qwen2")
    torch.nn.init.normal_(model.model.layers[0].self_attn.q_proj.bias)
    save_checkpoint(deepened(model, 3, seed=2), tokenizer, tmp_path / "target")
    kept = load_model(tmp_path / "target", torch.float32)
    assert isinstance(kept, Qwen2ForCausalLM)
    assert kept.config.num_hidden_layers == 3
    own, theirs = (one.model.layers[0].self_attn.q_proj.bias for one in (model, kept))
    assert torch.equal(own.bfloat16().float(), theirs)
