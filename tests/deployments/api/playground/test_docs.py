"""The page at /docs: what it shows is behind the key."""

from __future__ import annotations

from tests.deployments.api.asking import KEY
from tests.fakes.http import ScriptedGenerator
from tests.harness.browser.chromium import browser_page, chromium_path
from tests.harness.http_clients import served

NUM_ROUTES = "document.querySelectorAll('details.route').length"

IS_ASKING = "document.querySelector('#key-form').checkVisibility()"


async def test_a_browser_shows_it():
    chromium_path()
    with served(ScriptedGenerator()) as url:
        async with browser_page() as page:
            await page.open(f"{url}/docs")
            await page.until(f"{NUM_ROUTES} > 10")
            assert not await page.run(IS_ASKING)
            assert "Outrider" in await page.text("#title")
            assert page.problems == []


async def test_a_browser_asks_for_the_key_and_keeps_it_in_the_tab(keys):
    chromium_path()
    with served(ScriptedGenerator(), api_keys=keys) as url:
        async with browser_page() as page:
            await page.open(f"{url}/docs")
            await page.until(IS_ASKING)
            assert await page.run(NUM_ROUTES) == 0
            assert await page.run("document.activeElement.id") == "key"
            await page.fill("#key", "wrong")
            await page.press("Enter")
            await page.until("document.querySelector('#about').textContent.includes('not known')")
            await page.fill("#key", KEY)
            await page.press("Enter")
            await page.until(f"{NUM_ROUTES} > 10")
            assert not await page.run(IS_ASKING)
            await page.open(f"{url}/docs")
            await page.until(f"{NUM_ROUTES} > 10")
            # The browser itself notes refusals; a policy that were broken would be told as well.
            assert all("401" in problem for problem in page.problems)
            assert await page.run("Object.keys(localStorage).length + document.cookie.length") == 0
