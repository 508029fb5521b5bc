"""The openai client's script of `loadtest.clients`, from here, against the demo pair over HTTP."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from loadtest.clients.catalog import CLIENTS
from loadtest.clients.run_client import run_client
from tests.harness.served_demo import demo_over_http

NAME = "openai"


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_openais_own_client_finds_all_it_wants() -> None:
    pytest.importorskip(NAME, reason="the openai package is not installed")
    client = next(client for client in CLIENTS if client.name == NAME)
    async with demo_over_http() as target:
        bin_folder = Path(sys.executable).parent
        result = await asyncio.to_thread(run_client, client, bin_folder, target)
    assert result.failures == []
    assert result.lacking == []
    assert len(result.checks) > 15
