"""Keys of one client, and a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest
import pytest_asyncio

from deployments.api.keys import ApiKeys
from tests.deployments.api.asking import KEY
from tests.harness.browser.chromium import BrowserPage, browser_page, chromium_path


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeys:
    """A file with the key `KEY` alone."""
    path = tmp_path / "keys"
    path.write_text(f"me {sha256(KEY.encode()).hexdigest()}\n")
    return ApiKeys(path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[BrowserPage]:
    """A page of a headless Chromium, for all tests of a module."""
    chromium_path()
    async with browser_page() as page:
        yield page
