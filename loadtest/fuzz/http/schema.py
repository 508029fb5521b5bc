"""Part `schema`: what GET /openapi.json promises, held against a real server by schemathesis.

Bodies that obey the page and bodies that break it come from schemathesis' generators. No answer may
be a server error or missing on the page. No body that breaks the page may be served. Bodies that
obey the page need not be served. Some rules cannot be said in a schema, as the page itself tells.
"""

from __future__ import annotations

import asyncio
import random
import warnings
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode, checks

from loadtest.fuzz.cases import Outcome, RunCase
from loadtest.fuzz.http.world import http_world, listening

_NUM_EXAMPLES = 15
_TOO_LONG = 413
_LIMIT_S = 30.0  # limit of one request
_PATHS = ("/v1/chat/completions", "/v1/completions")
_ALWAYS = ("not_a_server_error", "status_code_conformance", "content_type_conformance")
_OF_WHOLE_ANSWERS = "response_schema_conformance"  # events have no schema in OpenAPI 3.1
_OF_BROKEN_BODIES = "negative_data_rejection"


@asynccontextmanager
async def open_schema() -> AsyncIterator[RunCase]:
    """Yield the part, ready to run cases."""
    async with http_world() as world, listening(world) as url:
        page = await asyncio.to_thread(schemathesis.openapi.from_url, f"{url}/openapi.json")

        async def run(case_seed: int) -> Outcome:
            outcome = await asyncio.to_thread(_case, page, case_seed)
            outcome.complaints += await world.left()
            return outcome

        yield run


def _case(page: Any, case_seed: int) -> Outcome:
    rng = random.Random(case_seed)
    operation = page[rng.choice(_PATHS)]["POST"]
    mode = rng.choice((GenerationMode.POSITIVE, GenerationMode.NEGATIVE))
    counts: Counter[str] = Counter(cases=1)

    @seed(case_seed)
    @settings(
        max_examples=_NUM_EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def try_bodies(case: Any) -> None:
        response = case.call(timeout=_LIMIT_S)
        counts["requests"] += 1
        counts[f"{mode.value} status {response.status_code}"] += 1
        names = [*_ALWAYS]
        if not response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
            names.append(_OF_WHOLE_ANSWERS)
        # Too long a body is refused unread, which schemathesis does not count as a refusal.
        if mode is GenerationMode.NEGATIVE and response.status_code != _TOO_LONG:
            names.append(_OF_BROKEN_BODIES)
        case.validate_response(response, checks=checks.CHECKS.get_by_names(names))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hypothesis on its own settings, urllib3 on bodies
            try_bodies()
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - failures, groups of them, time-outs: all findings
        return Outcome(counts, [f"{operation.method} {operation.path}: {error}"[:1000]])
    return Outcome(counts)
