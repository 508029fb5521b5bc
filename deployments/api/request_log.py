"""One log line per request: how it ended and what it took, whatever became of it.

A line has the request's id (`x-request-id`, given or made) and the ids of its sessions, which the
engines know. It has the name of the client's API key. It has no text of the client. A client's
error has code, field and status, but not the message, which may quote the request.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.types import Scope

from deployments.api.choices import finished_together
from deployments.api.keys import Tenant, tenant_in
from deployments.api.observer import CLIENT_GONE, Sink
from models.grammar.schema.parse import KEYWORDS
from models.protocol.errors import ConstraintViolation, ServingError
from models.protocol.grammars import Loosened
from router.types import Finished, GenerationRequest

logger = logging.getLogger(__name__)

_MAX_LOOSENED = 16  # parts of schemas that a line names
# A field's path as we name fields; a name made up by the client may be anything.
_SAFE_PARAM = re.compile(r"[A-Za-z0-9_.\[\]]{1,64}")


class RequestRecord(Sink):
    """The record of one HTTP request, and the sink of its choices' observers.

    Args:
        request_id: its `x-request-id`.
        scope: ASGI's; has the path, and later the client's name.
    """

    def __init__(self, request_id: str, scope: Scope) -> None:
        self.request_id = request_id
        self._scope = scope
        self._headers: list[tuple[bytes, bytes]] = scope.get("headers", [])
        self._began_s = time.perf_counter()
        self._first_token_s: float | None = None
        self._asked: dict[str, Any] = {}
        self._num_choices = 0
        self._num_prompts = 1
        self._ends: dict[int, Finished] = {}  # by choice
        self._error: tuple[Exception, int] | None = None
        self._is_client_gone = False

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the HTTP request, names in lower case."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers}

    def start(
        self,
        model: str,
        requests: Sequence[GenerationRequest],
        *,
        is_stream: bool,
        num_prompts: int = 1,
    ) -> None:
        """Note that the request is understood and that its choices are about to run."""
        self._num_choices = len(requests)
        self._num_prompts = num_prompts
        prompts = requests[:: len(requests) // num_prompts]
        self._asked = {
            "model": model,
            "session_ids": [request.request_id for request in requests],
            "prompt_tokens": sum(len(request.prompt_ids) for request in prompts),
            "stream": is_stream,
        }

    def first_tokens(self, choice: int, num_tokens: int, after_s: float) -> None:
        """See `Sink.first_tokens`. The line says when the first choice had tokens."""
        if self._first_token_s is None:
            self._first_token_s = time.perf_counter()

    def finished(self, choice: int, end: Finished, after_s: float) -> None:
        """See `Sink.finished`."""
        self._ends[choice] = end

    def fail(self, error: Exception, status: int) -> None:
        """Note that the client is answered with an error of this status."""
        self._error = (error, status)

    def leave(self) -> None:
        """Note that the client went away before there was an answer."""
        self._is_client_gone = True

    def write(self) -> None:
        """Write the line, if there is something to say. Call once, when all is over."""
        if self._error is not None:
            self._write_error(*self._error)
        elif self._num_choices and len(self._ends) == self._num_choices:
            ends = [self._ends[index] for index in range(self._num_choices)]
            self._write_finished(finished_together(ends, self._num_prompts))
        elif self._num_choices or self._is_client_gone:
            fields = {"finish_reason": CLIENT_GONE}
            logger.info(
                "request %s: client went away after %.2f s",
                self.request_id,
                self._age_s,
                extra=self._fields(fields),
            )

    @property
    def tenant(self) -> Tenant:
        """The client whose request it is."""
        return tenant_in(self._scope)

    @property
    def _age_s(self) -> float:
        return time.perf_counter() - self._began_s

    def _fields(self, more: dict[str, Any]) -> dict[str, Any]:
        first_s = self._first_token_s
        return {
            "request_id": self.request_id,
            "path": self._scope["path"],
            "client": self.tenant.name or None,
            **self._asked,
            "ttft_s": None if first_s is None else round(first_s - self._began_s, 4),
            "duration_s": round(self._age_s, 4),
            **more,
        }

    def _write_finished(self, end: Finished) -> None:
        stats = end.speculation
        mean_k = stats.num_draft_tokens / stats.num_rounds if stats.num_rounds else 0.0
        fields: dict[str, Any] = {
            "finish_reason": end.finish_reason,
            "completion_tokens": end.num_completion_tokens,
            "cached_tokens": end.num_cached_tokens,
            "num_rounds": stats.num_rounds,
            "mean_k": round(mean_k, 3),  # tokens drafted per round, plain ones included
            "acceptance_rate": round(stats.draft_acceptance_rate, 3),
            "status": 200,
            **_named(end.replicas),
        }
        if end.loosened:  # names of fields and keywords are no text of the client
            fields["loosened"] = [_loosened_part(one) for one in end.loosened[:_MAX_LOOSENED]]
        logger.info(
            "request %s finished (%s): %d + %d tokens in %.2f s, k %.2f, accepted %.2f%s",
            self.request_id,
            end.finish_reason,
            end.num_prompt_tokens,
            end.num_completion_tokens,
            self._age_s,
            mean_k,
            stats.draft_acceptance_rate,
            "".join(f", {part} {name}" for part, name in end.replicas.items()),
            extra=self._fields(fields),
        )

    def _write_error(self, error: Exception, status: int) -> None:
        code = error.code if isinstance(error, ServingError) else "internal_error"
        param = error.param if isinstance(error, ServingError) else None
        if param is not None and _SAFE_PARAM.fullmatch(param) is None:
            param = None
        fields: dict[str, Any] = {"status": status, "code": code, "param": param}
        fields |= _named(getattr(error, "replicas", {}))
        if status >= 500:  # a fault of ours, whose message quotes no client
            # But what broke a grammar is the completion's own text.
            message = "" if isinstance(error, ConstraintViolation) else f": {error}"
            fields["reason"] = f"{type(error).__name__}{message}"
            cause = None if isinstance(error, ServingError) else error
            logger.error(
                "request %s failed (%d %s): %s",
                *(self.request_id, status, code, fields["reason"]),
                exc_info=cause,
                extra=self._fields(fields),
            )
            return
        level = logging.WARNING if status == 429 else logging.INFO
        logger.log(
            level,
            "request %s refused (%d %s)",
            *(self.request_id, status, code),
            extra=self._fields(fields),
        )


def _named(replicas: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a line that name the replicas which served it, by part."""
    return {f"{part}_replica": name for part, name in replicas.items()}


def _loosened_part(part: Loosened) -> str:
    """Show a part of a schema that was not enforced: the request's field and the keyword."""
    keyword = str(part.steps[-1]) if part.steps else "schema"
    return f"{part.field} {keyword if keyword in KEYWORDS else 'subschema'}"
