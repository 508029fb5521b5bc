"""Charges clients for their tokens: a budget of tokens a minute, and counts by client.

A budget is a bucket that fills by `tokens_per_minute` and holds as much. Tokens are taken out as
they come, those of a prompt with the first of its answer. So a bucket may be overdrawn by what was
running when it became empty; nothing that runs is stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deployments.api.keys import Tenant
from deployments.api.observer import Sink
from deployments.serve.instruments import Meters
from models.protocol.errors import Overloaded
from router.types import GenerationRequest

_MAX_NAMED = 100  # clients with series of their own
_OTHERS = "other"


@dataclass(slots=True)
class _Bucket:
    """The tokens that a client may still have, at a time."""

    num_tokens: float
    at_s: float


class Charges:
    """The budgets of a router's clients, and what they used.

    Args:
        meters: where the counts go.
        clock: seconds, monotonic.
    """

    def __init__(self, meters: Meters, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = meters.counter(
            "outrider:client_tokens", "Tokens of prompts and answers, by client", ["client"]
        )
        self._refusals = meters.counter(
            "outrider:client_budget_refusals",
            "Requests refused because the client's tokens_per_minute were used up",
            ["client"],
        )
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._named: set[str] = set()

    def refuse_when_empty(self, tenant: Tenant) -> None:
        """Refuse a request of a client whose budget is used up.

        Raises:
            Overloaded: says when tokens are there again.
        """
        limit = tenant.tokens_per_minute
        if limit is None:
            return
        left = self._filled(tenant.name, limit).num_tokens
        if left > 0.0:
            return
        self._refusals.add(client=self._label(tenant.name))
        raise Overloaded(
            f"{tenant.name} has used its {limit} tokens a minute (tokens_per_minute of its key)",
            retry_after_s=(1.0 - left) * 60.0 / limit,
        )

    def of(self, tenant: Tenant, request: GenerationRequest) -> Sequence[Sink]:
        """Return the sinks that charge a client for a choice; none where no key is asked for."""
        num_read = len(request.prompt_ids) + len(request.known_ids)
        return (_Charging(self, tenant, num_read),) if tenant.name else ()

    def charge(self, tenant: Tenant, num_tokens: int) -> None:
        """Take tokens out of the client's budget, and count them."""
        self._tokens.add(num_tokens, client=self._label(tenant.name))
        if tenant.tokens_per_minute is not None:
            self._filled(tenant.name, tenant.tokens_per_minute).num_tokens -= num_tokens

    def _filled(self, name: str, limit: int) -> _Bucket:
        now_s = self._clock()
        bucket = self._buckets.setdefault(name, _Bucket(limit, now_s))
        more = (now_s - bucket.at_s) * limit / 60.0
        bucket.num_tokens, bucket.at_s = min(limit, bucket.num_tokens + more), now_s
        return bucket

    def _label(self, name: str) -> str:
        if name not in self._named and len(self._named) >= _MAX_NAMED:
            return _OTHERS
        self._named.add(name)
        return name


class _Charging(Sink):
    """Charges a client for one choice as its tokens come."""

    def __init__(self, charges: Charges, tenant: Tenant, num_read: int) -> None:
        self._charges = charges
        self._tenant = tenant
        self._num_read = num_read

    def first_tokens(self, choice: int, num_tokens: int, after_s: float) -> None:
        self._charges.charge(self._tenant, self._num_read + num_tokens)

    def more_tokens(self, choice: int, num_tokens: int, gap_s: float) -> None:
        self._charges.charge(self._tenant, num_tokens)
