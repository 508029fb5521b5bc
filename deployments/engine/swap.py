"""Another draft model takes over in a replica that serves: loaded beside the old one, compared.

    loading     the new model is loaded beside the old one and asked for a draft; the old one serves
    comparing   texts of sessions that end are replayed on both, as many as was asked for
    promoted    the new one serves sessions that begin; the old one those it has, then it is freed
    dropped     the new one said less of these texts, or could not be had; the old one serves

A session has one model from its lease to its end, so nothing changes under a stream. No text
depends on the draft under shared noise. The kind of a model, and the way to load it, are handed in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from deployments.config.live_draft import WantedDraft
from models.engine.drafting.ended_texts import EndedText
from models.protocol.errors import InternalError, ServingError
from models.protocol.messages import Sampling
from models.protocol.token_sequence import TokenSequence
from router.comparing import ReplayCounts
from router.limits import SessionLimits
from router.ports import EnginePool
from router.remote.engine import EngineClient, OpenTemplate
from router.remote.replay import replay

logger = logging.getLogger("ray.serve")

SwapPhase = Literal["none", "loading", "comparing", "promoted", "dropped"]
PHASES: tuple[SwapPhase, ...] = ("loading", "comparing", "promoted", "dropped")

_LOOK_PERIOD_S = 0.5  # at texts that have ended
_LIMITS = SessionLimits()  # limits of a replay's waits: nobody waits for its answer
_CHECK_IDS = (1, 2, 3, 4)  # a text that every vocabulary has
_CHECK_PROMPT = 2


class DraftModel(Protocol):
    """A loaded draft model and those it drafts for."""

    @property
    def path(self) -> str:
        """Its folder."""
        ...

    @property
    def pool(self) -> EnginePool:
        """The pool that leases it for a replay."""
        ...

    @property
    def lost(self) -> str:
        """Why it is gone, where it is; else ""."""
        ...

    async def emptied(self) -> None:
        """Return when no session holds a lease on it, or it is lost."""
        ...

    async def keep_texts(self, *, is_on: bool) -> None:
        """Keep texts of sessions that end, or forget them."""
        ...

    async def take_texts(self) -> list[EndedText]:
        """Return the texts that have come since the last call."""
        ...

    def end(self) -> None:
        """Free it. Idempotent."""
        ...


Model = TypeVar("Model", bound=DraftModel)


@dataclass(slots=True)
class SwapState:
    """The phase of a swap, and the counts of both models on the same texts."""

    phase: SwapPhase = "none"
    old: ReplayCounts = field(default_factory=ReplayCounts)
    new: ReplayCounts = field(default_factory=ReplayCounts)


class _Dropped(Exception):
    """The new model is not taken; with the reason."""


class DraftSwap(Generic[Model]):
    """The draft model that serves, and the one that may take its place.

    Args:
        first: serves until another does.
        load: loads a model beside those that there are; raises what is told as the reason.
        loading_errors: what `load` raises where a model cannot be had.
        on_promoted: called when another serves, before a session begins on it.

    Attributes:
        serving: drafts for sessions that begin.
        state: of the newest swap.
    """

    def __init__(
        self,
        first: Model,
        load: Callable[[WantedDraft], Awaitable[Model]],
        loading_errors: tuple[type[Exception], ...],
        on_promoted: Callable[[], None] = lambda: None,
    ) -> None:
        self.serving = first
        self.state = SwapState()
        self._load = load
        errors: tuple[type[Exception], ...] = (*loading_errors, ServingError, _Dropped)
        self._errors = errors
        self._on_promoted = on_promoted
        self._leaving: Model | None = None
        self._coming: Model | None = None
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()  # of the one task that works
        self._retiring: asyncio.Task[None] | None = None

    @property
    def models(self) -> list[Model]:
        """All that are loaded."""
        found = (self.serving, self._leaving, self._coming)
        return [model for model in found if model is not None]

    def want(self, wanted: WantedDraft) -> None:
        """Have this model serve, if it does not; what is under way for another one ends."""
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._swap(wanted), name="draft-swap")

    async def _swap(self, wanted: WantedDraft) -> None:
        async with self._turn:  # all that were given up have come to their end
            if wanted.model.model_path == self.serving.path:
                return
            self.state = SwapState()
            try:
                await self._take_in(wanted)
            except self._errors as error:
                self._drop(str(error) or type(error).__name__)
            except BaseException:  # given up, or a fault of our own: nothing may stay
                self._drop("it is given up")
                raise

    async def _take_in(self, wanted: WantedDraft) -> None:
        path = wanted.model.model_path
        self._enter("loading", f"{path} beside {self.serving.path}")
        if self._retiring is not None:  # never three models in memory
            await asyncio.wait([self._retiring])
        self._coming = coming = await self._load(wanted)
        await _check_answers(coming)
        if wanted.promote == "better":
            self._enter("comparing", f"{path}, on {wanted.compare_answers} answers")
            await self._compare_in_time(coming, wanted)
        if coming.lost:
            raise _Dropped(coming.lost)
        self._promote(coming)

    async def _compare_in_time(self, coming: Model, wanted: WantedDraft) -> None:
        try:
            async with asyncio.timeout(wanted.compare_timeout_s) as limit:
                await self._compare(coming, wanted.compare_answers)
        except TimeoutError:
            if not limit.expired():
                raise
            raise _Dropped(
                f"{self.state.new.num_answers} of {wanted.compare_answers} answers were compared "
                f"in compare_timeout_s, {wanted.compare_timeout_s:g} s"
            ) from None

    async def _compare(self, coming: Model, num_answers: int) -> None:
        """Replay texts that end on both.

        Raises:
            _Dropped: the new model said fewer of their tokens, or is lost.
        """
        old, new = self.state.old, self.state.new
        await self.serving.keep_texts(is_on=True)
        try:
            while new.num_answers < num_answers:
                if coming.lost:
                    raise _Dropped(coming.lost)
                for text in await self.serving.take_texts():
                    await self._replay(text, coming)
                await asyncio.sleep(_LOOK_PERIOD_S)
        finally:
            with contextlib.suppress(*self._errors):
                await self.serving.keep_texts(is_on=False)
        if new.num_matched < old.num_matched:
            raise _Dropped(f"it is worse: {self._said()}")

    async def _replay(self, text: EndedText, coming: Model) -> None:
        """Count a text on both models, or on neither: one may not be able to read it."""
        name = f"swap-{self.state.new.num_answers}"
        try:
            found = [
                await replay(
                    _client(model, text, f"{name}-{text.opened.session_id}"),
                    TokenSequence(text.token_ids),
                    text.opened.prompt_len,
                    _LIMITS,
                )
                for model in (self.serving, coming)
            ]
        except ServingError as error:
            logger.info("draft swap: a text is left out: %s", error)
            return
        for counts, one in zip((self.state.old, self.state.new), found, strict=True):
            counts.add(one)

    def _promote(self, coming: Model) -> None:
        leaving, self.serving, self._coming = self.serving, coming, None
        self._leaving = leaving
        self._on_promoted()
        self._enter("promoted", f"{coming.path} for {leaving.path}, {self._said()}")
        self._retiring = asyncio.create_task(self._retire(leaving), name="draft-retire")

    async def _retire(self, leaving: Model) -> None:
        await leaving.emptied()
        leaving.end()
        self._leaving = None
        logger.info("draft swap: %s is freed", leaving.path)

    def _drop(self, reason: str) -> None:
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.end()
        self.state.phase = "dropped"
        logger.error("draft swap: dropped, %s serves on: %s", self.serving.path, reason)

    def _enter(self, phase: SwapPhase, what: str) -> None:
        self.state.phase = phase
        logger.info("draft swap: %s: %s", phase, what)

    def _said(self) -> str:
        old, new = self.state.old, self.state.new
        if new.num_tokens == 0:
            return "compared on nothing"
        return (
            f"of {new.num_tokens} tokens in {new.num_answers} answers the new model says "
            f"{new.num_matched}, the old one {old.num_matched}"
        )


async def _check_answers(model: DraftModel) -> None:
    """See that a model drafts at all.

    Raises:
        ServingError: it does not.
    """
    opened = OpenTemplate(
        session_id="swap-check",
        sampling=Sampling(temperature=0.0),
        eos_ids=(),
        prompt_len=_CHECK_PROMPT,
    )
    client = EngineClient(model.pool, opened, _LIMITS)
    found = await replay(client, TokenSequence(_CHECK_IDS), _CHECK_PROMPT, _LIMITS)
    if len(found.matches) != len(_CHECK_IDS) - _CHECK_PROMPT:
        raise InternalError(f"{model.path} drafts nothing")


def _client(model: DraftModel, text: EndedText, session_id: str) -> EngineClient:
    opened = text.opened
    template = OpenTemplate(
        session_id=session_id,
        sampling=opened.sampling,
        eos_ids=tuple(opened.eos_ids),
        prompt_len=opened.prompt_len,
        cache_salt=opened.cache_salt,
    )
    return EngineClient(model.pool, template, _LIMITS)
