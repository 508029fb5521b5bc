"""Checks that the service can answer: a real round through the target, not just an open socket.

The result is cached for a moment and concurrent callers share one probe. So many probes cost no
more than one. A full service is busy, not broken: restarting it would make matters worse. So a
probe that finds no place counts as healthy while other sessions get tokens.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import aclosing

from deployments.api.cached_value import CachedValue
from deployments.api.schemas.answers import HealthStatus
from models.protocol.errors import Overloaded, ServingError
from models.protocol.messages import Sampling
from models.text.tokenizer import Tokenizer
from router.types import Finished, GenerationRequest, Generator, SpeculationSettings

logger = logging.getLogger(__name__)


class HealthProbe:
    """Generates one token, and keeps for a second whether that worked.

    Args:
        generator: runs the probe's session.
        tokenizer: of the served model.
        model: its name.
        timeout_s: limit of one probe.
        last_progress_s: when (`time.monotonic`) other sessions last got something; None: unknown.
    """

    def __init__(
        self,
        generator: Generator,
        tokenizer: Tokenizer,
        model: str,
        *,
        timeout_s: float,
        last_progress_s: Callable[[], float] | None = None,
    ) -> None:
        self._generator = generator
        self._tokenizer = tokenizer
        self._model = model
        # Any token will do; a tokenizer may have nothing for a text, so ids are the last resort.
        self._prompt_ids = tuple(tokenizer.encode("Hello")) or (0,)
        self._timeout_s = timeout_s
        self._last_progress_s = last_progress_s
        self._health = CachedValue(self._measure)

    async def check(self) -> HealthStatus:
        """Return the answer of GET /health, at most a second old.

        It takes at most `timeout_s`, and the seconds that a session may take to close beyond that.
        It never raises.
        """
        return await self._health.get()

    async def _measure(self) -> HealthStatus:
        start = time.monotonic()
        is_healthy, reason = await self._probe()
        now = time.monotonic()
        if not is_healthy and self._has_progressed_since((start + now) / 2):
            is_healthy, reason = True, f"busy: {reason}; other sessions go on"
        return HealthStatus(
            status="ok" if is_healthy else "unavailable",
            model=self._model,
            reason=reason,
            round_ms=round((now - start) * 1e3, 3),
        )

    def _has_progressed_since(self, time_s: float) -> bool:
        return self._last_progress_s is not None and self._last_progress_s() > time_s

    async def _probe(self) -> tuple[bool, str]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._one_token()
        except TimeoutError:
            return False, f"no token within {self._timeout_s} s"
        except Overloaded as error:
            return True, f"busy: {error.message}"
        except ServingError as error:
            return False, error.message
        except Exception:
            logger.exception("health probe failed")
            return False, "internal error"

    async def _one_token(self) -> tuple[bool, str]:
        request = GenerationRequest(
            request_id=f"health-{uuid.uuid4().hex}",
            prompt_ids=self._prompt_ids,
            sampling=Sampling(temperature=0.0),
            eos_ids=self._tokenizer.eos_ids,
            max_tokens=1,
            ignore_eos=True,
            speculation=SpeculationSettings(enabled=False),
        )
        items = self._generator.generate(request, self._tokenizer.detokenizer())
        async with aclosing(items):
            async for item in items:
                if isinstance(item, Finished):
                    return True, "ok"
        return False, "the generation ended without an end"
