"""The playground behind Serve's proxy, under a `route_prefix`."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from loadtest.service.served import Served
from tests.harness.browser.chromium import CONTROL, browser_page
from tests.harness.deployed_demo import PREFIX, DeployedDemo

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def service(deployed: DeployedDemo) -> Served:
    return deployed.service


def test_the_prefix_leads_to_the_page_and_its_files(service: Served) -> None:
    with httpx.Client(base_url=service.base_url, timeout=30) as client:
        page = client.get("", follow_redirects=True)
        assert page.status_code == 200
        assert page.url.path == f"{PREFIX}/"
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert client.get("playground/app.js").headers["content-type"].startswith("text/javascript")
        assert client.get("playground/none.js").status_code == 404


async def test_a_prompt_is_answered_on_it(service: Served) -> None:
    async with browser_page() as page:
        await page.open(f"{service.base_url.rstrip('/')}/")
        await page.until("document.querySelector('#model-name').textContent.includes('tokens')")
        await page.fill("#max-tokens", "40")
        await page.press("Enter", CONTROL)
        await page.until("document.querySelector('#status').textContent.startsWith('Done')")
        assert page.problems == []
        shown = await page.text("#single .text")
        prompt = await page.run("document.querySelector('#prompt').value")
        body = {
            "model": "outrider-demo",
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": 40,
        }
        answer = await asyncio.to_thread(
            httpx.post, f"{service.base_url.rstrip('/')}/v1/chat/completions", json=body, timeout=60
        )
        assert answer.json()["choices"][0]["message"]["content"] == shown
