"""A classifier of sentiment that is trained here: 12 words, one layer, a second or two."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

GOOD, BAD = ("lovely", "kind", "bright"), ("awful", "cruel", "grim")
_PLAIN = ("the", "day", "was", "a", "and", "very")
_NUM_STEPS, _NUM_TEXTS = 60, 32


def write_tiny_classifier(folder: Path) -> Path:
    """Train it and write a checkpoint of transformers."""
    words = ["[PAD]", "[UNK]", *_PLAIN, *GOOD, *BAD]
    backend = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]"
    )
    state = torch.get_rng_state()
    torch.manual_seed(0)
    try:
        model = _trained(tokenizer, len(words))
    finally:
        torch.set_rng_state(state)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _trained(tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> Any:
    model: Any = BertForSequenceClassification(
        BertConfig(
            vocab_size=vocab_size,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            id2label={0: "NEGATIVE", 1: "POSITIVE"},
            label2id={"NEGATIVE": 0, "POSITIVE": 1},
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    draw = random.Random(0)
    for _ in range(_NUM_STEPS):
        labels = [draw.randrange(2) for _ in range(_NUM_TEXTS)]
        texts = [_text(draw, GOOD if label else BAD) for label in labels]
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        loss = model(**inputs, labels=torch.tensor(labels)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def _text(draw: random.Random, moods: tuple[str, ...]) -> str:
    words = [draw.choice(_PLAIN) for _ in range(draw.randrange(1, 8))]
    return " ".join([*words, draw.choice(moods), draw.choice(_PLAIN)])
