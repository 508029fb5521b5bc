from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from models.demo.training.training import Shape, deepened, new_model

SHIPPED = Path(__file__).parents[4] / "models" / "demo" / "target"
TWO_LAYERS = Shape(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16)


def test_a_deeper_model_begins_as_the_one_it_came_from_and_learns() -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(SHIPPED)
    model = new_model(TWO_LAYERS, tokenizer, seed=1)
    deeper = deepened(model, 4, seed=2)
    ids = torch.randint(5, 4000, (2, 30), generator=torch.Generator().manual_seed(3))
    assert deeper.config.num_hidden_layers == 4
    assert torch.equal(model(ids).logits, deeper(ids).logits)
    deeper(ids).logits.sum().backward()
    added = deeper.model.layers[1].self_attn.o_proj.weight
    assert added.grad is not None
    assert added.grad.abs().sum() > 0


def test_a_model_that_is_deep_enough_stays_itself() -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(SHIPPED)
    model = new_model(TWO_LAYERS, tokenizer, seed=1)
    assert deepened(model, 2, seed=2) is model
