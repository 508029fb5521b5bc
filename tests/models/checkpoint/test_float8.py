"""Folders published in float8: the published numbers on a GPU, multiplied elsewhere, or refused."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.checkpoint import loader
from models.checkpoint.float8 import is_float8
from models.checkpoint.loader import load_checkpoint, read_config
from models.checkpoint.memory_estimate import memory_estimate
from models.checkpoint.stored_weights import stores_float8
from models.config import EngineConfig
from models.gpu.decoder import MergedDecoder
from models.gpu.fp8 import Fp8Linear, stored_linear
from models.layers.linear import plain_linear
from models.parallel.layers import num_local_bytes
from models.parallel.ranks import TensorParallel
from tests.cases.models.float8_folder import INPUTS, WEIGHTS, multiplied, publish
from tests.cases.models.llama_family import CONFIGS, chunked_logits, write
from tests.harness.rank_processes import shared_engine, start_ranks
from tests.models.gpu.test_decoder import paged_runner

TEXT = list(range(3, 40))


@pytest.fixture
def original(tmp_path: Path) -> Path:
    write(CONFIGS["llama-biases"], tmp_path / "original")
    return tmp_path / "original"


@pytest.fixture
def narrow(tmp_path: Path) -> Path:
    """A layer of 24 columns fits no product: all layers are then read like any numbers."""
    config = CONFIGS["llama-biases"].to_dict() | {"intermediate_size": 24 * 5}
    write(CONFIGS["llama-biases"].__class__(**config), tmp_path / "narrow")
    return tmp_path / "narrow"


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return publish(original, tmp_path / "published")


def config_of(folder: Path, **changes: Any) -> EngineConfig:
    fields: dict[str, Any] = {"max_model_len": 256, "kv_cache_tokens": 512, **changes}
    return EngineConfig(model_path=str(folder), **fields)


def load_as_a_gpu(patch: pytest.MonkeyPatch) -> None:
    """Load on a CPU as on a GPU: by its kernel, with the scales as they are stored."""
    patch.setattr(
        loader, "as_stored", lambda config, _: config.model_copy(update={"quantization": "fp8"})
    )


@pytest.fixture
def as_a_gpu_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    load_as_a_gpu(monkeypatch)


def kept_apart(folder: Path) -> MergedDecoder:
    """The model as a GPU has it."""
    with pytest.MonkeyPatch.context() as patch:
        load_as_a_gpu(patch)
        model = load_checkpoint(config_of(folder, dtype="bfloat16")).model
    return MergedDecoder(model, 256, stored_linear, plain_linear)


def test_a_cpu_has_the_numbers_times_their_scales(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = multiplied(folder, tmp_path / "plain")
    loaded = load_checkpoint(config_of(folder))
    assert "UNEXPECTED" not in caplog.text  # scales are read here, not by transformers
    expected = load_checkpoint(config_of(plain))
    assert (loaded.quantization, loaded.has_scales) == (None, False)
    weights = dict(expected.model.named_parameters())
    for name, weight in loaded.model.named_parameters():
        assert torch.equal(weight, weights[name]), name
    logits = chunked_logits(paged_runner(folder, dtype="bfloat16"))
    assert torch.equal(logits, chunked_logits(paged_runner(plain, dtype="bfloat16")))


def test_they_may_be_rounded_to_groups_there(folder: Path) -> None:
    config = config_of(folder, quantization="q8")
    assert load_checkpoint(config).quantization == "q8"
    assert memory_estimate(config).weight_bytes < memory_estimate(config_of(folder)).weight_bytes


def test_a_gpu_has_the_published_numbers(folder: Path, tmp_path: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    decoder = kept_apart(folder)
    layers = [each for each in decoder.products() if isinstance(each, Fp8Linear)]
    assert len(layers) == 4 * 3
    for index, down in enumerate(layers[3::4]):
        name = f"model.layers.{index}.mlp.down_proj.weight"
        assert torch.equal(down.weight.float(), stored[name].float())
        assert torch.equal(down.scales.flatten(), stored[f"{name}_scale"].flatten().float())
    gate_up = torch.cat(
        [stored[f"model.layers.1.mlp.{part}_proj.weight_scale"] for part in ("gate", "up")]
    )
    assert torch.equal(layers[6].scales.flatten(), gate_up.flatten().float())

    loaded = paged_runner(multiplied(folder, tmp_path / "plain"), graphs="off", dtype="bfloat16")
    expected = chunked_logits(loaded)
    loaded.backend._forward = decoder  # type: ignore[attr-defined]
    # Weights are the same; rows are rounded to three bits of mantissa before each product.
    assert float((chunked_logits(loaded) - expected).std() / expected.std()) < 0.2


def test_what_was_left_whole_stays_so(original: Path, tmp_path: Path) -> None:
    folder = publish(original, tmp_path / "published", ["down_proj"])
    decoder = kept_apart(folder)
    assert [type(each) for each in decoder.products()[:4]] == [Fp8Linear] * 3 + [torch.nn.Linear]
    config = config_of(folder, device="cuda", dtype="bfloat16")
    assert config.quantization is None
    taken = memory_estimate(config)
    assert taken.quantization == "fp8"
    kept = torch.nn.ModuleList([decoder._embedding, *decoder.products()])
    norms = 7 * CONFIGS["llama-biases"].hidden_size * 2
    # Biases that a rank's products hold, and the layers', are all among the products'.
    assert taken.weight_bytes == num_local_bytes(kept) + norms


@pytest.mark.usefixtures("as_a_gpu_loads")
def test_loading_takes_no_more_than_is_stored(folder: Path) -> None:
    """In bfloat16 it took twice as much until its layers were taken apart."""
    loaded = load_checkpoint(config_of(folder, dtype="bfloat16"))
    weights = dict(loaded.model.named_parameters())
    for name, stored in load_file(folder / "model.safetensors").items():
        if not name.endswith("_scale"):
            assert weights[name].dtype == stored.dtype, name
            assert torch.equal(weights[name].float(), stored.float()), name


@pytest.mark.usefixtures("as_a_gpu_loads")
def test_layers_that_no_product_takes_are_whole(narrow: Path, tmp_path: Path) -> None:
    folder = publish(narrow, tmp_path / "published")
    loaded = load_checkpoint(config_of(folder, dtype="bfloat16"))
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.bfloat16}
    products = MergedDecoder(loaded.model, 256, stored_linear, plain_linear).products()
    assert [type(each) for each in products[:4]] == [Fp8Linear] * 2 + [Fp8Linear, torch.nn.Linear]
    stored = load_file(folder / "model.safetensors")["model.layers.0.self_attn.o_proj.weight"]
    assert torch.equal(products[1].state_dict()["weight"].float(), stored.float())


@pytest.mark.usefixtures("as_a_gpu_loads")
def test_a_head_may_be_stored_in_float8_too(original: Path, tmp_path: Path) -> None:
    folder = publish(original, tmp_path / "published", rounds_head=True)
    stored = load_file(folder / "model.safetensors")
    runner = paged_runner(folder, graphs="off", dtype="bfloat16")
    head = runner.products()[-1]
    assert isinstance(head, Fp8Linear)
    assert torch.equal(head.weight.float(), stored["lm_head.weight"].float())
    assert bool(chunked_logits(runner).isfinite().all())


def test_a_product_of_both_is_refused(original: Path, tmp_path: Path) -> None:
    folder = publish(original, tmp_path / "published", ["up_proj"])
    with pytest.raises(ValueError, match="some are stored in float8 and some are not"):
        kept_apart(folder)
    assert load_checkpoint(config_of(folder)).num_layers == 3


@pytest.mark.slow
def test_each_rank_takes_its_scales(original: Path, folder: Path, tmp_path: Path) -> None:
    plain = multiplied(folder, tmp_path / "plain")
    with shared_engine("target", 2, str(plain)) as engine:
        expected = engine.forward(("a", 0, TEXT, len(TEXT)))
    with shared_engine("target", 2, str(folder)) as engine:
        logits = engine.forward(("a", 0, TEXT, len(TEXT)))
    # In float32 weights times scales are not rounded to bfloat16, as those of `plain` are.
    assert float((logits - expected).std() / expected.std()) < 0.02


def send_types(ranks: TensorParallel, pipe: Connection, folder: str) -> None:
    """The type of each weight that a rank of a GPU has, and whether its numbers are the stored."""
    load_as_a_gpu(pytest.MonkeyPatch())
    config = config_of(Path(folder), dtype="bfloat16", tensor_parallel_size=ranks.world_size)
    model = load_checkpoint(config, ranks).model
    stored = load_file(Path(folder) / "model.safetensors")
    attention, mlp = model.model.layers[1].self_attn, model.model.layers[1].mlp
    prefix, half = "model.layers.1", slice(ranks.rank * 32, (ranks.rank + 1) * 32)
    own = attention.q_proj.weight, attention.o_proj.linear.weight
    whole = [stored[f"{prefix}.self_attn.{part}_proj.weight"] for part in "qo"]
    parts = whole[0][half], whole[1][:, half]
    are_equal = [
        torch.equal(one.float(), part.float()) for one, part in zip(own, parts, strict=True)
    ]
    pipe.send(({str(one.dtype) for one in (*own, mlp.up_proj.weight)}, are_equal))


@pytest.mark.slow
def test_each_rank_reads_its_part_as_it_is_stored(tmp_path: Path) -> None:
    config = CONFIGS["llama"].to_dict() | {"intermediate_size": 192, "num_key_value_heads": 4}
    write(CONFIGS["llama"].__class__(**config), tmp_path / "original")
    folder = publish(tmp_path / "original", tmp_path / "published")
    with start_ranks(2, send_types, str(folder)) as ranks:
        for rank in ranks:
            assert rank.receive() == ({"torch.float8_e4m3fn"}, [True, True])


def test_checks_know_its_size(folder: Path) -> None:
    assert stores_float8(folder)
    assert not stores_float8(folder.with_name("original"))


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        ({"quant_method": "bitsandbytes"}, {}),
        ({"format": "int-quantized"}, {}),
        ({"kv_cache_scheme": {"num_bits": 8}}, {}),
        ({"config_groups": {}}, {}),
        ({}, {"weights": {**WEIGHTS, "strategy": "block"}}),
        ({}, {"weights": {**WEIGHTS, "type": "int"}}),
        ({}, {"weights": {**WEIGHTS, "num_bits": 4}}),
        ({}, {"input_activations": {**INPUTS, "dynamic": False}}),
        ({}, {"input_activations": None}),
        ({}, {"output_activations": INPUTS}),
        ({}, {"targets": ["re:.*mlp.*"]}),
    ],
)
def test_other_kinds_are_refused(
    folder: Path, changes: dict[str, Any], group: dict[str, Any]
) -> None:
    hf_config = read_config(str(folder))
    assert is_float8(hf_config)
    terms: dict[str, Any] = hf_config.quantization_config
    terms["config_groups"]["group_0"].update(group)
    terms.update(changes)
    with pytest.raises(ValueError, match=r"quantised already .* published as FP8-dynamic"):
        is_float8(hf_config)


def test_scales_that_do_not_fit_are_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    stored = load_file(file)
    key = "model.layers.0.mlp.up_proj.weight_scale"
    save_file({**stored, key: stored[key][:-1]}, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\.up_proj has 175 scales for 176 outputs"):
        load_checkpoint(config_of(folder))
    stored["model.norm.weight_scale"] = stored[key].clone()
    save_file(stored, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"model\.norm has a scale, but is no linear layer"):
        load_checkpoint(config_of(folder))


def test_other_products_are_refused(folder: Path) -> None:
    config = config_of(folder, device="cuda", dtype="bfloat16", batch_invariant=True)
    with pytest.raises(ValueError, match="batch_invariant is not for weights in float8"):
        memory_estimate(config)
    config = config_of(folder, device="cuda", dtype="bfloat16", quantization="int8")
    with pytest.raises(ValueError, match="quantization int8 is not for weights in float8"):
        memory_estimate(config)
