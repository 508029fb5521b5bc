"""Config keys that ask a GPU for other products than torch's: what makes them, and their needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Olmo2Config

from models.config import EngineConfig
from models.gpu import products
from models.gpu.fp8 import fp8_linear, stored_linear
from models.gpu.products import int8_linear, invariant_linear
from models.gpu.reference import reference_kernel
from models.layers.linear import MakeLinear, plain_linear
from tests.cases.models.llama_family import CONFIGS, SIZES

Keys = dict[str, Any]
INVARIANT: Keys = {"batch_invariant": True}
INT8: Keys = {"quantization": "int8"}
FP8: Keys = {"quantization": "fp8"}
OLMO = {"model": Olmo2Config(**SIZES)}


def config_of(keys: Keys) -> EngineConfig:
    fields: Keys = {"model_path": "m", "device": "cuda"}
    return EngineConfig(**fields | keys)


def refuse(patch: pytest.MonkeyPatch, keys: Keys, changes: dict[str, Any]) -> None:
    """Ask for the keys where nothing is missing but for the changes."""
    terms: dict[str, Any] = {
        "kernel": reference_kernel(),
        "model": CONFIGS["llama"],
        "has_scales": False,
        "has_triton": True,
        "capability": (9, 0),
    } | changes
    patch.setattr(products, "has_kernels", lambda device: terms["has_triton"])
    patch.setattr(products, "_capability", lambda device: terms["capability"])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(terms["model"])
    checkpoint: Any = SimpleNamespace(model=model, has_scales=terms["has_scales"])
    products.refuse_own_products(config_of(keys), checkpoint, terms["kernel"])


@pytest.mark.parametrize(
    ("keys", "has_scales", "make_linear", "make_head"),
    [
        (INVARIANT, False, invariant_linear, invariant_linear),
        (INT8, False, int8_linear, int8_linear),
        (INT8 | {"tensor_parallel_size": 4}, False, int8_linear, int8_linear),
        (INT8 | INVARIANT, False, int8_linear, int8_linear),
        (FP8, False, fp8_linear, plain_linear),
        (FP8, True, stored_linear, stored_linear),
    ],
)
def test_a_key_asks_for_products(
    keys: Keys, has_scales: bool, make_linear: MakeLinear, make_head: MakeLinear
) -> None:
    own = products.own_products(config_of(keys), has_scales=has_scales)
    assert own is not None
    assert (own.make_linear, own.make_head) == (make_linear, make_head)


@pytest.mark.parametrize(
    "keys", [{}, INVARIANT | {"device": "cpu"}, {"quantization": "q8", "device": "cpu"}]
)
def test_else_products_are_torchs_and_need_nothing(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert products.own_products(config_of(keys)) is None
    refuse(monkeypatch, keys, {"kernel": None, "has_triton": False, "capability": (7, 0)})


@pytest.mark.parametrize("keys", [INVARIANT, INT8, FP8])
def test_where_nothing_is_missing_they_are_served(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, keys, {})


@pytest.mark.parametrize(
    ("keys", "changes", "message"),
    [
        (INVARIANT, {"kernel": None}, "batch_invariant needs a paged attention kernel"),
        (INVARIANT, OLMO, r"layers of Llama.* and these are of olmo2; leave it out"),
        (INVARIANT, {"has_triton": False}, "batch_invariant needs Triton"),
        (INT8, {"kernel": None}, "quantization int8 needs a paged attention kernel"),
        (INT8, OLMO, "quantization int8 needs .* these are of olmo2; leave it out"),
        (INT8, {"has_triton": False}, "quantization int8 needs Triton"),
        (FP8, {"kernel": None}, "quantization fp8 needs a paged attention kernel"),
        (FP8, OLMO, "quantization fp8 needs .* these are of olmo2; leave it out"),
        (FP8, {"capability": (8, 0)}, r"a GPU of compute capability 8\.9"),
        (
            FP8,
            {"capability": (8, 0), "has_scales": True},
            r"stored in float8, which needs a GPU .* take the orig",
        ),
    ],
)
def test_they_are_refused_where_something_is_missing(
    keys: Keys, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=message):
        refuse(monkeypatch, keys, changes)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (FP8 | {"device": "cpu"}, "quantization fp8 runs on cuda only, got device 'cpu'"),
        (FP8 | INVARIANT, "batch_invariant is not for quantization fp8"),
    ],
)
def test_float8_is_for_gpus_and_alone(keys: Keys, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_of(keys)
