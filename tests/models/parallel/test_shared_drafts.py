"""What drafts in a target that ranks share: the text is what it is without, and drafts are those
of one process."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from models.checkpoint.memory_estimate import memory_estimate
from models.config import EngineConfig
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.protocol.messages import Sampling
from tests.cases.models.eagle3 import eagle3_weights, early, write_eagle3
from tests.cases.models.llama_family import CONFIGS, write
from tests.cases.models.medusa import residuals, write_new
from tests.cases.models.mtp import mtp_weights, repeating, write_mtp
from tests.cases.models.own_mtp import as_qwen, write_with
from tests.cases.tiny_llama import write_tiny_llama
from tests.fakes.engines import (
    CONSTRAINT,
    EOS_ID,
    EPOCH,
    VOCAB_SIZE,
    Client,
    Link,
    ScriptedMasks,
    random_prompt,
    run_clients,
)
from tests.harness.rank_processes import SharedEngine, shared_engine
from tests.harness.runs import matrices

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.matrix]

SIZES = (2, 4)  # beside one process
# Divisible by 4, with the output layer for an embedding.
SHAPE = {"vocab_size": VOCAB_SIZE, "num_key_value_heads": 4, "eos_token_id": EOS_ID}
WIDTH = 64
NUM_TOKENS, NUM_TREE_ROWS = 3, 7
LIMITS: dict[str, Any] = {
    "max_num_batched_tokens": 64,
    "kv_cache_tokens": 512,
    "max_prefill_slowdown": 1e9,  # passes then do not depend on times
}
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "sampled": Sampling(temperature=0.05, seed=5),
    "shaped": Sampling(
        temperature=0.05, top_k=20, top_p=0.9, min_p=0.01, presence_penalty=0.01, seed=6
    ),
}
KINDS = ("medusa", "mtp", "checkpoint", "eagle3", "early exit")
Engines = dict[int, SharedEngine]
Rounds = list[tuple[int, list[int]]]  # of each verdict what was drafted and accepted


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("target"), seed=1, **SHAPE)


def drafting(kind: str, target: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The target, and the key that says what drafts: it is right now and then."""
    if kind == "medusa":
        return target, {"heads": str(write_new(folder, residuals(WIDTH, scale=0.01)))}
    if kind == "mtp":
        return target, {"heads": str(write_mtp(folder, repeating(target)))}
    if kind == "checkpoint":
        return write_with(folder, target, as_qwen(repeating(target))), {"heads": "checkpoint"}
    if kind == "eagle3":
        return target, {"heads": str(write_eagle3(folder, target, early(target)))}
    return target, {"early_exit": 1}


@pytest.fixture(scope="module", params=KINDS)
def drafts(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def served(
    drafts: str, target: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    return drafting(drafts, target, tmp_path_factory.mktemp("heads") / "own")


@pytest.fixture(scope="module")
def engines(
    drafts: str, served: tuple[Path, dict[str, Any]], pytestconfig: pytest.Config
) -> Iterator[Engines]:
    """The same target and what drafts with it: of one process, and shared by 2 or 4 of them."""
    path, key = served
    sizes = matrices.some_of(pytestconfig, f"ranks of {drafts}", SIZES)
    with contextlib.ExitStack() as stack:
        yield {
            size: stack.enter_context(shared_engine("target", size, path, **LIMITS | key))
            for size in (1, *sizes)
        }


@pytest.fixture(params=[0, NUM_TREE_ROWS], ids=["chain", "tree"])
def fixed(request: pytest.FixtureRequest, engines: Engines) -> Engines:
    """All of them draft in every pass, chains or trees."""
    for engine in engines.values():
        engine.ranks[0].call("fix_drafts", NUM_TOKENS, request.param)
    return engines


Plain = Callable[..., list[list[int]]]


@pytest.fixture(scope="module")
def plain(target: Path) -> Plain:
    """Texts of one process with nothing that drafts."""
    config = config_of(target)
    engine = TargetEngine(ModelRunner(config), ScriptedMasks(), EPOCH)

    def texts(prompts: list[list[int]], sampling: Sampling, **terms: Any) -> list[list[int]]:
        return run(engine, prompts, sampling, own_drafts=False, **terms)[0]

    return texts


def config_of(path: Path, **changes: Any) -> EngineConfig:
    sizes: dict[str, Any] = {"max_model_len": 256, "block_size": 16, "dtype": "float32"}
    return EngineConfig(model_path=str(path), **sizes | LIMITS | changes)


def prompts_of(*lengths: int) -> list[list[int]]:
    return [random_prompt(seed, length) for seed, length in enumerate(lengths)]


def run(
    engine: TargetEngine | SharedEngine,
    prompts: list[list[int]],
    sampling: Sampling,
    *,
    num_tokens: int = 60,
    own_drafts: bool = True,
    **terms: Any,
) -> tuple[list[list[int]], Rounds]:
    """Texts of sessions that run together, and their rounds."""
    link = Link(engine)  # type: ignore[arg-type]  # an engine in another process
    clients = [
        Client(
            f"s{number}",
            prompt,
            sampling,
            num_tokens,
            link,
            run_on=lambda: 9,
            own_drafts=own_drafts,
            **terms,
        )
        for number, prompt in enumerate(prompts)
    ]
    texts = run_clients(clients)
    assert not any(client.failures for client in clients)
    verdicts = [verdict for client in clients for verdict in client.verdicts]
    rounds = [(verdict.num_own_drafted, verdict.own) for verdict in verdicts]
    return texts, rounds


def compare(
    engines: Engines, plain: Plain, prompts: list[list[int]], sampling: Sampling, **terms: Any
) -> int:
    """How many tokens of drafts were accepted, as many whoever shares the target."""
    expected = plain(prompts, sampling, **terms)
    found = {size: run(engine, prompts, sampling, **terms) for size, engine in engines.items()}
    for size, (texts, rounds) in found.items():
        assert texts == expected, f"{size} ranks"
        assert rounds == found[1][1], f"{size} ranks"
    return sum(len(own) for _, own in found[1][1])


@pytest.mark.parametrize("name", SAMPLINGS)
def test_text_is_that_without_drafts_and_drafts_those_of_one_process(
    name: str, fixed: Engines, plain: Plain
) -> None:
    assert compare(fixed, plain, prompts_of(5, 16, 70), SAMPLINGS[name]) > 0


def test_greedy_text_under_rejection_too(fixed: Engines, plain: Plain) -> None:
    prompts, sampling = prompts_of(9, 30), Sampling(temperature=0, verification="rejection")
    assert compare(fixed, plain, prompts, sampling) > 0


def test_a_grammar_holds_and_text_stays(fixed: Engines, plain: Plain) -> None:
    sampling = Sampling(temperature=0.7, seed=3)
    terms: dict[str, Any] = {"constraint": CONSTRAINT, "eos_ids": [EOS_ID], "num_tokens": 12}
    compare(fixed, plain, prompts_of(9, 30, 4), sampling, **terms)


def test_preempted_sessions_go_on_with_drafts(fixed: Engines, plain: Plain) -> None:
    """The cache holds less than the texts of all: each rank computes them again."""
    before = [engine.ranks[0].call("num_preemptions") for engine in fixed.values()]
    assert compare(fixed, plain, prompts_of(*range(20, 60, 5)), SAMPLINGS["sampled"]) > 0
    after = [engine.ranks[0].call("num_preemptions") for engine in fixed.values()]
    assert all(b < a for b, a in zip(before, after, strict=True))


def test_a_cached_prefix_brings_its_keys_on_every_rank(fixed: Engines, plain: Plain) -> None:
    """Also of a text that nothing was drafted for, whose rows of a head are left out."""
    prompt, more = random_prompt(5, 50), random_prompt(6, 3)
    (text,) = plain([prompt], SAMPLINGS["greedy"])
    for engine in fixed.values():
        engine.ranks[0].call("fix_drafts", 0, 0)
        assert run(engine, [prompt], SAMPLINGS["greedy"])[0] == [text]
        engine.ranks[0].call("fix_drafts", NUM_TOKENS, 0)
        assert run(engine, [prompt], SAMPLINGS["greedy"], own_drafts=False)[0] == [text]
    assert compare(fixed, plain, [[*prompt, *text[:30]]], SAMPLINGS["greedy"]) > 0
    compare(fixed, plain, [[*prompt, *text[:30], *more]], SAMPLINGS["greedy"])


def test_each_rank_has_its_share(served: tuple[Path, dict[str, Any]], engines: Engines) -> None:
    """As it is foretold for the leader, who has what is not divided."""
    path, key = served
    for size, engine in engines.items():
        config = config_of(path, tensor_parallel_size=size, **key)
        leader, *followers = engine.sizes
        assert memory_estimate(config).weight_bytes == leader["weight_bytes"]
        assert leader["kv_bytes"] == engines[1].sizes[0]["kv_bytes"] // size
        for follower in followers:
            assert follower["kv_bytes"] == leader["kv_bytes"]
            assert follower["weight_bytes"] <= leader["weight_bytes"]


# All but the words of the third of four ranks.
IDS = torch.cat([torch.arange(128), torch.arange(192, VOCAB_SIZE)])


def some_ids(kind: str, target: Path, folder: Path) -> Path:
    """Heads that draft some ids only, by output layers, and an embedding, of their own."""
    whole = load_file(target / "model.safetensors")["model.embed_tokens.weight"].float()
    offsets = IDS - torch.arange(len(IDS))
    if kind == "mtp":
        return write_mtp(folder, repeating(target) | {"d2t": offsets})
    if kind == "eagle3":
        weights = early(target) | {"d2t": offsets, "embed_tokens.weight": whole}
        return write_eagle3(folder, target, weights | {"lm_head.weight": whole[IDS]})
    own = {f"lm_heads.{head}.weight": whole[IDS] for head in range(2)}  # the third has the target's
    own = {} if kind == "medusa" else own
    weights = residuals(WIDTH, scale=0.01) | own | {"token_map": IDS}
    return write_new(folder, weights, truncated_vocab_size=len(IDS))


@pytest.mark.parametrize("kind", ["mtp", "eagle3", "medusa", "medusa's own"])
def test_ranks_without_a_word_of_the_heads(
    kind: str, target: Path, plain: Plain, tmp_path: Path
) -> None:
    key = {"heads": str(some_ids(kind, target, tmp_path))}
    with contextlib.ExitStack() as stack:
        engines = {
            size: stack.enter_context(shared_engine("target", size, target, **LIMITS | key))
            for size in (1, 4)
        }
        for size, engine in engines.items():
            config = config_of(target, tensor_parallel_size=size, **key)
            assert memory_estimate(config).weight_bytes == engine.sizes[0]["weight_bytes"]
            engine.ranks[0].call("fix_drafts", NUM_TOKENS, 0)
        assert compare(engines, plain, prompts_of(5, 16, 70), SAMPLINGS["greedy"]) > 0
        assert engines[4].stop() == [0] * 4


def random_head(kind: str, target: Path, folder: Path) -> Path:
    """A layer that says more than what it is given, with norms of queries and keys or without."""
    if kind == "mtp":
        return write_mtp(folder, mtp_weights(target, seed=4))
    weights = eagle3_weights(target, seed=4, width=48 if kind == "narrow eagle3" else None)
    if kind == "narrow eagle3":
        for name in ("q_norm", "k_norm"):
            norm = weights["norm.weight"][:16].clone()
            weights[f"layers.0.self_attn.{name}.weight"] = norm
    return write_eagle3(folder, target, weights)


def step_logits(target: Path, heads: Path, size: int) -> torch.Tensor:
    """Of the first steps of a draft, [3, V]."""
    with shared_engine("target", size, target, **LIMITS, heads=str(heads)) as engine:
        logits = engine.ranks[0].call("draft_logits", random_prompt(3, 40))
    return torch.from_numpy(np.concatenate(logits))


@pytest.mark.parametrize("kind", ["mtp", "eagle3", "narrow eagle3"])
def test_a_step_of_all_ranks_is_that_of_one(kind: str, target: Path, tmp_path: Path) -> None:
    heads = random_head(kind, target, tmp_path)
    alone, shared = (step_logits(target, heads, size) for size in (1, 4))
    assert alone.shape == (3, VOCAB_SIZE)
    torch.testing.assert_close(shared, alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["llama-biases", "llama-own-head-size", "mistral-window", "qwen2", "qwen3"]
)
def test_a_step_behind_any_of_the_family(name: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    write(CONFIGS[name], target)
    heads = write_mtp(tmp_path / "heads", mtp_weights(target, seed=4))
    alone, shared = (step_logits(target, heads, size) for size in (1, 2))
    torch.testing.assert_close(shared, alone, rtol=0, atol=1e-4)


def test_a_head_that_ranks_cannot_share_is_refused_by_its_size(
    target: Path, tmp_path: Path
) -> None:
    """By the check of a config, and by every rank."""
    weights = eagle3_weights(target)
    for name, dim in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
        key = f"layers.0.mlp.{name}.weight"
        weights[key] = weights[key].narrow(dim, 0, 78).contiguous()
    heads = str(write_eagle3(tmp_path, target, weights, "original", intermediate_size=78))
    refusal = f"heads {heads!r}: tensor_parallel_size 4 does not divide the 78 of mlp.gate_proj"
    with pytest.raises(ValueError, match=re.escape(refusal)):
        memory_estimate(config_of(target, heads=heads, tensor_parallel_size=4))
    refused = pytest.raises(RuntimeError, match=re.escape(refusal))
    with refused, shared_engine("target", 4, target, **LIMITS, heads=heads):
        pass


def test_a_killed_follower_fails_the_step(target: Path, tmp_path: Path) -> None:
    """As it does where nothing drafts."""
    _, key = drafting("mtp", target, tmp_path)
    with shared_engine("target", 2, target, **LIMITS | key) as engine:
        engine.ranks[0].call("fix_drafts", NUM_TOKENS, 0)
        link = Link(engine)  # type: ignore[arg-type]  # an engine in another process
        client = Client("s", random_prompt(1, 9), SAMPLINGS["greedy"], 60, link, own_drafts=True)
        for _ in range(3):
            client.on_replies([], client.target_link.tick())
        engine.ranks[1].process.kill()
        with pytest.raises(RuntimeError):
            engine.step()
