"""An MTP layer in the target's own checkpoint drafts as the same layer in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from models.checkpoint.memory_estimate import memory_estimate
from models.config import EngineConfig
from models.engine.drafting.lengths import DraftLengths
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.heads.config import TargetHeads, target_heads
from models.heads.mtp_checkpoint import read_own_mtp
from models.protocol.messages import Sampling
from tests.cases.models.mtp import PREFIX, mtp_weights, repeating, write_mtp
from tests.cases.models.own_mtp import as_deepseek, as_qwen, write_with
from tests.fakes.engines import (
    EPOCH,
    Client,
    Link,
    random_prompt,
    run_clients,
    tiny_checkpoint,
    tiny_config,
)

TARGET = tiny_checkpoint(noise=0.0)
SPELLINGS: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "deepseek": partial(as_deepseek, TARGET),
    "qwen": as_qwen,
}


def write_target(folder: Path, further: dict[str, Tensor], **config: object) -> Path:
    """The tiny target with further weights in its file."""
    return write_with(folder, TARGET, further, **config)


def config_of(target: Path, heads: str | None, attention: str = "auto") -> EngineConfig:
    terms = {"heads": heads, "attention": attention}
    return tiny_config(target, **terms, block_size=16, max_num_batched_tokens=64)


def rounds(config: EngineConfig, *, own_drafts: bool = True) -> tuple[list[list[int]], list[Any]]:
    """Texts, and of each verdict what was drafted and accepted."""
    target = Link(TargetEngine(ModelRunner(config), NoMaskSource(), EPOCH))
    clients = [
        Client(
            f"s{i}",
            random_prompt(i, 5 + 40 * i),
            Sampling(temperature=0),
            40,
            target,
            run_on=lambda: 5,
            own_drafts=own_drafts,
            own_length=3 if own_drafts else 0,
        )
        for i in range(3)
    ]
    texts = run_clients(clients)
    return texts, [
        (verdict.num_own_drafted, verdict.own) for client in clients for verdict in client.verdicts
    ]


@pytest.mark.parametrize("attention", ["auto", "reference"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_drafts_are_those_of_the_same_head_in_a_folder(
    spelling: str, attention: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = repeating(TARGET, scale=0.05)
    own = write_target(tmp_path / "own", SPELLINGS[spelling](weights))
    folder = write_mtp(tmp_path / "folder", weights)
    capsys.readouterr()
    texts, found = rounds(config_of(own, "checkpoint", attention))
    assert capsys.readouterr() == ("", ""), "nothing is warned of that is used"
    assert (texts, found) == rounds(config_of(TARGET, str(folder), attention))
    assert sum(len(accepted) for _, accepted in found) > 0
    assert rounds(config_of(own, None, attention), own_drafts=False)[0] == texts


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_weights_are_those_of_the_same_head(
    spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = mtp_weights(TARGET, seed=3)
    own = write_target(tmp_path / "own", SPELLINGS[spelling](weights))
    parts = read_own_mtp(own, AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32))
    for part, weight in parts.named_weights().items():
        assert weight.equal(weights[PREFIX + part]), part
    assert parts.num_tokens == 1
    assert target_heads("checkpoint", None) == TargetHeads("mtp")
    monkeypatch.setattr(DraftLengths, "choose", lambda self, num_sessions: 1)
    config = config_of(own, "checkpoint")
    sizes, runner = memory_estimate(config), ModelRunner(config)
    assert sizes.weight_bytes == runner.weight_bytes
    assert sizes.kv_bytes_per_token == runner.kv_bytes_per_token


def refused(tmp_path: Path, further: dict[str, Tensor], **config: object) -> str:
    own = write_target(tmp_path / "own", further, **config)
    with pytest.raises(ValueError, match="heads checkpoint") as caught:
        memory_estimate(config_of(own, "checkpoint"))
    with pytest.raises(ValueError, match="heads checkpoint") as when_loaded:
        ModelRunner(config_of(own, "checkpoint"))
    assert str(caught.value) == str(when_loaded.value)
    return str(caught.value)


def test_a_checkpoint_without_one_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, {}).endswith("has no MTP layer: neither model.layers.2.* nor mtp.*")


def test_more_than_one_is_refused(tmp_path: Path) -> None:
    weights = as_qwen(mtp_weights(TARGET))
    message = refused(tmp_path, weights, num_nextn_predict_layers=2)
    assert message.endswith("num_nextn_predict_layers must be 1, got 2")


@pytest.mark.parametrize(
    ("spelling", "key", "message"),
    [
        ("deepseek", "model.layers.2.eh_proj.weight", "lacks {}"),
        ("qwen", "mtp.layers.0.mlp.up_proj.weight", "lacks {}"),
        ("qwen", "mtp.norm.weight", "lacks {}"),
        ("qwen", "mtp.layers.1.extra", "has {}, which is no part of an MTP"),
        ("qwen", "mtp.norm.weight", "{} has shape [8], the target needs [64]"),
    ],
)
def test_other_weights_are_refused_by_name(
    spelling: str, key: str, message: str, tmp_path: Path
) -> None:
    weights = SPELLINGS[spelling](mtp_weights(TARGET))
    if message.startswith("lacks"):
        del weights[key]
    else:
        weights[key] = torch.ones(8)
    assert message.format(key) in refused(tmp_path, weights)


def test_another_output_layer_is_refused(tmp_path: Path) -> None:
    weights = as_deepseek(TARGET, mtp_weights(TARGET))
    weights["model.layers.2.shared_head.head.weight"][3, 4] += 1
    own = write_target(tmp_path / "own", weights)
    with pytest.raises(ValueError, match=r"shared_head\.head\.weight must be equal to the target"):
        ModelRunner(config_of(own, "checkpoint"))
