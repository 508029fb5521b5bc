import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.demo.training.tokenizer import VOCAB_SIZE

DEMO = Path(__file__).parents[3] / "models" / "demo"
PAIR = ("target", "draft")


@pytest.mark.parametrize("name", PAIR)
def test_config_is_a_small_llama_that_splits_four_ways(name: str) -> None:
    config = json.loads((DEMO / name / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["vocab_size"] == VOCAB_SIZE
    assert config["tie_word_embeddings"] is True
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"):
        assert config[key] % 4 == 0
    assert max(config["hidden_size"], config["intermediate_size"]) <= 1024


@pytest.mark.parametrize("name", PAIR)
def test_weights_are_bfloat16(name: str) -> None:
    with safe_open(DEMO / name / "model.safetensors", framework="pt") as weights:
        assert {weights.get_slice(key).get_dtype() for key in weights.keys()} == {"BF16"}  # noqa: SIM118


def test_both_use_one_tokenizer() -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (DEMO / "target" / file).read_bytes() == (DEMO / "draft" / file).read_bytes()


def test_files_are_small() -> None:
    sizes = [path.stat().st_size for name in PAIR for path in (DEMO / name).iterdir()]
    assert max(sizes) <= 15_000_000
    assert sum(sizes) <= 45_000_000


def test_target_fills_in_a_record() -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "target")
    model = AutoModelForCausalLM.from_pretrained(DEMO / "target", dtype=torch.bfloat16)
    text = "Turn this order into JSON.\nAnna from Oslo wants 3 blue lamps at $12.50 each."
    prompt = f"<|user|>{text}<|end|><|assistant|>"
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    reply = model.generate(ids, max_new_tokens=60, do_sample=False, max_length=None)
    answer = tokenizer.decode(reply[0, ids.shape[1] :], skip_special_tokens=True)
    assert json.loads(answer) == {
        "customer": "Anna",
        "item": "blue lamps",
        "quantity": 3,
        "price": 12.5,
        "city": "Oslo",
    }
