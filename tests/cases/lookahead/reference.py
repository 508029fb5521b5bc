"""CDLH and CDSL as their papers have them: one session, no engine, whole passes of transformers.

What the service decides must be what this decides. Of the service it shares the noise, which is
part of what a seed means, the rewards, and the walk of a grammar, which here begins at the text's
start each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from models.grammar.compiler import CompiledGrammar, GrammarState
from models.protocol.messages import MAX_DRAFT_TOKENS
from models.rewards.reward import Reward
from models.sampling.noise import (
    DOMAIN_DRAFT,
    DOMAIN_RESIDUAL,
    DOMAIN_TEST,
    DOMAIN_TOKEN,
    gumbel_noise,
    uniform,
)
from router.types import GenerationRequest, LookaheadSettings


class Reference:
    """Answers requests one by one; `states` and counts are of the newest."""

    def __init__(self, target: Path, draft: Path, eos_ids: Sequence[int]) -> None:
        self._target, self._draft = self._logits_of(target), self._logits_of(draft)
        self._eos_ids = eos_ids

    @staticmethod
    def _logits_of(path: Path) -> Any:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

        @cache
        def logits(ids: tuple[int, ...]) -> torch.Tensor:  # [V] after the last id
            with torch.inference_mode():
                return model(torch.tensor([ids])).logits[0, -1]

        return logits

    def answer(
        self, request: GenerationRequest, reward: Reward, grammar: CompiledGrammar | None = None
    ) -> list[int]:
        self._request, self._reward, self._grammar = request, reward, grammar
        assert request.lookahead is not None
        self._settings: LookaheadSettings = request.lookahead
        self.states: Counter[str] = Counter()
        self.num_draft_steps = self.num_rollouts = 0
        self._made: list[int] = []
        while len(self._made) < request.max_tokens and not self._is_over(self._made):
            self._made += self._next()[: request.max_tokens - len(self._made)]
        self.final = self._score(self._made, is_end=True)
        return self._made

    def _next(self) -> list[int]:
        if forced := self._forced():
            self.states["forced"] += 1
            return forced
        if self._settings.method == "cdlh":
            self.states["lookahead"] += 1
            return self._look_ahead()
        draft = self._drafted()
        stands = self._verified(draft)
        state = self._state(draft, stands)
        self.states[state] += 1
        if state == "accepted":
            stands = stands[: self._request.max_tokens - len(self._made)]
            is_gain = 0.0 < self._value(stands) < self._settings.reward_threshold
            return self._gain(stands) if is_gain and self._settings.commit == "gain" else stands
        return stands[:1] if self._settings.generation == "plain" else self._look_ahead()

    def _state(self, draft: list[int], stands: list[int]) -> str:
        num_right = len(stands) - 1 + (stands[-1:] == draft[len(stands) - 1 : len(stands)])
        if num_right / len(draft) < self._settings.accept_threshold:
            return "low_acceptance"
        left = self._request.max_tokens - len(self._made)
        before, scored = self._scored([]), self._scored(stands[:left])
        is_enough = scored.score >= self._settings.reward_threshold or scored.score > before.score
        if not scored.can_be_met:
            is_enough = not before.can_be_met
        return "accepted" if is_enough else "low_reward"

    def _look_ahead(self) -> list[int]:
        settings = self._settings
        scores = self._allowed(self._target, []).log_softmax(-1)
        best, best_worth = [-1], -torch.inf
        likeliest = scores.topk(settings.candidates)
        candidates = likeliest.indices[likeliest.values > -torch.inf].tolist()
        if len(candidates) == 1 < settings.candidates:
            return list(candidates)
        for token in candidates:
            future = [token]
            left = self._request.max_tokens - len(self._made) - 1
            while len(future) <= min(settings.length, left) and not self._is_over(future):
                future.append(self._sampled(future, settings.rollout == "sampled", settings.seed))
            self.num_rollouts += 1
            worth = scores[token].item() + settings.reward_weight * self._value(future)
            if worth > best_worth:
                best, best_worth = future, worth
        if settings.commit == "gain":
            return self._gain(best)
        return best if settings.commit == "rollout" else best[:1]

    def _gain(self, future: list[int]) -> list[int]:
        if self._value(future) <= self._value([]):
            return future[:1]
        whole = self._value(future)
        return next(
            future[:length]
            for length in range(1, len(future) + 1)
            if self._value(future[:length]) >= whole
        )

    def _drafted(self) -> list[int]:
        draft: list[int] = []
        left = self._request.max_tokens - len(self._made)
        while len(draft) < min(self._settings.length, left) and not self._is_over(draft):
            logits = self._allowed(self._draft, draft)
            domain = DOMAIN_DRAFT if self._is_rejection() else DOMAIN_TOKEN
            draft.append(self._drawn(logits, draft, domain))
        self.num_draft_steps += len(draft)
        return draft

    def _verified(self, draft: list[int]) -> list[int]:
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
        row = self._walked([*self._made, *after]).row()
        bits = np.unpackbits(np.frombuffer(row, np.uint8), bitorder="little")
        return logits.masked_fill(torch.from_numpy(bits[: len(logits)] == 0), -torch.inf)

    def _forced(self) -> list[int]:
        if self._grammar is None:
            return []
        found = self._walked(self._made).forced(self._made[-1:], MAX_DRAFT_TOKENS)
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
        return (*self._request.prompt_ids, *self._made, *after)

    def _is_over(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and tokens[-1] in self._eos_ids

    def _value(self, future: list[int]) -> float:
        scored = self._scored(future)
        return scored.score if scored.can_be_met else 0.0

    def _scored(self, future: list[int]) -> Any:
        whole = [*self._made, *future]
        is_end = len(whole) >= self._request.max_tokens or self._is_over(future)
        return self._score(whole, is_end=is_end)

    def _score(self, ids: list[int], *, is_end: bool) -> Any:
        shown = ids[:-1] if self._is_over(ids) else ids
        return self._reward.score(self._settings.text_of(shown), "", is_end)
