"""What references of look-aheads build on, and decide nothing in: whole passes of transformers.

Of the service it shares the noise, which is part of what a seed means, the rewards, and the walk of
a grammar, which here begins at the text's start each time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from models.grammar.state import CompiledGrammar, GrammarState
from models.protocol.messages import MAX_DRAFT_TOKENS
from models.rewards.reward import Reward, Scored
from models.sampling.noise import (
    DOMAIN_DRAFT,
    DOMAIN_RESIDUAL,
    DOMAIN_TEST,
    DOMAIN_TOKEN,
    gumbel_noise,
    uniform,
)
from router.types import GenerationRequest, LookaheadSettings


class Models:
    """A target and a draft: logits of whole texts, each computed once."""

    def __init__(self, target: Path, draft: Path) -> None:
        self.target, self.draft = self._logits_of(target), self._logits_of(draft)

    @staticmethod
    def _logits_of(path: Path) -> Any:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

        @cache
        def logits(ids: tuple[int, ...]) -> torch.Tensor:  # [V] after the last id
            with torch.inference_mode():
                return model(torch.tensor([ids])).logits[0, -1]

        return logits


class Texts(ABC):
    """Answers requests one by one; `states` and counts are of the newest. `next` decides."""

    def __init__(self, models: Models, eos_ids: Sequence[int]) -> None:
        self._target, self._draft = models.target, models.draft
        self._eos_ids = eos_ids

    @abstractmethod
    def next(self) -> list[int]:
        """The tokens of one round behind `made`; notes its state in `states`."""

    def answer(
        self, request: GenerationRequest, reward: Reward, grammar: CompiledGrammar | None = None
    ) -> list[int]:
        self._request, self._reward, self._grammar = request, reward, grammar
        assert request.lookahead is not None
        self.settings: LookaheadSettings = request.lookahead
        self.states: Counter[str] = Counter()
        self.num_draft_steps = self.num_rollouts = 0
        self.made: list[int] = []
        while self.left > 0 and not self._is_over(self.made):
            if forced := self._forced():
                self.states["forced"] += 1
            self.made += (forced or self.next())[: self.left]
        self.final = self._score(self.made, is_end=True)
        return self.made

    @property
    def left(self) -> int:
        """How many tokens there is room for."""
        return self._request.max_tokens - len(self.made)

    def drafted(self) -> list[int]:
        """What the draft model writes behind the text."""
        draft: list[int] = []
        while len(draft) < min(self.settings.length, self.left) and not self._is_over(draft):
            logits = self._allowed(self._draft, draft)
            domain = DOMAIN_DRAFT if self._is_rejection() else DOMAIN_TOKEN
            draft.append(self._drawn(logits, draft, domain))
        self.num_draft_steps += len(draft)
        return draft

    def verified(self, draft: list[int]) -> list[int]:
        """The draft's tokens that stand, and the target's next."""
        for place, token in enumerate(draft):
            before = draft[:place]
            own = self._sampled(before, True)
            if self._is_rejection():
                heat = self._request.sampling.temperature
                p = (self._allowed(self._target, before) / heat).softmax(-1).double()
                q = (self._allowed(self._draft, before) / heat).softmax(-1).double()
                noise = uniform(self._seed(), len(self._ids(before)), DOMAIN_TEST)
                residual = (p - q).clamp(min=0).float().log()
                is_right = noise * q[token].item() < p[token].item()
                own = token if is_right else self._argmax(residual, before, DOMAIN_RESIDUAL)
            if own != token or own in self._eos_ids:
                return [*before, own]
        return [*draft, self._sampled(draft, True)]

    def candidates(self) -> list[tuple[int, float]]:
        """The likeliest next tokens that are allowed, with their log-probabilities."""
        likeliest = self._allowed(self._target, []).log_softmax(-1).topk(self.settings.candidates)
        found = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
        return [(token, logprob) for token, logprob in found if logprob > -torch.inf]

    def future(self, candidate: int) -> list[int]:
        """A candidate and what the target writes behind it."""
        future, settings = [candidate], self.settings
        while len(future) <= min(settings.length, self.left - 1) and not self._is_over(future):
            future.append(self._sampled(future, settings.rollout == "sampled", settings.seed))
        self.num_rollouts += 1
        return future

    def scored(self, future: list[int]) -> Scored:
        """What the reward says of the text with `future` behind it."""
        whole = [*self.made, *future]
        is_end = len(whole) >= self._request.max_tokens or self._is_over(future)
        return self._score(whole, is_end=is_end)

    def _is_rejection(self) -> bool:
        sampling = self._request.sampling
        return sampling.verification == "rejection" and sampling.temperature > 0

    def _sampled(self, after: list[int], by_request: bool, seed: int | None = None) -> int:
        logits = self._allowed(self._target, after)
        return self._drawn(logits, after, seed=seed) if by_request else int(logits.argmax())

    def _drawn(
        self,
        logits: torch.Tensor,
        after: list[int],
        domain: int = DOMAIN_TOKEN,
        seed: int | None = None,
    ) -> int:
        heat = self._request.sampling.temperature
        return self._argmax(logits / heat, after, domain, seed) if heat else int(logits.argmax())

    def _argmax(
        self, scores: torch.Tensor, after: list[int], domain: int, seed: int | None = None
    ) -> int:
        keys = [self._seed() if seed is None else seed], [len(self._ids(after))]
        noise = gumbel_noise(*keys, len(scores), torch.device("cpu"), domain)
        return int((scores + noise[0]).argmax())

    def _allowed(self, model: Any, after: list[int]) -> torch.Tensor:
        """Logits after the text and `after`, those that the grammar forbids at -inf."""
        logits: torch.Tensor = model(self._ids(after))
        if self._grammar is None:
            return logits
        row = self._walked([*self.made, *after]).row()
        bits = np.unpackbits(np.frombuffer(row, np.uint8), bitorder="little")
        return logits.masked_fill(torch.from_numpy(bits[: len(logits)] == 0), -torch.inf)

    def _forced(self) -> list[int]:
        if self._grammar is None:
            return []
        found = self._walked(self.made).forced(self.made[-1:], MAX_DRAFT_TOKENS)
        return found.tokens[: found.num_settled]

    def _walked(self, tokens: list[int]) -> GrammarState:
        assert self._grammar is not None, "there is no grammar"
        state = self._grammar.start()
        for token in tokens:
            assert state.advance(token), f"{tokens} breaks the grammar"
        return state

    def _seed(self) -> int:
        return self._request.sampling.seed

    def _ids(self, after: Sequence[int] = ()) -> tuple[int, ...]:
        return (*self._request.prompt_ids, *self.made, *after)

    def _is_over(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and tokens[-1] in self._eos_ids

    def _score(self, ids: list[int], *, is_end: bool) -> Scored:
        shown = ids[:-1] if self._is_over(ids) else ids
        return self._reward.score(self.settings.text_of(shown), "", is_end)
