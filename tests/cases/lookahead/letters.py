"""A vocabulary of 60 ids that can write JSON, most of them one character; two end a text."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from models.grammar.compiler import GrammarCompiler, VocabularyInfo

VOCAB_SIZE = 60  # padded: some ids are no token
EOS_IDS = (0, 1)
_SPACE = "\u0120"  # as byte-level vocabularies write it
_MERGES = [
    *(("{", '"'), ('"', ":"), ('"', "}"), ('"', ",")),
    *(("a", "b"), ("c", "a"), ("ca", "b"), ("1", "2"), ("ab", _SPACE)),
]
_TOKENS = [
    *("<end>", "<stop>", *'{}[]":,.-\\', _SPACE, *"0123456789", *"abcdefghijklmno"),
    *("".join(pair) for pair in _MERGES),
]


def letters_compiler() -> GrammarCompiler:
    tokenizer = Tokenizer(
        models.BPE(vocab={text: i for i, text in enumerate(_TOKENS)}, merges=_MERGES)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_TOKENS[:2]))
    return GrammarCompiler(VocabularyInfo(tokenizer.to_str(), VOCAB_SIZE, EOS_IDS))


def text_of(ids: Sequence[int]) -> str:
    texts = (_TOKENS[token_id] for token_id in ids if token_id not in EOS_IDS)
    return "".join(texts).replace(_SPACE, " ")
