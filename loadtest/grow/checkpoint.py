"""Grows a Llama checkpoint to any size without changing the function it computes.

The added weights cannot reach the logits. A wider hidden state carries zeros in its new dimensions,
because nothing writes there. Norms, which now average over more numbers, are scaled back by
sqrt(old / new), their epsilon by old / new. New layers, FFN columns and query heads end in zeros of
`o_proj` and `down_proj`. So they add exactly zero to the residual stream. Key heads are repeated
where the new grouping of query heads asks for it. Head size, vocabulary and positions stay.

The function is the same in exact arithmetic. It still is in bfloat16 if new / old hidden size is a
power of four. Then norms are scaled by a power of two. Otherwise they are rounded. Matrix products
of other shapes may add in another order, so the last bit of a logit may differ.

The result is dense and costs what its size costs. Weights that only meet zeros are filled with
random numbers of their neighbours' size. So no engine gains from their origin. The exception are
the zeros named above, about a third of a deeply grown checkpoint.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor
from transformers import LlamaConfig

from loadtest.grow.source import (
    EMBEDDING,
    LAST_NORM,
    LAYER_MATRICES,
    LAYER_NORMS,
    LM_HEAD,
    SIZES,
    ModelSize,
    Source,
    axis_lengths,
    check_size,
    key_head_repeats,
)

_COPIED_FILES = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("chat_template*", "generation_config.json"),
)


def count_parameters(source: Source, size: ModelSize, *, tied: bool) -> int:
    """Weights of `source` grown to `size`, a shared embedding counted once."""
    lengths = axis_lengths(source, size)
    matrices = sum(lengths[rows] * lengths[cols] for rows, cols, _ in LAYER_MATRICES.values())
    norms = size.hidden_size * len(LAYER_NORMS)
    embedding = source.config.vocab_size * size.hidden_size
    layers = size.num_hidden_layers * (matrices + norms)
    return layers + size.hidden_size + embedding * (1 if tied else 2)


def grow_checkpoint(
    source: Source, output: Path, size: ModelSize, *, seed: int, lm_head: Tensor | None = None
) -> None:
    """Write `source`, grown to `size`, as an ordinary checkpoint with the same tokenizer.

    Args:
        source: what to grow.
        output: directory to write; made where it is missing.
        size: of the result.
        seed: of the random weights that have no effect.
        lm_head: [vocab_size, hidden_size of the source], to be used instead of the source's own
            and apart from the embedding; None keeps both as they are.

    Raises:
        ValueError: `source` cannot be grown to `size`, or `lm_head` has another shape.
    """
    check_size(source, size)
    if lm_head is not None and lm_head.shape != source.lm_head.shape:
        raise ValueError(
            f"lm_head must have shape {list(source.lm_head.shape)}, got {list(lm_head.shape)}"
        )
    output.mkdir(parents=True, exist_ok=True)
    weights = dict(_Growth(source, size, seed).weights(lm_head))
    _grown_config(source, size, is_tied=LM_HEAD not in weights).save_pretrained(output)
    save_torch_state_dict(weights, output)
    for file in output.glob("*.safetensors"):
        # safetensors makes files for their owner alone; others may have to serve them.
        file.chmod((output / "config.json").stat().st_mode)
    for pattern in _COPIED_FILES:
        for file in source.path.glob(pattern):
            shutil.copy(file, output / file.name)


def _grown_config(source: Source, size: ModelSize, *, is_tied: bool) -> LlamaConfig:
    changed = {field.name: getattr(size, field.name) for field in SIZES}
    shrunk = source.size.hidden_size / size.hidden_size
    return LlamaConfig.from_dict(
        {
            **source.config.to_dict(),
            **changed,
            "architectures": ["LlamaForCausalLM"],
            "head_dim": source.head_dim,
            "rms_norm_eps": source.config.rms_norm_eps * shrunk,
            "tie_word_embeddings": is_tied,
        }
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """New places of rows or columns of a source matrix; an old index may appear several times."""

    old: Tensor
    new: Tensor
    new_length: int


class _Growth:
    """One growing: the places of everything old, and a generator for what is new."""

    def __init__(self, source: Source, size: ModelSize, seed: int) -> None:
        self._source = source
        self._old, self._new = source.size, size
        self._norm_scale = (self._old.hidden_size / size.hidden_size) ** 0.5
        self._random = torch.Generator().manual_seed(seed)
        self._axes = _axes(source, size)

    def weights(self, lm_head: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor of the grown checkpoint by name."""
        source = self._source
        yield EMBEDDING, self._matrix(source.weights[EMBEDDING], "vocab", "hidden", False)
        for layer, (origin, is_copy) in enumerate(_layer_origins(self._old, self._new)):
            yield from self._layer(layer, origin, is_copy)
        yield LAST_NORM, self._norm(source.weights[LAST_NORM])
        if lm_head is None:
            lm_head = source.weights.get(LM_HEAD)
        if lm_head is not None:
            yield LM_HEAD, self._matrix(lm_head, "vocab", "hidden", True)

    def _layer(self, layer: int, origin: int, is_copy: bool) -> Iterator[tuple[str, Tensor]]:
        """Yield weights of the new size for a source layer's function (`is_copy`), or for none."""
        for part, (rows, cols, is_free) in LAYER_MATRICES.items():
            old = self._source.weights[f"model.layers.{origin}.{part}.weight"]
            new = self._matrix(old, rows, cols, is_free, is_placed=is_copy)
            yield f"model.layers.{layer}.{part}.weight", new
        for part in LAYER_NORMS:
            old = self._source.weights[f"model.layers.{origin}.{part}.weight"]
            yield f"model.layers.{layer}.{part}.weight", self._norm(old)

    def _matrix(
        self, old: Tensor, rows: str, cols: str, is_free: bool, *, is_placed: bool = True
    ) -> Tensor:
        row, col = self._axes[rows], self._axes[cols]
        shape = (row.new_length, col.new_length)
        if is_free:
            noise = torch.randn(shape, generator=self._random)
            new = noise.mul_(float(old.float().std())).to(old.dtype)
        else:
            new = torch.zeros(shape, dtype=old.dtype)
        if is_placed:
            new[row.new[:, None], col.new] = old[row.old][:, col.old]
        return new

    def _norm(self, old: Tensor) -> Tensor:  # [old hidden size] -> [new hidden size]
        scaled = old.double() * self._norm_scale
        new = torch.full((self._new.hidden_size,), float(scaled.mean()), dtype=torch.double)
        new[: len(old)] = scaled
        return new.to(old.dtype)


def _axes(source: Source, size: ModelSize) -> dict[str, _Axis]:
    """Vocabulary, hidden state and FFN stay in front; heads move to their key head's group."""
    old, head_dim = source.size, source.head_dim
    old_lengths, new_lengths = axis_lengths(source, old), axis_lengths(source, size)
    axes = {
        name: _Axis(torch.arange(length), torch.arange(length), new_lengths[name])
        for name, length in old_lengths.items()
    }
    group = old.num_attention_heads // old.num_key_value_heads
    new_group = size.num_attention_heads // size.num_key_value_heads
    repeats = key_head_repeats(old, size)
    heads = torch.arange(old.num_attention_heads)
    key_heads = torch.arange(old.num_key_value_heads * repeats)
    # A source group fills `repeats` new groups from the front; what stays free in the last of
    # them, and all groups after, are new heads without effect.
    places = heads // group * repeats * new_group + heads % group
    axes["heads"] = _Axis(
        _elements(heads, head_dim), _elements(places, head_dim), new_lengths["heads"]
    )
    axes["key_heads"] = _Axis(
        _elements(key_heads // repeats, head_dim),
        _elements(key_heads, head_dim),
        new_lengths["key_heads"],
    )
    return axes


def _elements(heads: Tensor, head_dim: int) -> Tensor:
    return (heads[:, None] * head_dim + torch.arange(head_dim)).flatten()


def _layer_origins(old: ModelSize, new: ModelSize) -> list[tuple[int, bool]]:
    """Per new layer: the source layer it takes after, and whether it is that layer.

    Source layers are spread over the depth, so no engine could leave out the rest at the end.
    """
    places = [i * new.num_hidden_layers // old.num_hidden_layers for i in _layers(old)]
    return [
        (sum(place <= layer for place in places) - 1, layer in places) for layer in _layers(new)
    ]


def _layers(size: ModelSize) -> range:
    return range(size.num_hidden_layers)
