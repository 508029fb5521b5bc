import json
from pathlib import Path
from statistics import mean

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.demo.data.chat import ask
from models.demo.data.concepts import held_out_sets, prompt_of
from models.demo.training.tokenizer import VOCAB_SIZE
from models.distill.answers import written
from models.rewards.words import Concepts

DEMO = Path(__file__).parents[3] / "models" / "demo"
PAIR = ("target", "draft")
ALL = (*PAIR, "concepts/target", "concepts/draft")


@pytest.mark.parametrize("name", ALL)
def test_config_is_a_small_llama_that_splits_four_ways(name: str) -> None:
    config = json.loads((DEMO / name / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["vocab_size"] == VOCAB_SIZE
    assert config["tie_word_embeddings"] is True
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"):
        assert config[key] % 4 == 0
    assert max(config["hidden_size"], config["intermediate_size"]) <= 1024


@pytest.mark.parametrize("name", ALL)
def test_weights_are_bfloat16(name: str) -> None:
    with safe_open(DEMO / name / "model.safetensors", framework="pt") as weights:
        assert {weights.get_slice(key).get_dtype() for key in weights.keys()} == {"BF16"}  # noqa: SIM118


def test_all_use_one_tokenizer() -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert len({(DEMO / name / file).read_bytes() for name in ALL}) == 1


def test_files_are_small() -> None:
    sizes = [path.stat().st_size for name in ALL for path in (DEMO / name).iterdir()]
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


def test_greedy_leaves_look_aheads_something_to_gain() -> None:
    """The pair for concept sets meets many sets by itself and misses many, as its card says."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "concepts/target")
    target = AutoModelForCausalLM.from_pretrained(DEMO / "concepts/target", dtype=torch.bfloat16)
    sets = held_out_sets(40, seed=7)
    prompts = [tokenizer(ask(prompt_of(concepts), "").prompt)["input_ids"] for concepts in sets]
    replies = written(target, prompts, max_new_tokens=320)
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in replies]
    scored = [
        Concepts(concepts=list(concepts)).score(text, "", is_end=True)
        for concepts, text in zip(sets, texts, strict=True)
    ]
    share_met = mean(one.is_met for one in scored)
    assert 0.4 <= share_met <= 0.8
    assert share_met < mean(one.score for one in scored) < 1.0
    assert mean(ids[-1] == tokenizer.eos_token_id for ids in replies) > 0.9
    assert 5 < mean(len(text.split()) for text in texts) < 25
