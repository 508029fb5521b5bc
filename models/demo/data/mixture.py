"""The training mixture: which kinds of text, in which shares, packed into rows of tokens.

Invariant: a step's batch is a function of (seed, step) alone. So a resumed run sees the batches of
an unbroken one. A row starts with the start of a text; texts follow one another with nothing
between but the end token.
"""

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from models.demo.data.chat import Conversation
from models.demo.data.code import make_code
from models.demo.data.concepts import MEAN_TOKENS, make_concept_task
from models.demo.data.corpus import (
    PICTURE_BOOKS,
    SIMPLE_STORIES,
    read_picture_books,
    read_simple_stories,
)
from models.demo.data.extraction import make_extraction, make_record_task
from models.demo.data.refusals import make_refusal
from models.demo.data.stories import Story, make_story
from models.demo.data.tasks import make_date_task, make_short_task
from models.demo.data.tool_calls import make_tool_call, make_unneeded_tools
from models.demo.data.words import WORD_LISTS, Pools, load_pools
from models.distill.batches import Batch

PROMPT_WEIGHT = 0.05  # loss weight of tokens that a user would write
# Kind: (share of all tokens, mean tokens of one text as measured with the shipped tokenizer).
SHARES = {
    "extraction": (0.37, 88),
    "story": (0.25, 265),
    "record": (0.07, 59),
    "code": (0.06, 45),
    "short": (0.06, 26),
    "date": (0.01, 34),
    "refusal": (0.03, 51),
    "tool": (0.15, 258),
}
# Training data of a pair: the demo pair's mixture, or that of the pair in `concepts/`.
CONCEPTS = "concepts"
TASKS = {"demo": SHARES, CONCEPTS: {CONCEPTS: (1.0, MEAN_TOKENS)}}
KINDS = (*SHARES, CONCEPTS)
_SECOND_TURN = 0.05  # part of the chats that begin with another, finished chat
_UNNEEDED_TOOLS = 0.15  # part of the conversations with tools whose request needs none


@dataclass(frozen=True)
class Mixture:
    """Draws texts of every kind from one side of the held-out split."""

    pools: Pools
    stories: list[Story]
    harder: list[Story]
    held_out: bool = False
    shares: dict[str, tuple[float, int]] = field(default_factory=lambda: dict(SHARES))

    @classmethod
    def load(cls, corpus: Path | None, held_out: bool = False, task: str = "demo") -> "Mixture":
        """Read the pools and stories; `corpus` None means generated text alone.

        `task` is a key of `TASKS`; it decides the shares.

        Raises:
            ValueError: the folder `corpus` has none of the files that are read.
        """
        names = (WORD_LISTS, SIMPLE_STORIES, PICTURE_BOOKS)
        if corpus is not None and not any((corpus / name).exists() for name in names):
            raise ValueError(f"{corpus} has none of {', '.join(names)}")
        pools = load_pools(corpus, held_out)
        stories = [] if corpus is None else read_simple_stories(corpus, held_out)
        harder = [] if corpus is None else read_picture_books(corpus, held_out)
        return cls(pools, stories, harder, held_out, dict(TASKS[task]))

    def with_pieces(self, tokenizer: PreTrainedTokenizerFast) -> "Mixture":
        """Return a mixture whose made-up words use every word-like token of the tokenizer."""
        tokens = (str(tokenizer.decode([token_id])) for token_id in range(len(tokenizer)))
        pieces = tuple(sorted({token for token in tokens if token.isalpha()}))
        return replace(self, pools=replace(self.pools, pieces=pieces))

    def draw(self, rng: random.Random, kind: str | None = None) -> Conversation:
        """Return one text, of `kind` (one of `KINDS`) or of a kind drawn by its share."""
        if kind is None:
            frequency = [share / length for share, length in self.shares.values()]
            kind = rng.choices(list(self.shares), frequency)[0]
        if kind == "extraction":
            return make_extraction(rng, self.pools, self.held_out)
        if kind == "story":
            return make_story(rng, self.stories, self.harder)
        if kind == "record":
            return make_record_task(rng, self.pools)
        if kind == "code":
            return make_code(rng, self.pools)
        if kind == "short":
            return make_short_task(rng, self.pools)
        if kind == "date":
            return make_date_task(rng)
        if kind == "refusal":
            return make_refusal(rng, self.pools)
        if kind == CONCEPTS:
            return make_concept_task(rng, self.held_out)
        return self._draw_with_tools(rng)

    def _draw_with_tools(self, rng: random.Random) -> Conversation:
        if rng.random() >= _UNNEEDED_TOOLS:
            return make_tool_call(rng, self.pools)
        kind = rng.choice(("extraction", "code", "short"))
        return make_unneeded_tools(rng, self.pools, self.draw(rng, kind))

    def draw_chat(self, rng: random.Random) -> Conversation:
        """Return one text as trained on: now and then after an earlier exchange."""
        chat = self.draw(rng)
        if chat.turns[0][0] == "user" and rng.random() < _SECOND_TURN:
            earlier = self.draw(rng, rng.choice(("extraction", "code", "short")))
            return Conversation(earlier.turns + chat.turns)
        return chat


def encode(
    tokenizer: PreTrainedTokenizerFast, chats: list[Conversation]
) -> list[tuple[list[int], list[float]]]:
    """Return (token ids, loss weights) of each conversation."""
    segments = [segment for chat in chats for segment in chat.segments()]
    encodings = tokenizer.backend_tokenizer.encode_batch([text for text, _ in segments])
    rows = []
    position = 0
    for chat in chats:
        ids: list[int] = []
        weights: list[float] = []
        for _, is_reply in chat.segments():
            piece = encodings[position].ids
            position += 1
            ids.extend(piece)
            weights.extend([1.0 if is_reply else PROMPT_WEIGHT] * len(piece))
        rows.append((ids, weights))
    return rows


def shape_of_step(step: int, tokens: int) -> tuple[int, int]:
    """Return (rows, length): mostly 512 long, with some shorter and some longer rows."""
    length = (512, 256, 512, 512, 1024, 512, 256, 512, 256, 512)[step % 10]
    length = min(length, tokens)
    return tokens // length, length


def make_batch(
    mixture: Mixture, tokenizer: PreTrainedTokenizerFast, seed: int, step: int, tokens: int
) -> Batch:
    """Return the rows of one step.

    Args:
        mixture: where texts come from.
        tokenizer: the pair's tokenizer.
        seed: the run's seed.
        step: number of the step; with the seed it fixes the batch.
        tokens: tokens of the whole batch.
    """
    rng = random.Random(f"{seed}:{step}")
    rows, length = shape_of_step(step, tokens)
    all_ids: list[list[int]] = []
    all_weights: list[list[float]] = []
    waiting: list[tuple[list[int], list[float]]] = []
    for _ in range(rows):
        ids: list[int] = []
        weights: list[float] = []
        while len(ids) < length:
            if not waiting:
                waiting = encode(tokenizer, [mixture.draw_chat(rng) for _ in range(16)])
            more_ids, more_weights = waiting.pop()
            ids.extend(more_ids)
            weights.extend(more_weights)
        all_ids.append(ids[:length])
        all_weights.append(weights[:length])
    return Batch(torch.tensor(all_ids), torch.tensor(all_weights))
