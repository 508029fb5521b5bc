"""Grown checkpoints: the same function at another size; pairs with a chosen agreement."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from loadtest.frame.references import load_reference
from loadtest.grow.__main__ import main
from loadtest.grow.checkpoint import grow_checkpoint
from loadtest.grow.noise_fit import (
    coupled_acceptance,
    fit_noise,
    last_states,
    measure_agreement,
    perturbed_head,
)
from loadtest.grow.pair_texts import Text, draw_texts
from loadtest.grow.presets import PRESETS
from loadtest.grow.source import Source, check_size
from models.distill.losses import coupled

DEMO = Path(__file__).parents[3] / "models" / "demo" / "target"
WEIGHTS = "model.safetensors"
PROMPT = [3, 141, 59, 26, 53, 58, 97, 93, 2, 38, 46]

# What is grown of a source of 2 layers, 64 hidden, FFN 176, 4 heads on 2 key heads.
GROWTHS = {
    "nothing": {},
    "layers": {"num_hidden_layers": 5},
    "hidden": {"hidden_size": 256},
    "hidden_by_no_power_of_four": {"hidden_size": 72},
    "ffn": {"intermediate_size": 200},
    "heads_in_the_same_groups": {"num_attention_heads": 8, "num_key_value_heads": 4},
    "larger_groups": {"num_attention_heads": 8},
    "key_heads_repeated": {"num_key_value_heads": 4},
    "key_heads_repeated_and_new": {"num_attention_heads": 16, "num_key_value_heads": 16},
    "everything": {
        "num_hidden_layers": 7,
        "hidden_size": 192,
        "intermediate_size": 500,
        "num_attention_heads": 12,
        "num_key_value_heads": 6,
    },
}


@pytest.fixture(scope="module")
def tiny_source(make_tiny_llama, tmp_path_factory) -> Source:
    """In float32; norms differ and epsilon is large, so that neither could be forgotten."""
    model = AutoModelForCausalLM.from_pretrained(
        make_tiny_llama(seed=5, rms_norm_eps=0.03), dtype=torch.float32
    )
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.5, 1.5, generator=generator)
    path = tmp_path_factory.mktemp("source")
    model.save_pretrained(path)
    return Source.load(path)


def logits(path: Path, ids: list[int] = PROMPT) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("changes", GROWTHS.values(), ids=GROWTHS.keys())
def test_logits_are_those_of_the_source(tiny_source, tmp_path, changes):
    size = replace(tiny_source.size, **changes)
    grow_checkpoint(tiny_source, tmp_path, size, seed=3)
    grown = Source.load(tmp_path)
    assert grown.size == size
    expected = logits(tiny_source.path)
    assert expected.std() > 0.5
    torch.testing.assert_close(logits(tmp_path), expected, rtol=1e-4, atol=1e-4)


def test_bfloat16_keeps_the_function_where_norms_are_halved(make_tiny_llama, tmp_path):
    source = Source.load(Path(make_tiny_llama(seed=5)))
    assert source.lm_head.dtype == torch.bfloat16
    grow_checkpoint(source, tmp_path, replace(source.size, hidden_size=256), seed=0)
    assert Source.load(tmp_path).lm_head.dtype == torch.bfloat16
    torch.testing.assert_close(logits(tmp_path), logits(source.path), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 1}, "num_hidden_layers must be at least the source's 2, got 1"),
        ({"hidden_size": 63}, "hidden_size must be at least the source's 64, got 63"),
        ({"intermediate_size": 4}, "intermediate_size must be at least the source's 176, got 4"),
        (
            {"hidden_size": 66},
            r"hidden_size must be a multiple of num_attention_heads \(4\), got 66",
        ),
        (
            {"num_key_value_heads": 3},
            r"num_attention_heads must be a multiple of num_key_value_heads \(3\), got 4",
        ),
    ],
)
def test_bad_sizes_are_refused_by_name_and_value(tiny_source, changes, message):
    size = replace(tiny_source.size, **changes)
    with pytest.raises(ValueError, match=message):
        check_size(tiny_source, size)


def test_too_few_key_heads_for_smaller_groups_are_refused(make_tiny_llama):
    source = Source.load(Path(make_tiny_llama(num_attention_heads=8, num_key_value_heads=2)))
    size = replace(source.size, num_attention_heads=9, num_key_value_heads=3, hidden_size=72)
    message = "num_key_value_heads must be at least 4 when 3 query heads share one, got 3"
    with pytest.raises(ValueError, match=message):
        check_size(source, size)


@pytest.mark.parametrize(
    ("changes", "file", "message"),
    [
        ({"attention_bias": True}, WEIGHTS, "has biases"),
        ({"mlp_bias": True}, WEIGHTS, "has biases"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            WEIGHTS,
            "has quantised weights",
        ),
        ({"model_type": "qwen2"}, WEIGHTS, "is of model type 'qwen2'; only 'llama' is known"),
        (
            {"intermediate_size": 177},
            WEIGHTS,
            r"mlp.down_proj.weight' .* shape \[64, 177\], got \[64, 176\]",
        ),
        ({"num_hidden_layers": 3}, WEIGHTS, r"layers.2.* should have shape .*, got none"),
        ({"num_hidden_layers": 1}, WEIGHTS, r"layers.1.* should have shape none, got "),
        ({}, "part.safetensors", r"has neither model\.safetensors nor"),
    ],
    ids=str,
)
def test_sources_that_are_not_understood_are_refused(tiny_source, tmp_path, changes, file, message):
    config = json.loads((tiny_source.path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    (tmp_path / file).symlink_to(tiny_source.path / WEIGHTS)
    with pytest.raises(ValueError, match=message):
        Source.load(tmp_path)


def test_a_source_may_come_in_shards(tiny_source, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_source.path, dtype=torch.float32)
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    weights = Source.load(tmp_path).weights
    assert weights.keys() == tiny_source.weights.keys()
    assert all(torch.equal(weights[name], tiny_source.weights[name]) for name in weights)


@dataclass(frozen=True)
class Fitted:
    """The shipped target and its states along texts of its own."""

    source: Source
    texts: list[Text]
    states: torch.Tensor


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    source, reference = Source.load(DEMO), load_reference(DEMO, "float32")
    texts = draw_texts(reference, DEMO, 12, kind="story", num_tokens=48, seed=2)
    return Fitted(source, texts, last_states(reference, texts))


def test_texts_are_what_the_model_writes(fitted):
    assert [text.is_sampled for text in fitted.texts] == [False] * 12 + [True] * 12
    lengths = [len(text.reply) for text in fitted.texts]
    assert len(fitted.states) == sum(lengths) > 1000
    best = (fitted.states @ fitted.source.lm_head.float().T).argmax(dim=-1).split(lengths)
    for text, tokens in zip(fitted.texts, best, strict=True):
        assert (tokens.tolist() == text.reply) != text.is_sampled


@pytest.mark.parametrize("acceptance", [0.5, 0.8, 0.95, 1.0])
def test_noise_gives_the_agreement_that_was_asked_for(fitted, acceptance):
    source, states = fitted.source, fitted.states
    fit = fit_noise(states, source.lm_head, acceptance, tolerance=0.01, seed=3)
    assert fit.greedy_agreement == pytest.approx(acceptance, abs=0.01)
    head = perturbed_head(source.lm_head, fit.noise, 3)
    best = [(states @ weights.float().T).argmax(dim=-1) for weights in (source.lm_head, head)]
    assert float((best[0] == best[1]).double().mean()) == pytest.approx(fit.greedy_agreement)
    assert torch.equal(head, source.lm_head) == (fit.noise == 0.0) == (acceptance == 1.0)
    assert fit == fit_noise(states, source.lm_head, acceptance, tolerance=0.01, seed=3)


def test_coupled_acceptance_is_that_of_draws_but_for_unlikely_tokens():
    generator = torch.Generator().manual_seed(4)
    theirs, own = torch.randn(2, 3, 600, generator=generator).softmax(-1)
    found = coupled_acceptance(theirs, own)
    whole = torch.stack([coupled(p, q) for p, q in zip(theirs, own, strict=True)])
    assert (found <= whole + 1e-6).all()
    few = coupled_acceptance(theirs[:, :100], own[:, :100])  # none is left out
    exact = [coupled(p, q) for p, q in zip(theirs[:, :100], own[:, :100], strict=True)]
    torch.testing.assert_close(few, torch.stack(exact), rtol=2e-3, atol=1e-4)


def test_measuring_two_models_finds_what_was_fitted(fitted):
    fit = fit_noise(fitted.states, fitted.source.lm_head, 0.8, tolerance=0.01, seed=3)
    target, draft = (load_reference(DEMO, "float32") for _ in range(2))
    head = perturbed_head(fitted.source.lm_head, fit.noise, 3)
    draft.lm_head.weight = torch.nn.Parameter(head.float())
    found = measure_agreement(target, draft, fitted.texts)
    assert found.num_positions == fit.num_positions
    assert found.greedy_agreement == pytest.approx(fit.greedy_agreement, abs=1e-4)
    assert 0.5 < found.coupled_acceptance < found.rejection_acceptance < 0.95
    same = measure_agreement(target, target, fitted.texts)
    assert (same.on_greedy_text, same.on_sampled_text, same.standard_error) == (1.0, 1.0, 0.0)
    assert same.rejection_acceptance == 1.0


@pytest.mark.parametrize(
    ("acceptance", "tolerance", "message"),
    [
        (0.0, 0.01, "acceptance must be above 0 and at most 1, got 0.0"),
        (1.1, 0.01, "acceptance must be above 0 and at most 1, got 1.1"),
        (0.8, 0.0, "tolerance must be above 0 and below 1, got 0.0"),
        (1e-6, 1e-7, "acceptance 1e-06 was not met within tolerance 1e-07 on 1152 positions"),
        (0.80012345, 1e-9, "0.80012345 was not met within tolerance 1e-09 on .* nearest is 0.8"),
    ],
)
def test_agreement_out_of_reach_is_refused(fitted, acceptance, tolerance, message):
    source, states = fitted.source, fitted.states
    with pytest.raises(ValueError, match=message):
        fit_noise(states, source.lm_head, acceptance, tolerance=tolerance, seed=3)


def test_the_command_makes_a_pair(tmp_path, capsys):
    output = tmp_path / "pair"
    command = ["--output", str(output), "--acceptance", "0.7", "--tolerance", "0.01", "--check"]
    command += ["--layers", "9", "--hidden-size", "1024", "--heads", "8", "--kv-heads", "4"]
    command += ["--draft-intermediate-size", "1024", "--texts", "12", "--tokens", "48"]
    main(command)
    record = json.loads((output / "pair.json").read_text())
    agreement = record["draft"]["fit"]["greedy_agreement"]
    assert f"of the weights: greedy agreement {agreement:.4f}" in capsys.readouterr().out
    assert record["command"] == "python -m loadtest.grow " + " ".join(command)
    assert agreement == pytest.approx(0.7, abs=0.01)
    assert max(record["max_logit_difference"].values()) < 1e-4
    measured = record["measured"]
    # Other texts than the fit's, a few only.
    assert measured["greedy_agreement"] == pytest.approx(0.7, abs=4 * measured["standard_error"])
    assert measured["coupled_acceptance"] < measured["rejection_acceptance"] < 0.9
    for name in ("target", "draft"):
        model = AutoModelForCausalLM.from_pretrained(output / name)
        assert model.dtype == torch.bfloat16
        assert model.num_parameters() == record[name]["num_parameters"]
        assert asdict(Source.load(output / name).size).items() <= record[name].items()
        tokenizer = AutoTokenizer.from_pretrained(output / name)
        original = AutoTokenizer.from_pretrained(DEMO)
        chat = [{"role": "user", "content": "Write a story about Ann, aged 12."}]
        assert tokenizer.apply_chat_template(chat) == original.apply_chat_template(chat)
        assert model.generation_config.eos_token_id == original.eos_token_id
        modes = {file.stat().st_mode for file in (output / name).iterdir()}
        assert len(modes) == 1


def test_the_command_grows_a_further_draft_for_targets_of_its_source(tmp_path):
    words = ["--draft-only", "--draft-layers", "9", "--acceptance", "0.7", "--texts", "4"]
    main(["--output", str(tmp_path), *words, "--tokens", "24", "--check"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft", "pair.json"]
    assert Source.load(tmp_path / "draft").size.num_hidden_layers == 9
    record = json.loads((tmp_path / "pair.json").read_text())
    assert "target" not in record
    assert record["draft"]["fit"]["greedy_agreement"] == pytest.approx(0.7, abs=0.05)
    assert 0.4 < record["measured"]["greedy_agreement"] < 0.95
    assert set(record["max_logit_difference"]) == {"draft"}


def test_the_command_overwrites_nothing(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path)])
    assert "is not empty" in capsys.readouterr().err


def test_presets_of_one_function_share_their_target(tmp_path):
    """Made small here: a preset's sizes may be changed."""
    small = ["--preset", "a80-c1", "--layers", "4", "--hidden-size", "128", "--heads", "4"]
    small += ["--kv-heads", "4", "--intermediate-size", "352", "--texts", "4", "--tokens", "24"]
    for name, acceptance in (("one", "0.8"), ("other", "0.6")):
        words = ["--acceptance", acceptance, "--tolerance", "0.05"]
        main([*small, *words, "--output", str(tmp_path / name)])
    targets = {(tmp_path / name / "target").resolve() for name in ("one", "other")}
    assert targets == {tmp_path / "scenario-target"}
    heads = [Source.load(tmp_path / name / "draft").lm_head for name in ("one", "other")]
    assert not torch.equal(*heads)
    record = json.loads((tmp_path / "other" / "pair.json").read_text())
    assert record["draft"]["fit"]["greedy_agreement"] == pytest.approx(0.6, abs=0.05)


def test_the_sources_of_presets_can_be_grown_to_their_sizes():
    for preset in PRESETS.values():
        source = Source.load(preset.source)
        for size in (preset.target, preset.draft):
            check_size(source, size)
    assert PRESETS["a95-c1"].draft == Source.load(PRESETS["a95-c1"].source).size
