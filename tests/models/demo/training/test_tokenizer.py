import random
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from models.demo.data.chat import ask
from models.demo.data.words import GLUED_WORDS, Pools, load_pools, random_word
from models.demo.training.tokenizer import VOCAB_SIZE, save_tokenizer, train_tokenizer

Pieces = Callable[[str], list[str]]


@pytest.fixture
def tokens_of(tokenizer: PreTrainedTokenizerFast) -> Pieces:
    """Return what gives the tokens of a text, as texts."""
    return lambda text: [tokenizer.decode([token_id]) for token_id in tokenizer(text)["input_ids"]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Anna ordered 3 blue kettles.",
        "  two  spaces\n\n\tand a tab ",
        "naïve Köln São Paulo 東京 😀 é",
        '{"customer": "Anna", "price": 12.50}',
        "def add(a, b):\n    return a + b\n",
        "\x00\x7f control",
    ],
)
def test_round_trip(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_vocabulary_is_full_and_ids_are_dense(tokenizer: PreTrainedTokenizerFast) -> None:
    assert sorted(tokenizer.get_vocab().values()) == list(range(VOCAB_SIZE))


def test_every_digit_stands_alone(tokens_of: Pieces, tokenizer: PreTrainedTokenizerFast) -> None:
    assert [token for token in tokens_of("$1250.99 on 2027-03-12") if token.strip().isdigit()] == [
        *"125099",
        *"20270312",
    ]
    assert not [token for token in tokenizer.get_vocab() if sum(map(str.isdigit, token)) > 1]


def test_words_copy_token_for_token_from_prose_to_json(tokens_of: Pieces) -> None:
    rng = random.Random(3)
    pools = load_pools(None, held_out=True)
    words = [*pools.first_names, *pools.last_names, *pools.cities, *pools.items]
    words += [random_word(rng) for _ in range(100)]
    words += [random_word(rng).capitalize() for _ in range(100)]
    for word in words:
        alone = tokens_of(word)
        prose = tokens_of(f"I need {word}, please.")
        record = tokens_of(f'{{"item": "{word}", "quantity": 3}}')
        assert prose[4 : 4 + len(alone)] == alone, word
        assert record[3 : 3 + len(alone)] == alone, word


def test_json_separators_are_single_tokens(tokens_of: Pieces) -> None:
    assert tokens_of('{"a": "b", "c": 1, "d": "e"}')[:5] == ['{"', "a", '": "', "b", '", "']


def test_frequent_words_keep_their_space(tokens_of: Pieces, pools: Pools) -> None:
    assert tokens_of("Tom and Lily")[1] == " and"
    assert tokens_of("Tom andrew")[1] == " "
    firsts = {text.split()[0] for text in (*pools.items, *pools.first_names, *pools.cities)}
    assert not firsts & set(GLUED_WORDS)


def test_template_renders_what_training_saw(tokenizer: PreTrainedTokenizerFast) -> None:
    chat = ask("Say hello.", "Hello!", system="Be kind.")
    messages = [{"role": role, "content": content} for role, content in chat.turns[:-1]]
    shown = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert shown == chat.prompt


def test_saved_folder_loads_as_auto_tokenizer(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    save_tokenizer(tokenizer, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "<|user|>Say hello.<|end|><|assistant|>"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert (loaded.eos_token, loaded.pad_token) == ("<|end|>", "<|pad|>")
    assert loaded.decode(loaded(text)["input_ids"], skip_special_tokens=True) == "Say hello."
    assert loaded.chat_template == tokenizer.chat_template


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match="not 4096"):
        train_tokenizer(["only a few words"])
