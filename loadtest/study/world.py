"""Shared by all sections of a study: settings, prompts, and the models once they are loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from loadtest.frame.prompts import Prompt
from loadtest.study.engines import Ask, DraftModel, Engines, Models
from loadtest.study.settings import Settings
from models.text.tokenizer import Tokenizer

_BLOCK = 64  # tokens; lengths are rounded up to it
SHARED_TOKENS = 256  # the beginning that all prompts of the ablation share
MAX_MODEL_LEN = 2048


@dataclass(kw_only=True)
class World:
    """Loads the models when a section first asks for them; `stack` frees them.

    Raises:
        ValueError: a prompt is longer than what can be studied, or cannot be encoded.
    """

    settings: Settings
    target: Path
    drafts: Mapping[str, Path | None]
    prompts: Sequence[Prompt]
    stack: ExitStack
    longest_task: str | None = None  # the task with the longest answers, once that was looked for
    encoded: list[tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        """Encode the prompts, so that a wrong one is named before anything is measured."""
        tokenizer = Tokenizer.load(self.target)
        self.eos_ids = tuple(tokenizer.eos_ids)
        self.tokenizer = tokenizer
        self.encoded = [prompt.encode(tokenizer) for prompt in self.prompts]
        longest = max(map(len, self.encoded))
        if self._needed_len(longest) > MAX_MODEL_LEN:
            raise ValueError(
                f"the longest prompt has {longest} tokens, with its answer more than the "
                f"{MAX_MODEL_LEN} that a study has room for"
            )

    @property
    def tasks(self) -> list[str]:
        """The tasks in the order of the prompts."""
        return list(dict.fromkeys(prompt.task for prompt in self.prompts))

    @cached_property
    def engines(self) -> Engines:
        """Target and all drafts as they are, without a prefix cache."""
        return self.stack.enter_context(Engines(self.models))

    @property
    def models(self) -> Models:
        """The models that `engines` loads."""
        settings = self.settings
        return Models(
            target=self.target,
            drafts={
                label: None if path is None else DraftModel(path=path)
                for label, path in self.drafts.items()
            },
            dtype=settings.dtype,
            device=settings.device,
            threads=settings.threads,
            max_model_len=self._needed_len(max(map(len, self.encoded))),
            max_batch=max(settings.batch),
        )

    def asks(
        self, task: str | None = None, *, temperature: float | None = None, is_exact: bool = False
    ) -> list[Ask]:
        """Return the requests of a task, or of all tasks by turns, each with a seed of its own.

        If `is_exact` is set, no eos ends an answer.
        """
        settings = self.settings
        places = [i for i, prompt in enumerate(self.prompts) if task in (None, prompt.task)]
        if task is None:
            places = self._by_turns(places)
        return [
            Ask(
                prompt_ids=self.encoded[place],
                temperature=settings.temperature if temperature is None else temperature,
                seed=settings.seed + place,
                max_tokens=settings.tokens,
                eos_ids=() if is_exact else self.eos_ids,
            )
            for place in places
        ]

    def under_schemas(self) -> list[Ask]:
        """Return the requests whose prompt has a schema, held to it."""
        return [
            replace(ask, schema=prompt.schema)
            for prompt, ask in zip(self.prompts, self._in_order(), strict=True)
            if prompt.schema is not None
        ]

    def _in_order(self) -> list[Ask]:
        by_prompt = {ask.seed: ask for ask in self.asks()}
        return [by_prompt[self.settings.seed + place] for place in range(len(self.prompts))]

    def _by_turns(self, places: Sequence[int]) -> list[int]:
        """First prompts of all tasks, then second ones."""
        rank: dict[str, int] = {}
        keyed = []
        for place in places:
            task = self.prompts[place].task
            rank[task] = rank.get(task, -1) + 1
            keyed.append((rank[task], place))
        return [place for _, place in sorted(keyed)]

    def _needed_len(self, longest_prompt: int) -> int:
        settings = self.settings
        tokens = max(settings.tokens, *settings.lengths) + max(settings.k) + SHARED_TOKENS
        return -(-(longest_prompt + tokens) // _BLOCK) * _BLOCK
