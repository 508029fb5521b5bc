"""Answers of one pair in this process, and what they cost and satisfy.

Counts are the same in every run of the same prompts and terms, whatever else the machine does. A
*pass* is one of the target, with everything in it. A *step* is the part of one session or roll-out
in it. Passes of one text follow each other. A step of CDLH has as many as its roll-outs have
tokens, however many roll-outs share them. An engine that has one text may have some more, where
roll-outs do not meet in a pass.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open

from deployments.llm import LLM, RequestOutput, SamplingParams
from loadtest.lookahead.tasks import Ask, Prompts
from loadtest.lookahead.terms import Terms
from models.rewards.registry import Rewards

_MAX_MODEL_LEN = 512
_MAX_SESSIONS = 64  # roll-outs count
_MAX_SLOWDOWN = 1.5  # slowdown of streams beside look-aheads, as a server has it


@dataclass(frozen=True)
class Pair:
    """A target and a draft model, and what tables call them."""

    label: str
    target: Path
    draft: Path

    @property
    def step_cost(self) -> float:
        """The cost of a draft step over a target pass, if both only read their weights."""
        return _num_bytes(self.draft) / _num_bytes(self.target)

    def described(self) -> dict[str, Any]:
        """Return the pair's columns in tables: its label, family and sizes."""
        config = json.loads((self.target / "config.json").read_text(encoding="utf-8"))
        return {
            "pair": self.label,
            "family": config["model_type"],
            "target_parameters": num_parameters(self.target),
            "draft_parameters": num_parameters(self.draft),
            "step_cost": self.step_cost,
        }


@dataclass(frozen=True, kw_only=True)
class Text:
    """One answer. `num_verified`: passes of the text itself, no roll-out's: they verified a draft,
    told what may follow, or went on plainly."""

    token_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    text: str
    soft: float
    hard: bool
    num_passes: float
    num_steps: int
    num_verified: int
    num_draft_steps: int
    num_reward_calls: int
    states: Counter[str]


@dataclass(frozen=True)
class Run:
    """All texts of one way."""

    texts: Sequence[Text]
    seconds: float

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all texts."""
        return sum(len(text.token_ids) for text in self.texts)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the whole run, prompts included."""
        return self.num_tokens / self.seconds

    def per_token(self, count: str) -> float:
        """Return a count of all texts over their tokens: `num_passes` and the like."""
        return float(sum(getattr(text, count) for text in self.texts)) / self.num_tokens

    def share(self, of: str) -> float:
        """Mean of `hard` or `soft`."""
        return sum(float(getattr(text, of)) for text in self.texts) / len(self.texts)

    @property
    def states(self) -> dict[str, int]:
        """The number of visits of each state."""
        total: Counter[str] = Counter()
        for text in self.texts:
            total += text.states
        return dict(total)


@contextmanager
def opened(pair: Pair, threads: int = 1) -> Iterator[Bench]:
    """Load a pair, and free it in the end; `threads` of torch."""
    with LLM(
        pair.target,
        pair.draft,
        num_threads=threads,
        max_model_len=_MAX_MODEL_LEN,
        max_num_seqs=_MAX_SESSIONS,
        router={"max_rollout_slowdown": _MAX_SLOWDOWN},
    ) as llm:
        yield Bench(pair, llm)


class Bench:
    """A pair that is loaded."""

    def __init__(self, pair: Pair, llm: LLM) -> None:
        self.pair = pair
        self._llm = llm
        self._rewards = Rewards()

    def answer(self, prompts: Prompts, terms: Terms) -> Run:
        """Answer all prompts."""
        asks, at_once = prompts.asks, prompts.at_once
        one = partial(self._answer, terms=terms, max_tokens=prompts.max_tokens)
        began_s = time.perf_counter()
        if at_once == 1:
            outputs = [one(place, ask) for place, ask in enumerate(asks)]
        else:
            with ThreadPoolExecutor(at_once) as threads:
                outputs = list(threads.map(one, range(len(asks)), asks))
        elapsed_s = time.perf_counter() - began_s
        texts = [self._text(ask, got, terms) for ask, got in zip(asks, outputs, strict=True)]
        return Run(texts, elapsed_s)

    def logprobs(self, texts: Sequence[Text]) -> list[float]:
        """Return the target's own mean log-probability per token of each text, after its prompt."""
        ids = [[*text.prompt_ids, *text.token_ids] for text in texts]
        outputs = self._llm.generate(
            ids, SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0), use_tqdm=False
        )
        return [_mean_logprob(got, text) for got, text in zip(outputs, texts, strict=True)]

    def stream(self, prompt: str, num_tokens: int) -> float:
        """Seconds of an ordinary answer of exactly so many tokens."""
        return stream_seconds(self._llm, prompt, num_tokens)

    def num_passes(self) -> int:
        """Return the number of the target's passes so far, for all texts."""
        return self._llm.loads()["target"].num_passes

    def _answer(self, place: int, ask: Ask, terms: Terms, max_tokens: int) -> RequestOutput:
        lookahead = terms.lookahead(ask.reward)
        fields: dict[str, Any] = {} if lookahead is None else {"lookahead": lookahead}
        params = SamplingParams(
            temperature=terms.temperature, seed=place, max_tokens=max_tokens, **fields
        )
        [output] = self._llm.chat(_chat(ask.prompt), params, use_tqdm=False)
        return output

    def _text(self, ask: Ask, output: RequestOutput, terms: Terms) -> Text:
        [answer] = output.outputs
        scored = self._rewards.make(ask.reward).score(answer.text, "", is_end=True)
        stats = answer.lookahead
        if stats is None:
            num_steps = num_verified = output.metrics.num_rounds
            num_draft_steps, num_calls, states = output.metrics.num_draft_tokens, 0, {}
        else:
            num_steps, states = stats.num_target_passes, dict(stats.states)
            num_verified = stats.num_verifications
            num_draft_steps, num_calls = stats.num_draft_steps, stats.num_reward_calls
        # Roll-outs of one step are side by side; one that ends early makes this a lower bound.
        in_a_row = num_verified + (num_steps - num_verified) / terms.candidates
        return Text(
            token_ids=tuple(answer.token_ids),
            prompt_ids=tuple(output.prompt_token_ids),
            text=answer.text,
            soft=scored.score,
            hard=scored.is_met,
            num_passes=in_a_row,
            num_steps=num_steps,
            num_verified=num_verified,
            num_draft_steps=num_draft_steps,
            num_reward_calls=num_calls,
            states=Counter(states),
        )


def stream_seconds(llm: LLM, prompt: str, num_tokens: int, **more: Any) -> float:
    """Seconds of an ordinary answer of exactly so many tokens; `more` fields of the request."""
    began_s = time.perf_counter()
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, **more)
    llm.chat(_chat(prompt), params, use_tqdm=False)
    return time.perf_counter() - began_s


def num_parameters(folder: Path) -> int:
    """Return the number of parameters of a checkpoint; shared tensors count once."""
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as tensors:
            names = tensors.keys()
            total += sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
    return total


def distinct(texts: Sequence[str], length: int) -> float:
    """Share of the n-grams of all texts, of so many words, that are different ones.

    Source: Li et al., arXiv 1510.03055 (distinct-n).
    """
    grams = [
        tuple(words[start : start + length])
        for words in (text.lower().split() for text in texts)
        for start in range(len(words) - length + 1)
    ]
    return len(set(grams)) / len(grams) if grams else 0.0


def _mean_logprob(output: RequestOutput, text: Text) -> float:
    assert output.prompt_logprobs is not None, "prompt_logprobs were asked for"
    own = output.prompt_logprobs[len(text.prompt_ids) :]
    found = [
        entry[token].logprob
        for entry, token in zip(own, text.token_ids, strict=True)
        if entry is not None
    ]
    return sum(found) / len(found)


def _chat(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def _num_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
