"""Errors that a call to a replica may raise, and a line that describes each."""

from __future__ import annotations

import grpc
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

# Serve's calls go through Ray's actors or, with RAY_SERVE_THROUGHPUT_OPTIMIZED, through gRPC, of
# whose errors Serve translates but one, UNAVAILABLE.
CALL_ERRORS = (RayError, RayServeException, grpc.RpcError)


def first_line(error: BaseException) -> str:
    """Return the cause in one line.

    Ray's texts carry whole remote tracebacks.
    """
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {' '.join((error.details() or '').split())}"
    inner = getattr(error, "cause", None)
    cause = inner if isinstance(inner, Exception) else error
    lines = str(cause).strip().splitlines() or [""]
    return f"{type(cause).__name__}: {lines[0]}"
