"""The Llama family around a paged kernel: transformers' logits in a quarter of the launches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3Config

from loadtest.gpu_day.draws import CountedOperations
from models.attention.backend import ModelForward, TransformersForward
from models.attention.interface import ATTENTION_NAME
from models.engine.runner import ModelRunner
from models.engine.self_test import is_batch_invariant
from models.gpu.decoder import MergedDecoder
from models.gpu.indices import PassTensors
from models.gpu.kernel import VarlenKernel, VarlenPass
from models.gpu.operations import TORCH, LayerOperations, triton_operations
from models.kv.pages import PageStorage
from models.kv.storage import KVSizes
from models.layers.linear import MakeLinear
from tests.cases.models.llama_family import (
    CONFIGS,
    SIZES,
    chunked_logits,
    transformers_logits,
    write,
)
from tests.fakes.engines import tiny_config
from tests.harness.gpu.interpreted import add_in_order

META = torch.device("meta")
NUM_ROWS, BLOCK_SIZE = 6, 64


def paged_runner(folder: Path, **changes: Any) -> ModelRunner:
    fields = {"attention": "varlen", "graphs": "eager", "block_size": 16}
    return ModelRunner(tiny_config(folder, **(fields | changes)))


def decode_by(
    loaded: ModelRunner,
    folder: Path,
    make_linear: MakeLinear | None = None,
    make_head: MakeLinear | None = None,
    operations: LayerOperations | None = None,
) -> tuple[MergedDecoder, nn.ModuleList]:
    """Have a runner compute by a decoder of its own; return that and all that holds weights."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=loaded.config.dtype)
    num_positions = loaded.config.max_model_len
    decoder = MergedDecoder(model, num_positions, make_linear, make_head, operations)
    loaded.backend._forward = decoder  # type: ignore[attr-defined]
    return decoder, nn.ModuleList([model, *decoder.products()])


@pytest.mark.parametrize("name", ["llama", "llama-biases", "wide", "mistral-window", "qwen3"])
def test_with_kernels_and_torchs_own_products(name: str, tmp_path: Path) -> None:
    """As on a GPU."""
    pytest.importorskip("triton", reason="Triton is not installed")
    write(CONFIGS[name], tmp_path)
    loaded = paged_runner(tmp_path, graphs="off")
    decode_by(loaded, tmp_path, operations=triton_operations())
    expected = transformers_logits(tmp_path)
    torch.testing.assert_close(chunked_logits(loaded), expected, rtol=1e-4, atol=1e-3)


def test_the_plain_layers_are_given_up(tmp_path: Path) -> None:
    write(CONFIGS["llama"], tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    whole = sum(p.numel() for p in model.model.layers.parameters())
    decoder = MergedDecoder(model, 256)
    left = sum(p.numel() for p in model.model.layers.parameters())
    assert left == 3 * 2 * 64  # the norms
    held = sum(p.numel() for product in decoder.products()[:-1] for p in product.parameters())
    assert held == whole - left


def attends(query: torch.Tensor, *others: Any, **terms: Any) -> torch.Tensor:
    """In place of a paged kernel, which is one launch as well."""
    return torch.empty_like(query)


def empty_pass(config: Any, device: torch.device = META) -> tuple[torch.Tensor, VarlenPass]:
    """Six rows of one session, on a device that computes nothing, and where their keys go."""
    storage = PageStorage(
        KVSizes(
            num_layers=config.num_hidden_layers,
            num_blocks=4,
            block_size=BLOCK_SIZE,
            num_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            dtype=torch.bfloat16,
            device=device,
        )
    )
    rows = torch.zeros(NUM_ROWS, dtype=torch.int64, device=device)
    ints = torch.empty(2, dtype=torch.int32, device=device)
    tensors = PassTensors(rows, rows, rows, ints, ints, ints[:1], ints[None])
    kernel = VarlenKernel(attends, None, False, "counted")
    windows = (None,) * config.num_hidden_layers
    return rows, VarlenPass(storage, kernel, tensors, NUM_ROWS, BLOCK_SIZE, windows)


def empty_model(kind: Callable[..., PreTrainedConfig], num_layers: int) -> Any:
    config = kind(**SIZES | {"num_hidden_layers": num_layers}, head_dim=16)
    with META:
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=ATTENTION_NAME
        )
    return model.requires_grad_(requires_grad=False)


def operations_of_a_layer(
    kind: Callable[..., PreTrainedConfig], make_forward: Callable[[Any], ModelForward]
) -> int:
    """What a pass has more of with two layers more."""
    counts: list[int] = []
    for num_layers in (2, 4):
        model = empty_model(kind, num_layers)
        rows, paged = empty_pass(model.config)
        forward = make_forward(model)
        with torch.inference_mode(), CountedOperations() as counted:
            forward(rows, rows, paged, None)
        counts.append(counted.count)
    return (counts[1] - counts[0]) // 2


@pytest.mark.parametrize(("kind", "most"), [(LlamaConfig, 16), (Qwen3Config, 18)])
def test_a_layer_asks_for_so_many_operations(
    kind: Callable[..., PreTrainedConfig], most: int
) -> None:
    merged = operations_of_a_layer(kind, lambda model: MergedDecoder(model, 256, operations=TORCH))
    assert merged <= most
    assert operations_of_a_layer(kind, TransformersForward) > 2.2 * merged


@pytest.mark.parametrize("has_kernels", [False, True])
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3Config])
def test_dynamo_takes_a_pass_as_one_graph(
    kind: Callable[..., PreTrainedConfig], has_kernels: bool
) -> None:
    """It fails where something goes by a value, or is Python alone."""
    operations: Any = TORCH
    if has_kernels:
        pytest.importorskip("triton", reason="Triton is not installed")
        operations = triton_operations()
    config = kind(**SIZES, head_dim=16)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME)
    decoder = MergedDecoder(model.to(torch.bfloat16), 256, operations=operations)
    rows, paged = empty_pass(config, torch.device("cpu"))
    graphs: list[Any] = []

    def counted(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return lambda *given: (torch.zeros(NUM_ROWS, config.vocab_size),)

    def run(ids: torch.Tensor) -> torch.Tensor:
        return decoder(ids, ids, paged, None)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(run, fullgraph=True, backend=counted)(rows)
    assert len(graphs) == 1


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3Config])
def test_launches_of_a_layer_with_kernels(kind: Callable[..., PreTrainedConfig]) -> None:
    """Four products, attention, two norms with their sums, placing and the gate."""
    pytest.importorskip("triton", reason="Triton is not installed")
    assert operations_of_a_layer(kind, lambda model: MergedDecoder(model, 256)) == 9


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_self_test_finds_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`batch_invariant`: passes through our kernels, interpreted, around the reference."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from models.gpu.kernels.product import InvariantLinear

    add_in_order(monkeypatch)
    small = {"vocab_size": 64, "num_hidden_layers": 1, "intermediate_size": 64}
    write(Qwen3Config(**SIZES | small, head_dim=16), tmp_path)
    runner = paged_runner(tmp_path, dtype="float16", graphs="off", max_model_len=80)
    decode_by(runner, tmp_path, InvariantLinear, operations=triton_operations())
    assert is_batch_invariant(runner)
