"""The demo pair's tokenizer: byte-level BPE of 4,096 tokens, special tokens included.

A reply copies names, words and numbers from its prompt. They must be the same tokens in prose and
in JSON. So each digit stands alone. The space before a word is a token of its own unless the word
is one of `GLUED_WORDS`. No copied value starts with one of these. JSON's separators are single
tokens. Invariant: decoding gives back every text exactly. Knows nothing about models.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from models.demo.data.chat import CHAT_TEMPLATE, END, PAD, ROLES, SPECIAL_TOKENS
from models.demo.data.words import GLUED_WORDS

VOCAB_SIZE = 4096
MAX_LENGTH = 2048  # positions that the checkpoints' rotary table states

# `GLUED_WORDS` are frequent words that keep the space before them, which saves a token each. None
# of them begins a name, an item or another copied value, so such a value is spelled one way only.
_PATTERN = "|".join(
    (
        rf" (?:{'|'.join(sorted(GLUED_WORDS, key=len, reverse=True))})(?![\p{{L}}\p{{M}}])",
        r"'(?:s|t|re|ve|m|ll|d)(?![\p{L}\p{M}])",
        r"[\p{L}\p{M}]+",
        r"\p{N}",
        r'": "|", "|": |, "|\{"|"\}',
        r'[.!?,]"(?=\s)',
        r"\n(?: {4})*",
        r" +",
        r"\s",
        r"[^\s\p{L}\p{M}\p{N}]",
    )
)


_SETTINGS: dict[str, Any] = {
    "eos_token": END,
    "pad_token": PAD,
    "additional_special_tokens": [f"<|{role}|>" for role in ROLES],
    "chat_template": CHAT_TEMPLATE,
    "model_max_length": MAX_LENGTH,
    "clean_up_tokenization_spaces": False,
}


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """Train on `texts` and return a tokenizer with the chat template and the special tokens set.

    Raises:
        ValueError: if the texts are too few to fill the vocabulary.
    """
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        message = f"the texts give {tokenizer.get_vocab_size()} tokens, not {vocab_size}"
        raise ValueError(message)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **_SETTINGS)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write `tokenizer.json` and a `tokenizer_config.json` that transformers 4 and 5 both read."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **_SETTINGS}
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
