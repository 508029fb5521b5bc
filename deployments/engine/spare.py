"""A spare of the model that serves: loaded beside it, for nobody until that one is lost.

It takes over in the time that its sessions need to be computed again. To start a process, load the
weights and compute them takes ten times as long. Then another spare is loaded. The kind of
a model and the way to load it are handed in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from deployments.serve.metrics import Metric, counter, gauge
from models.backoff import Backoff

logger = logging.getLogger("ray.serve")

_AFTER_START_S = 5.0  # the rest of the service starts beside it, and has the machine first
_FIRST_PAUSE_S = 1.0  # after a spare that could not be had or was lost; doubles up to:
_LONGEST_PAUSE_S = 300.0


class SpareModel(Protocol):
    """A loaded model."""

    @property
    def lost(self) -> str:
        """Why it is gone, where it is; else ""."""
        ...

    def end(self) -> None:
        """Free it. Idempotent."""
        ...


Model = TypeVar("Model", bound=SpareModel)


@dataclass(frozen=True, slots=True)
class SpareState:
    """The spare of a replica, in numbers."""

    is_ready: bool = False
    num_takeovers: int = 0


METRICS: tuple[Metric[SpareState], ...] = (
    gauge(
        "outrider:spare_ready",
        "1: a spare of the model is loaded and takes over if the model is lost",
        lambda state: state.is_ready,
    ),
    counter(
        "outrider:spare_takeovers",
        "Models that were lost and whose spare took over",
        lambda state: state.num_takeovers,
    ),
)


class Spare(Generic[Model]):
    """Keeps one model loaded beside another.

    Args:
        load: loads it; raises what is told as the reason.
        loading_errors: what `load` raises where it cannot be had.
        publish: called with each new state.
    """

    def __init__(
        self,
        load: Callable[[], Awaitable[Model]],
        loading_errors: tuple[type[Exception], ...],
        publish: Callable[[SpareState], None],
    ) -> None:
        self._load = load
        self._loading_errors = loading_errors
        self._publish_state = publish
        self._model: Model | None = None
        self._num_takeovers = 0
        self._is_missing = asyncio.Event()
        self._is_missing.set()
        self._task = asyncio.create_task(self._keep_one(), name="keep-spare")
        self._publish()

    @property
    def model(self) -> Model | None:
        """The spare; None while there is none."""
        return self._model

    def take(self) -> Model | None:
        """Return the spare, which serves from now on, if there is one; another one is loaded."""
        model, self._model = self._model, None
        if model is not None:
            self._num_takeovers += 1
            self._is_missing.set()
            self._publish()
        return model

    def note_loss(self, model: Model) -> None:
        """Note that a model is lost; if it was the spare, another one is loaded."""
        if model is self._model:
            self._model = None
            model.end()
            self._is_missing.set()
            self._publish()

    def end(self) -> None:
        """Load no more, and free the one there is. Idempotent."""
        self._task.cancel()
        if self._model is not None:
            self._model.end()

    async def _keep_one(self) -> None:
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        await asyncio.sleep(_AFTER_START_S)
        while True:
            await self._is_missing.wait()
            await asyncio.sleep(backoff.pause_s)
            backoff.note_failure()  # one that is lost soon counts as one that could not be had
            try:
                model = await self._load()
            except self._loading_errors as error:
                logger.error("spare: none can be had, tried again: %s", error)
                continue
            if model.lost:
                model.end()
                continue
            self._model = model
            self._is_missing.clear()
            self._publish()
            logger.info("spare: ready")

    def _publish(self) -> None:
        self._publish_state(SpareState(self._model is not None, self._num_takeovers))
