"""Answers of the routes for operators: health, liveness, version."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class HealthStatus(BaseModel):
    """Answer of GET /health and /readyz; 503 with `unavailable`."""

    status: Literal["ok", "unavailable"]
    model: str
    reason: str  # for people
    round_ms: float  # the probe, milliseconds


class LiveStatus(BaseModel):
    """Answer of GET /livez."""

    status: Literal["ok"] = "ok"


class VersionStatus(BaseModel):
    """Answer of GET /version."""

    version: str
