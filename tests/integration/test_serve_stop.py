"""Ctrl-C ends `serve run` cleanly. A module of its own: one Ray cluster at a time."""

from __future__ import annotations

import time

import pytest
from served_demo import served_demo

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]


def test_ctrl_c_ends_it_cleanly() -> None:
    with served_demo() as service:
        children = service.descendants("")
        assert service.stop() == 0
        assert "Traceback" not in service.log()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and any(child.is_running() for child in children):
            time.sleep(0.2)
        assert not [child for child in children if child.is_running()]
