"""Folders of an EAGLE-3 head: what is read, what is refused, and what memory it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from models.engine.runner import ModelRunner, SequenceRows
from models.heads.config import TargetHeads, target_heads
from models.heads.eagle3_folder import read_eagle3
from tests.cases.models.eagle3 import (
    FEW_IDS,
    LAYER_IDS,
    NUM_STEPS,
    Spelling,
    eagle3_weights,
    write_eagle3,
)
from tests.fakes.engines import make_runner, random_prompt
from tests.models.heads.test_mtp import TARGET, VOCAB, WIDTH, check_memory, gpt2, model


def without(weights: dict[str, torch.Tensor], key: str) -> dict[str, torch.Tensor]:
    return {name: one for name, one in weights.items() if name != key}


KEY = "layers.0.self_attn.q_proj.weight"
WEIGHTS: list[tuple[str, dict[str, torch.Tensor]]] = [
    (r"lacks layers\.0\.self_attn\.q_proj\.weight", without(eagle3_weights(TARGET), KEY)),
    ("lacks lm_head.weight", without(eagle3_weights(TARGET), "lm_head.weight")),
    (
        "has extra, which is no part of an EAGLE-3 head",
        eagle3_weights(TARGET) | {"extra": torch.ones(1)},
    ),
    (
        r"q_proj\.weight has shape \[64, 64\], its config and the target need \[64, 128\]",
        eagle3_weights(TARGET) | {KEY: torch.ones(64, 64)},
    ),
    ("lacks d2t: it drafts 11 ids", without(eagle3_weights(TARGET, ids=FEW_IDS), "d2t")),
    (
        "d2t has ids beyond 255",
        eagle3_weights(TARGET, ids=(1, 2)) | {"d2t": torch.tensor([0, 255])},
    ),
    (
        r"d2t has shape \[3\], expected \[2\]",
        eagle3_weights(TARGET, ids=(1, 2)) | {"d2t": torch.tensor([0, 1, 2])},
    ),
    (
        "t2d marks other ids than d2t names",
        eagle3_weights(TARGET, ids=(1, 2)) | {"d2t": torch.tensor([1, 2])},
    ),
    (
        r"t2d has shape \[9\], expected \[256\]",
        eagle3_weights(TARGET, ids=(1, 2)) | {"t2d": torch.ones(9, dtype=torch.bool)},
    ),
    (r"fc\.weight has shape \[64, 128\]", eagle3_weights(TARGET, num_states=2)),
    ("lacks embed_tokens.weight", without(eagle3_weights(TARGET, width=48), "embed_tokens.weight")),
]


@pytest.mark.parametrize(("message", "weights"), WEIGHTS)
def test_other_weights_are_refused_by_name(
    message: str, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    folder = write_eagle3(tmp_path, TARGET, eagle3_weights(TARGET) | weights)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        read_eagle3(folder, model())


@pytest.mark.parametrize(
    ("message", "config"),
    [
        ("num_hidden_layers must be 1, got 2", {"num_hidden_layers": 2}),
        ("num_key_value_heads must be the target's, 2, got 4", {"num_key_value_heads": 4}),
        ("head_dim must be the target's, 16, got 32", {"head_dim": 32}),
        ("model_type must be one of llama, .*, got 'gpt2'", {"model_type": "gpt2"}),
        ("target_hidden_size must be the target's, 64, got 128", {"target_hidden_size": 128}),
        (
            r"eagle_aux_hidden_state_layer_ids must be 1 to 5 of the target's layers, 0 to 1, "
            r"got \[0, 1, 2\]",
            {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
        ),
        (r"0 to 1, got \[2, 1, -1\]", {"eagle_aux_hidden_state_layer_ids": None}),
        ("draft_vocab_size must be at least 1, got '9'", {"draft_vocab_size": "9"}),
        ("norm_output must be true or false, got 1", {"norm_output": 1}),
        ("parallel_drafting is not served", {"parallel_drafting": True}),
        ("use_aux_hidden_state must be true", {"eagle_config": {"use_aux_hidden_state": False}}),
        ("logit_scale must be 1, got 0.5", {"logit_scale": 0.5}),
        ("num_speculative_steps must be 1 to 64, got 0", {"num_speculative_steps": 0}),
    ],
)
def test_other_configs_are_refused_by_name(
    message: str, config: dict[str, object], tmp_path: Path
) -> None:
    folder = write_eagle3(tmp_path, TARGET, eagle3_weights(TARGET), "original", **config)
    with pytest.raises(ValueError, match=message):
        read_eagle3(folder, model())


def test_a_target_of_another_family_is_refused(tmp_path: Path) -> None:
    folder = write_eagle3(tmp_path, TARGET, eagle3_weights(TARGET))
    with pytest.raises(ValueError, match=r"EAGLE-3 heads are served for Llama.*not for gpt2"):
        read_eagle3(folder, gpt2())


@pytest.mark.parametrize("spelling", ["original", "speculators"])
def test_both_spellings_are_one_kind_and_hold_the_same(spelling: Spelling, tmp_path: Path) -> None:
    weights = eagle3_weights(TARGET, ids=FEW_IDS)
    folder = write_eagle3(tmp_path, TARGET, weights, spelling)
    assert target_heads(str(folder), None) == TargetHeads("eagle3")
    parts = read_eagle3(folder, model())
    assert parts.config.layer_ids == LAYER_IDS
    assert parts.config.num_tokens == (NUM_STEPS if spelling == "speculators" else 5)
    assert parts.draft_ids is not None
    assert parts.draft_ids.tolist() == list(FEW_IDS)
    for key, weight in parts.state_dict().items():
        assert weight.equal(weights[key]), key


def test_weights_may_be_a_torch_file_and_options_lie_in_eagle_config(tmp_path: Path) -> None:
    weights = eagle3_weights(TARGET)
    options = {"norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [1, 0, 0]}
    folder = write_eagle3(
        tmp_path,
        TARGET,
        weights,
        "original",
        eagle_config=options,
        eagle_aux_hidden_state_layer_ids=None,
    )
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(stored, folder / "pytorch_model.bin")
    parts = read_eagle3(folder, model())
    assert parts.config.norm_before_residual
    assert parts.config.layer_ids == (1, 0, 0)
    assert parts.fc.weight.equal(weights["fc.weight"])


def test_without_ids_of_layers_they_are_the_usual_ones(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    weights = eagle3_weights(TARGET)
    folder = write_eagle3(tmp_path, TARGET, weights, eagle_aux_hidden_state_layer_ids=None)
    assert read_eagle3(folder, LlamaForCausalLM(config)).config.layer_ids == (2, 4, 5)


@pytest.mark.parametrize("attention", ["auto", "reference"])
def test_states_are_what_goes_into_the_targets_layers(attention: str, tmp_path: Path) -> None:
    """Of all rows of a pass, fused."""
    weights = eagle3_weights(TARGET)
    runner = make_runner(attention=attention, heads=str(write_eagle3(tmp_path, TARGET, weights)))
    ids = random_prompt(2, 20)
    table = runner.pool.new_table()
    table.resize(20)
    runner.forward([SequenceRows(table, 0, ids[:11], 3)])
    runner.forward([SequenceRows(table, 11, ids[11:], 1)])
    with torch.no_grad():
        out = model().model(torch.tensor([ids]), output_hidden_states=True)
    inputs = torch.cat([out.hidden_states[index][0] for index in LAYER_IDS], dim=-1)
    expected = inputs @ weights["fc.weight"].T
    assert runner.hidden is not None
    torch.testing.assert_close(runner.hidden, expected[11:], rtol=1e-4, atol=1e-4)
    table.free()


@pytest.mark.parametrize("ids", [None, FEW_IDS], ids=["all", "few"])
@pytest.mark.parametrize("width", [None, 48])
def test_memory_is_estimated_as_it_is_taken(
    width: int | None, ids: tuple[int, ...] | None, tmp_path: Path
) -> None:
    weights = eagle3_weights(TARGET, ids=ids, width=width)
    numbers = sum(one.numel() for name, one in weights.items() if name not in ("d2t", "t2d"))
    check_memory(write_eagle3(tmp_path, TARGET, weights), numbers)


def test_weights_take_the_targets_type(tmp_path: Path) -> None:
    folder = write_eagle3(tmp_path, TARGET, eagle3_weights(TARGET))
    runner: ModelRunner = make_runner(dtype="bfloat16", heads=str(folder))
    table = runner.pool.new_table()
    table.resize(5)
    rows = [SequenceRows(table, 0, random_prompt(3, 5), 2)]
    runner.forward(rows)
    logits, states = runner.draft_pass(rows, runner.hidden)
    assert states is not None
    assert (logits.shape, states.shape) == ((2, VOCAB), (2, WIDTH))
    assert (logits.dtype, states.dtype) == (torch.float32, torch.bfloat16)
    table.free()
