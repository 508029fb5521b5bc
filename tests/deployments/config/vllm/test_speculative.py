"""vLLM's `speculative_config`: each key in each method is mapped, or refused by key and value."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.config.vllm.speculative import METHODS, translated_speculation
from tests.harness.local import DEMO

TARGET, DRAFT, HEADS, MTP = (str(DEMO / name) for name in ("target", "draft", "heads", "mtp"))
ALONE = {"suffix_decoding_max_tree_depth": 0, "prompt_lookup_max": 0}


def limits(method: str, k: int, **more: Any) -> dict[str, Any]:
    length = {"num_speculative_tokens": k, "max_num_speculative_tokens": k}
    return {"method": method, **ALONE, **length, **more}


LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
SUFFIX = {
    "suffix_decoding_max_tree_depth": 24,
    "suffix_decoding_max_spec_factor": 1.0,
    "suffix_decoding_max_spec_offset": 0.0,
    "suffix_decoding_min_token_prob": 0.1,
    "suffix_decoding_max_cached_requests": 10_000,
}
MAPPED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None, str | None]] = {
    "draft_model": (
        {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 4},
        limits("draft_model", 4),
        {"model_path": DRAFT, "tensor_parallel_size": 2},
        None,
    ),
    "method-by-model": (
        {"model": DRAFT, "num_speculative_tokens": 3},
        limits("draft_model", 3),
        {"model_path": DRAFT, "tensor_parallel_size": 2},
        None,
    ),
    "draft-keys": (
        {
            "model": DRAFT,
            "num_speculative_tokens": 3,
            "draft_tensor_parallel_size": 1,
            "max_model_len": 256,
            "quantization": "int8",
            "revision": "v1",
            "enforce_eager": True,
            "parallel_drafting": False,
            "kv_cache_dtype": "auto",
            "disable_by_batch_size": None,
        },
        limits("draft_model", 3),
        {
            "model_path": DRAFT,
            "tensor_parallel_size": 1,
            "max_model_len": 256,
            "quantization": "int8",
            "revision": "v1",
            "graphs": "off",
        },
        None,
    ),
    "rejection": (
        {
            "model": DRAFT,
            "num_speculative_tokens": 3,
            "rejection_sample_method": "standard",
            "draft_sample_method": "probabilistic",
        },
        limits("draft_model", 3, verification="rejection"),
        {"model_path": DRAFT, "tensor_parallel_size": 2},
        None,
    ),
    "ngram": (
        {"method": "ngram", "num_speculative_tokens": 5, **LOOKUP},
        limits("ngram", 5, **LOOKUP),
        None,
        None,
    ),
    "ngram-by-model": (
        {"model": "[ngram]", "num_speculative_tokens": 5},
        limits("ngram", 5, prompt_lookup_min=5, prompt_lookup_max=5),
        None,
        None,
    ),
    "ngram-one-bound": (
        {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3},
        limits("ngram", 5, prompt_lookup_min=3, prompt_lookup_max=3),
        None,
        None,
    ),
    "suffix": ({"method": "suffix"}, limits("suffix", 24, **SUFFIX), None, None),
    "suffix-keys": (
        {
            "method": "suffix",
            "num_speculative_tokens": 8,
            "suffix_decoding_max_tree_depth": 24,
            "suffix_decoding_max_spec_factor": 2.0,
            "suffix_decoding_min_token_prob": 0.2,
            "suffix_decoding_max_cached_requests": 0,
        },
        limits(
            "suffix",
            8,
            **SUFFIX
            | {
                "suffix_decoding_max_spec_factor": 2.0,
                "suffix_decoding_min_token_prob": 0.2,
                "suffix_decoding_max_cached_requests": 0,
            },
        ),
        None,
        None,
    ),
    "medusa": (
        {"method": "medusa", "model": HEADS, "num_speculative_tokens": 3},
        limits("medusa", 3),
        None,
        HEADS,
    ),
    "medusa-by-model": (
        {"model": HEADS, "num_speculative_tokens": 3},
        limits("medusa", 3),
        None,
        HEADS,
    ),
    "mtp": (
        {"method": "mtp", "model": MTP, "num_speculative_tokens": 3},
        limits("mtp", 3),
        None,
        MTP,
    ),
    "mtp-in-the-target": ({"method": "mtp"}, limits("mtp", 1), None, "checkpoint"),
    "mtp-older-name": (
        {"method": "deepseek_mtp", "model": TARGET, "num_speculative_tokens": 2},
        limits("mtp", 2),
        None,
        "checkpoint",
    ),
}


@pytest.mark.parametrize(("words", "meant", "draft", "heads"), MAPPED.values(), ids=MAPPED)
def test_each_method_is_mapped(
    words: dict[str, Any], meant: dict[str, Any], draft: dict[str, Any] | None, heads: str | None
) -> None:
    found = translated_speculation(words, target=TARGET, tensor_parallel_size=2)
    assert (found.limits, found.draft, found.heads) == (meant, draft, heads)


def test_every_method_has_a_case() -> None:
    assert {meant["method"] for _, meant, _, _ in MAPPED.values()} >= set(METHODS) - {"eagle3"}


OF_DRAFT = {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 3}
OF_NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
OF_MEDUSA = {"method": "medusa", "model": HEADS, "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ngram", "speculative_config='ngram': must be an object of keys"),
        ({}, "give method (draft_model, ngram, suffix, medusa, eagle3, mtp), or the model"),
        ({"method": "magic"}, ".method='magic': must be one of draft_model, ngram"),
        ({"method": "eagle", "model": "x"}, ".method='eagle': heads of the first EAGLE"),
        ({"method": "ngram_gpu"}, ".method='ngram_gpu': use ngram"),
        ({"method": "mlp_speculator"}, ".method='mlp_speculator': use medusa"),
        ({"method": "dflash"}, ".method='dflash': drafters of whole blocks are not served"),
        ({"method": "dspark"}, ".method='dspark': drafters of whole blocks"),
        ({"method": "custom_class"}, ".method='custom_class': code of a checkpoint"),
        ({"method": "extract_hidden_states"}, ".method='extract_hidden_states'"),
        ({"method": "draft_model", "model": DRAFT}, "num_speculative_tokens: method draft_model"),
        ({"method": "draft_model", "num_speculative_tokens": 2}, ".model=None: must name"),
        (OF_DRAFT | {"num_speculative_tokens": 0}, ".num_speculative_tokens=0: must be a number"),
        (OF_DRAFT | {"num_speculative_tokens": True}, ".num_speculative_tokens=True"),
        (OF_DRAFT | {"num_speculative_tokens": "4"}, ".num_speculative_tokens='4'"),
        (OF_DRAFT | {"draft_tensor_parallel_size": 3}, ".draft_tensor_parallel_size=3: must be 1"),
        (OF_DRAFT | {"prompt_lookup_max": 3}, ".prompt_lookup_max=3: is for method ngram, not"),
        (OF_DRAFT | {"parallel_drafting": True}, ".parallel_drafting=True: drafters of whole"),
        (OF_DRAFT | {"disable_by_batch_size": 8}, ".disable_by_batch_size=8: vLLM counts"),
        (OF_DRAFT | {"num_speculative_tokens_per_batch_size": []}, "_per_batch_size=[]: leave"),
        (OF_DRAFT | {"use_heterogeneous_vocab": True}, ".use_heterogeneous_vocab=True: the draft"),
        (OF_DRAFT | {"enable_adaptive_verification": True}, ".enable_adaptive_verification=True"),
        (OF_DRAFT | {"synthetic_acceptance_length": 2.0}, ".synthetic_acceptance_length=2.0"),
        (OF_DRAFT | {"rejection_sample_method": "block"}, ".rejection_sample_method='block'"),
        (
            OF_DRAFT | {"rejection_sample_method": "standard"},
            ".draft_sample_method='greedy': must be probabilistic with a draft model",
        ),
        (OF_DRAFT | {"draft_model": "x"}, ".draft_model='x': is no key of vLLM's: use model"),
        (OF_DRAFT | {"tensor_parallel_size": 2}, "use draft_tensor_parallel_size"),
        (OF_MEDUSA | {"num_heads": 4}, ".num_heads=4: is no key of vLLM's: use num_speculative"),
        (OF_DRAFT | {"temperature": 1}, "unknown key 'speculative_config.temperature'"),
        (OF_NGRAM | {"prompt_lookup_min": 0}, ".prompt_lookup_min=0: must be a number from 1"),
        (OF_NGRAM | {"model": DRAFT}, "method ngram has no model: leave it out"),
        (
            {"method": "suffix", "suffix_decoding_max_tree_depth": 32},
            ".suffix_decoding_max_tree_depth=32: vLLM bounds match and draft together",
        ),
        (OF_MEDUSA | {"model": MTP}, ".method='medusa': "),
        (OF_MEDUSA | {"model": "no/such/heads"}, "no such folder: 'no/such/heads'"),
        (OF_MEDUSA | {"draft_tensor_parallel_size": 2}, ".draft_tensor_parallel_size=2: heads"),
        ({"method": "eagle3", "num_speculative_tokens": 3}, ".model=None: must name the folder"),
    ],
)
def test_what_means_nothing_here_is_refused_by_key_and_value(words: Any, said: str) -> None:
    with pytest.raises(ValueError, match="speculative_config") as raised:
        translated_speculation(words, target=TARGET)
    assert said in str(raised.value)
