"""Passes and draws on a GPU that computes nothing, but refuses what a GPU would refuse.

    python -m tests.harness.gpu.fake_gpu

A device of torch's own making whose tensors have no values (FakeTensor): tensors of two devices in
one operation, a look at a value, a shape that does not fit are errors, as they are on a GPU. It is
set up once for a process, so it has one of its own. Errors are printed as JSON by name, "": none.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from transformers import AutoModelForCausalLM

from models.attention.backend import AttentionBackend, TransformersForward
from models.attention.features import layer_windows
from models.attention.gather import GatherBackend
from models.attention.interface import ATTENTION_NAME
from models.gpu.decoder import MergedDecoder
from models.gpu.forward import PagedBackend
from models.gpu.graphs import NO_TERMS, EagerGraphs
from models.gpu.kernels.product import InvariantLinear
from models.gpu.operations import triton_operations
from models.gpu.products import int8_linear
from models.gpu.reference import reference_kernel
from models.kv.block_pool import BlockPool
from models.kv.pages import PageStorage
from models.kv.rows import SequenceRows
from models.kv.storage import KVSizes, KVStorage
from models.layers.family import can_take_apart
from models.protocol.messages import Sampling
from models.sampling import draws, logits
from models.sampling.logits import adjust_logits
from models.sampling.verification import draw_ids
from tests.cases.models.architectures import CONFIGS

MAX_LEN, BLOCK_SIZE, NUM_BLOCKS = 128, 16, 32
GPU = "fakegpu"
_TERMS = [
    Sampling(temperature=0.8, seed=1),
    Sampling(temperature=0.8, top_p=0.9, top_k=40, min_p=0.1, seed=2),
    Sampling(temperature=1.0, repetition_penalty=1.2, logit_bias=((5, 1.0),), seed=3),
]


def sequences() -> list[SequenceRows]:
    """A prompt, a round of five rows and a single row, over blocks of their own."""
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
    made = []
    for start, count, num_logits in ((0, 21, 0), (30, 5, 5), (7, 1, 1)):
        table = pool.new_table()
        table.resize(start + count)
        made.append(SequenceRows(table, start, list(range(3, 3 + count)), num_logits))
    return made


def make_model(name: str) -> Any:
    """A model of an architecture on the device."""
    model = AutoModelForCausalLM.from_config(
        CONFIGS[name], dtype=torch.bfloat16, attn_implementation=ATTENTION_NAME
    )
    for module in model.eval().modules():  # `to` cannot: it swaps tensors that are referred to
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(weight.to(GPU), requires_grad=False))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(GPU))
    return model


def sizes_of(config: Any) -> KVSizes:
    """Storage for its keys."""
    heads = config.num_attention_heads
    return KVSizes(
        num_layers=config.num_hidden_layers,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        num_heads=getattr(config, "num_key_value_heads", heads),
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=torch.bfloat16,
        device=torch.device(GPU),
    )


def gathered(name: str) -> AttentionBackend:
    """By torch's own operations on copies of the keys."""
    model = make_model(name)
    config = model.config
    storage = KVStorage(sizes_of(config))
    num_groups = config.num_attention_heads // storage.num_heads
    return GatherBackend(TransformersForward(model), storage, num_groups, layer_windows(config))


def paged(name: str, make_forward: Callable[[Any], Any]) -> AttentionBackend:
    """By a kernel, for which the reference stands: it looks at no value either."""
    model = make_model(name)
    windows = layer_windows(model.config)
    storage = PageStorage(sizes_of(model.config))
    return PagedBackend(make_forward(model), storage, reference_kernel(), MAX_LEN, windows)


def passes() -> dict[str, Callable[[], AttentionBackend]]:
    """Every back-end of every architecture that has it."""
    found: dict[str, Callable[[], AttentionBackend]] = {}
    for name in CONFIGS:
        found[f"{name}: gathered"] = partial(gathered, name)
        if getattr(CONFIGS[name], "attn_logit_softcapping", None):
            continue  # which the kernel refuses
        found[f"{name}: paged"] = partial(paged, name, TransformersForward)
        if can_take_apart(make_model(name)):
            found[f"{name}: merged"] = partial(paged, name, merged)
            found[f"{name}: kernels"] = partial(paged, name, with_kernels)
            found[f"{name}: int8"] = partial(paged, name, with_int8)
    return found


def merged(model: Any) -> MergedDecoder:
    """In torch's own operations."""
    return MergedDecoder(model, MAX_LEN)


def with_kernels(model: Any) -> MergedDecoder:
    """By Triton's kernels, products included."""
    return MergedDecoder(model, MAX_LEN, InvariantLinear, operations=triton_operations())


def with_int8(model: Any) -> MergedDecoder:
    """The same with weights of 8 bits."""
    make = int8_linear
    return MergedDecoder(model, MAX_LEN, make, make, operations=triton_operations())


def run_pass(make: Callable[[], AttentionBackend]) -> torch.Tensor:
    """The logits of a back-end's pass."""
    return make().logits(sequences())


def replayed_chain() -> torch.Tensor:
    """Three draft steps of two sessions, as they are captured."""
    backend = paged("llama", with_kernels)
    assert isinstance(backend, PagedBackend)
    vocab_size = CONFIGS["llama"].vocab_size
    backend.capture_chains(EagerGraphs(), lambda whole: whole, vocab_size, NO_TERMS)
    assert backend.chains is not None
    steps = [SequenceRows(rows.table, rows.start, [0] * 3, 1) for rows in sequences()[1:]]
    return backend.chains.run(steps, torch.zeros(2, dtype=torch.int64, device=GPU), _TERMS[:2])


def draw(by_kernels: bool) -> torch.Tensor:
    """Rows with terms of all kinds, ids left on the device."""
    whole = torch.empty(len(_TERMS), 256, device=GPU)
    masks = [None, b"\xff" * 32, None]
    adjusted = adjust_logits(whole, _TERMS, masks)
    positions = list(range(len(_TERMS)))
    if by_kernels:
        return draws.draw_by_kernels(adjusted, _TERMS, positions)
    return draw_ids(logits.shaped_scores(adjusted, _TERMS), _TERMS, positions)


def error_of(attempt: Callable[[], torch.Tensor]) -> str:
    """What went wrong; "": nothing, and the result is on the device."""
    try:
        result = attempt()
    except Exception:  # noqa: BLE001  (whatever it is, it is the finding)
        return traceback.format_exc()[-1500:]
    return "" if result.device.type == GPU else f"the result is on {result.device}"


def main() -> None:
    """Try everything and print the errors."""
    _setup_privateuseone_for_python_backend(GPU)
    fake_tensor.CONSTANT_NUMEL_LIMIT = 0  # of numbers whose values it would keep and compute with
    found: dict[str, str] = {}
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        for name, make in passes().items():
            found[name] = error_of(partial(run_pass, make))
        found["draw"] = error_of(lambda: draw(by_kernels=False))
        found["draft steps in one graph"] = error_of(replayed_chain)
        found["draw by kernels"] = error_of(lambda: draw(by_kernels=True))
        # What it is for: a mistake must be seen.
        found["two devices"] = error_of(
            lambda: torch.ones(2, device=GPU) + torch.ones(2, device="cpu")
        )
        found["a look"] = error_of(
            lambda: torch.ones(2, device=GPU) * float(torch.ones(1, device=GPU).sum())
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
