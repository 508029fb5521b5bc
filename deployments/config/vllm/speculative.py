"""vLLM's `speculative_config`, word by word, as the keys of the config that mean the same.

A method of vLLM's drafts alone, with a fixed number of tokens, so the other drafters are switched
off. So counts of accepted tokens are comparable after a move from vLLM. Leaving
`speculative_config` out, or `num_speculative_tokens` to be chosen live, is this service's own way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deployments.config.model_paths import resolve_folder
from deployments.config.vllm.words import Word, asks_for_nothing, refusal
from models.heads.config import CHECKPOINT, heads_kind
from models.protocol.rules import COUPLED, REJECTION

_KEY = "speculative_config"
_LIVE = "leave num_speculative_tokens to router.speculation, which chooses k by load and acceptance"
_NO_BLOCKS = "drafters of whole blocks are not served"
_NO_CODE = "code of a checkpoint is never run here"
_ALONE = {"suffix_decoding_max_tree_depth": 0, "prompt_lookup_max": 0}
_LOOKUP = 5  # vLLM's n-gram where neither bound is given
_DEPTH = 24  # depth of suffix decoding, in both
_SUFFIX_KEYS = {  # with vLLM's defaults
    "suffix_decoding_max_spec_factor": 1.0,
    "suffix_decoding_min_token_prob": 0.1,
    "suffix_decoding_max_cached_requests": 10_000,
}
_HEADS = ("medusa", "eagle3", "mtp")
_REFUSED_METHODS = {
    "eagle": "heads of the first EAGLE are not served: use eagle3, medusa or mtp",
    "ngram_gpu": "use ngram, which costs no GPU",
    "mlp_speculator": "use medusa, mtp or eagle3",
    "dflash": f"{_NO_BLOCKS}: use draft_model, mtp or eagle3",
    "dspark": f"{_NO_BLOCKS}: use draft_model, mtp or eagle3",
    "custom_class": f"{_NO_CODE}: a drafter is a file in router/drafters",
    "extract_hidden_states": "states of the target are not handed out",
}
METHODS = ("draft_model", "ngram", "suffix", *_HEADS)

# Words that mean one thing in every method, by what asks for nothing.
_OTHERS: dict[str, Word] = {
    "code_revision": Word(instead=_NO_CODE),
    "moe_backend": Word(nothing=("auto",), instead="the device decides"),
    "attention_backend": Word(instead="use draft.attention"),
    "kv_cache_dtype": Word(nothing=("auto",), instead="keys and values have the model's dtype"),
    "parallel_drafting": Word(nothing=(False,), instead=_NO_BLOCKS),
    "disable_padded_drafter_batch": Word(nothing=(False, True), instead=""),
    "disable_eagle_block_drop": Word(nothing=(False,), instead="blocks are kept as they are"),
    "use_local_argmax_reduction": Word(nothing=(False,), instead="logits are gathered"),
    "use_heterogeneous_vocab": Word(
        nothing=(False,), instead="the draft must share the target's tokenizer"
    ),
    "index_share_for_mtp_iteration": Word(instead="the checkpoint decides"),
    "num_speculative_tokens_per_batch_size": Word(instead=_LIVE),
    "disable_by_batch_size": Word(
        instead="vLLM counts requests that wait: use router.speculation.disable_by_batch_size, "
        "which counts those that run"
    ),
    "draft_load_config": Word(nothing=({},), instead="safetensors are read"),
    "enable_adaptive_verification": Word(nothing=(False,), instead=_LIVE),
    "dspark_draft_topk": Word(instead=_NO_BLOCKS),
    "synthetic_acceptance_rate": Word(instead="drafts are verified"),
    "synthetic_acceptance_rates": Word(instead="drafts are verified"),
    "synthetic_acceptance_length": Word(instead="drafts are verified"),
    "disable_logprobs": Word(nothing=(False,), instead="logprobs are the same with drafts"),
    "disable_log_stats": Word(nothing=(False, True), instead=""),
}
_HINTS = {  # a likely name, and vLLM's
    "draft_model": "model",
    "num_heads": "num_speculative_tokens; the folder says how many heads there are",
    "tensor_parallel_size": "draft_tensor_parallel_size",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
}
_RULE_KEYS = ("rejection_sample_method", "draft_sample_method")
_DRAFT_KEYS = ("draft_tensor_parallel_size", "quantization", "max_model_len", "revision")
_LOOKUP_KEYS = ("prompt_lookup_min", "prompt_lookup_max")
_OF_METHOD: dict[str, tuple[str, ...]] = {
    "draft_model": ("model", "enforce_eager", *_DRAFT_KEYS, *_RULE_KEYS),
    "ngram": ("model", *_LOOKUP_KEYS, *_RULE_KEYS),
    "suffix": ("model", "suffix_decoding_max_tree_depth", *_SUFFIX_KEYS, *_RULE_KEYS),
    **dict.fromkeys(_HEADS, ("model", "draft_tensor_parallel_size")),
}


@dataclass(frozen=True, slots=True)
class Speculation:
    """The meaning of a `speculative_config` here.

    Attributes:
        limits: keys of `router.speculation`.
        draft: keys of the section `draft`; None: no draft model.
        heads: `target.heads`.
    """

    limits: dict[str, Any]
    draft: dict[str, Any] | None = None
    heads: str | None = None


@dataclass(slots=True)
class _Asked:
    """The words, and what the target has that they refer to."""

    words: dict[str, Any]
    target: str
    num_ranks: int
    limits: dict[str, Any] = field(default_factory=dict)


def translated_speculation(
    given: object, *, target: str, tensor_parallel_size: int = 1
) -> Speculation:
    """Translate a `speculative_config`.

    Args:
        given: vLLM's mapping.
        target: the target's model path.
        tensor_parallel_size: of the target, which a draft model has too unless it says otherwise.

    Raises:
        ValueError: a key is unknown, or its value means nothing here; names it, and what to use.
    """
    if not isinstance(given, Mapping):
        raise refusal(_KEY, given, f"must be an object of keys, with a method ({_methods()})")
    words = {str(key): value for key, value in given.items() if value is not None}
    asked = _Asked(words, target, tensor_parallel_size)
    method = _method(words)
    for key, value in words.items():
        _check_key(key, value, method)
    asked.limits = {"method": method, **_ALONE, **_length(words, method), **_rule(words, method)}
    return _BY_METHOD[method](asked)


def _method(words: Mapping[str, Any]) -> str:
    """Find the method like vLLM: by `method`, else by `model`, and for heads by their folder."""
    method, model = words.get("method"), words.get("model")
    if method is None and model in ("ngram", "[ngram]"):
        return "ngram"
    if method is None and model is None:
        raise ValueError(f"{_KEY}: give method ({_methods()}), or the model of a draft")
    method = "draft_model" if method is None else method
    if method == "[ngram]":
        return "ngram"
    if isinstance(method, str) and method.endswith("_mtp"):
        return "mtp"  # vLLM's older names of it, by model
    if method in _REFUSED_METHODS:
        raise refusal(f"{_KEY}.method", method, _REFUSED_METHODS[str(method)])
    if method not in METHODS:
        raise refusal(f"{_KEY}.method", method, f"must be one of {_methods()}")
    if method == "draft_model" and isinstance(model, str):
        return _kind_of_folder(model) or method
    return str(method)


def _kind_of_folder(model: str) -> str | None:
    """Return the kind of heads in a folder; None if it is a model, or is not here."""
    try:
        return heads_kind(resolve_folder(model, f"{_KEY}.model"))
    except ValueError:
        return None


def _check_key(key: str, value: Any, method: str) -> None:
    if key in ("method", "num_speculative_tokens") or key in _OF_METHOD[method]:
        return
    if key in _OTHERS:
        if not asks_for_nothing(_OTHERS[key], value):
            raise refusal(f"{_KEY}.{key}", value, _OTHERS[key].instead)
        return
    if key in _HINTS:
        raise refusal(f"{_KEY}.{key}", value, f"is no key of vLLM's: use {_HINTS[key]}")
    others = [name for name, keys in _OF_METHOD.items() if key in keys]
    if others:
        raise refusal(
            f"{_KEY}.{key}", value, f"is for method {' and '.join(others)}, not for {method}"
        )
    raise ValueError(f"unknown key {f'{_KEY}.{key}'!r}")


def _length(words: Mapping[str, Any], method: str) -> dict[str, int]:
    """k, which is fixed; of suffix decoding and MTP vLLM knows a default."""
    default = {"suffix": _DEPTH, "mtp": 1}.get(method)
    length = words.get("num_speculative_tokens", default)
    if length is None:
        raise ValueError(f"{_KEY}.num_speculative_tokens: method {method} needs it")
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise refusal(f"{_KEY}.num_speculative_tokens", length, "must be a number from 1 on")
    return {"num_speculative_tokens": length, "max_num_speculative_tokens": length}


def _rule(words: Mapping[str, Any], method: str) -> dict[str, str]:
    """Return the rule by which drafts are accepted; without a word this service's default."""
    rule, draws = (words.get(key) for key in _RULE_KEYS)
    if rule is None and draws is None:
        return {}
    key = f"{_KEY}.{_RULE_KEYS[0]}"
    if rule not in (None, "standard"):
        raise refusal(key, rule, f"must be standard; {COUPLED.name} is the default here")
    if method == "draft_model" and draws != "probabilistic":
        raise refusal(
            f"{_KEY}.{_RULE_KEYS[1]}",
            draws or "greedy",
            "must be probabilistic with a draft model: it samples as its request does",
        )
    if draws not in (None, "greedy", "probabilistic"):
        raise refusal(f"{_KEY}.{_RULE_KEYS[1]}", draws, "must be greedy or probabilistic")
    return {"verification": REJECTION.name}


def _draft_model(asked: _Asked) -> Speculation:
    words = asked.words
    if not isinstance(words.get("model"), str):
        raise refusal(f"{_KEY}.model", words.get("model"), "must name the draft model")
    draft: dict[str, Any] = {"model_path": words["model"]}
    ranks = words.get("draft_tensor_parallel_size", asked.num_ranks)
    if ranks not in (1, asked.num_ranks) or isinstance(ranks, bool):
        raise refusal(
            f"{_KEY}.draft_tensor_parallel_size",
            ranks,
            f"must be 1 or the target's, {asked.num_ranks}",
        )
    draft["tensor_parallel_size"] = ranks
    draft |= {key: words[key] for key in _DRAFT_KEYS[1:] if key in words}
    if "enforce_eager" in words:
        draft["graphs"] = "off" if words["enforce_eager"] else "auto"
    return Speculation(asked.limits, draft)


def _ngram(asked: _Asked) -> Speculation:
    _refuse_model(asked, "ngram")
    fewest, most = (asked.words.get(key) for key in _LOOKUP_KEYS)
    given = [value for value in (fewest, most) if value is not None]
    default = given[0] if given else _LOOKUP
    bounds = {
        "prompt_lookup_min": default if fewest is None else fewest,
        "prompt_lookup_max": default if most is None else most,
    }
    for key, value in bounds.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise refusal(f"{_KEY}.{key}", value, "must be a number from 1 on")
    return Speculation(asked.limits | bounds)


def _suffix(asked: _Asked) -> Speculation:
    _refuse_model(asked, "suffix")
    depth_key = "suffix_decoding_max_tree_depth"
    depth = asked.words.get(depth_key, _DEPTH)
    if depth != _DEPTH:
        raise refusal(
            f"{_KEY}.{depth_key}",
            depth,
            f"vLLM bounds match and draft together, here the match alone: leave it at {_DEPTH}, or "
            f"set router.speculation.{depth_key}",
        )
    values = {key: asked.words.get(key, default) for key, default in _SUFFIX_KEYS.items()}
    return Speculation(
        asked.limits | values | {depth_key: _DEPTH, "suffix_decoding_max_spec_offset": 0.0}
    )


def _heads(asked: _Asked) -> Speculation:
    method, model = asked.limits["method"], asked.words.get("model")
    ranks = asked.words.get("draft_tensor_parallel_size", asked.num_ranks)
    if ranks != asked.num_ranks or isinstance(ranks, bool):
        raise refusal(
            f"{_KEY}.draft_tensor_parallel_size",
            ranks,
            f"heads share the target's ranks, {asked.num_ranks}: leave it out",
        )
    if method == "mtp" and model in (None, asked.target):
        return Speculation(asked.limits, heads=CHECKPOINT)
    if not isinstance(model, str):
        raise refusal(f"{_KEY}.model", model, f"must name the folder of the {method} heads")
    kind = heads_kind(resolve_folder(model, f"{_KEY}.model"))
    if kind != method:
        raise refusal(f"{_KEY}.method", method, f"{model} holds heads of kind {kind}")
    return Speculation(asked.limits, heads=model)


def _refuse_model(asked: _Asked, method: str) -> None:
    model = asked.words.get("model")
    if model not in (None, method, f"[{method}]"):
        raise refusal(f"{_KEY}.model", model, f"method {method} has no model: leave it out")


def _methods() -> str:
    return ", ".join(METHODS)


_BY_METHOD: dict[str, Callable[[_Asked], Speculation]] = {
    "draft_model": _draft_model,
    "ngram": _ngram,
    "suffix": _suffix,
    **dict.fromkeys(_HEADS, _heads),
}
