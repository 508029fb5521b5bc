import random

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from models.demo.data.mixture import CONCEPTS, KINDS, SHARES, TASKS, Mixture, encode, make_batch
from models.demo.data.words import GLUED_WORDS, is_held_out, made_up


@pytest.fixture(scope="module")
def mixture() -> Mixture:
    return Mixture.load(None)


def test_batches_depend_on_seed_and_step_alone(
    mixture: Mixture, tokenizer: PreTrainedTokenizerFast
) -> None:
    first = make_batch(mixture, tokenizer, seed=1, step=3, tokens=1024)
    again = make_batch(mixture, tokenizer, seed=1, step=3, tokens=1024)
    other = make_batch(mixture, tokenizer, seed=1, step=5, tokens=1024)
    assert torch.equal(first.input_ids, again.input_ids)
    assert torch.equal(first.weights, again.weights)
    assert not torch.equal(first.input_ids[0, :64], other.input_ids[0, :64])
    assert first.input_ids.shape == first.weights.shape


def test_replies_weigh_one_and_prompts_little(
    mixture: Mixture, tokenizer: PreTrainedTokenizerFast
) -> None:
    chat = mixture.draw(random.Random(1), "code")
    [(ids, weights)] = encode(tokenizer, [chat])
    reply = [token for token, weight in zip(ids, weights, strict=True) if weight == 1.0]
    assert tokenizer.decode(reply) == chat.answer + "<|end|>"
    assert tokenizer.decode(ids) == chat.prompt + chat.answer + "<|end|>"


@pytest.mark.parametrize("task", TASKS)
def test_shares_add_up(task: str) -> None:
    assert sum(share for share, _ in TASKS[task].values()) == pytest.approx(1.0)


@pytest.mark.parametrize("held_out", [False, True])
def test_a_task_draws_its_own_kinds_from_its_side_of_the_split(held_out: bool) -> None:
    mixture = Mixture.load(None, held_out, task=CONCEPTS)
    chats = [mixture.draw(random.Random(seed)) for seed in range(50)]
    prefix = "Write one sentence with: "
    assert all(chat.turns[0][1].startswith(prefix) for chat in chats)
    sets = [chat.turns[0][1].removeprefix(prefix).rstrip(".").split(", ") for chat in chats]
    assert all(is_held_out(" ".join(sorted(words))) == held_out for words in sets)


@pytest.mark.parametrize("kind", KINDS)
def test_stated_mean_lengths_are_near(
    kind: str, mixture: Mixture, tokenizer: PreTrainedTokenizerFast
) -> None:
    rng = random.Random(2)
    rows = encode(tokenizer, [mixture.draw(rng, kind) for _ in range(200)])
    mean = sum(len(ids) for ids, _ in rows) / len(rows)
    # Without a corpus the stories are our short templates.
    low = 0.3 if kind == "story" else 0.75
    stated = (SHARES | TASKS[CONCEPTS])[kind][1]
    assert low * stated < mean < 1.25 * stated


def test_made_up_words_use_the_tokens_of_the_vocabulary(
    mixture: Mixture, tokenizer: PreTrainedTokenizerFast
) -> None:
    pools = mixture.with_pieces(tokenizer).pools
    assert len(pools.pieces) > 1000
    rng = random.Random(3)
    words = [made_up(rng, pools, capital=True) for _ in range(300)]
    assert not any(is_held_out(word) or word in GLUED_WORDS for word in words)
    assert all(word.isalpha() and not word[0].islower() for word in words)
