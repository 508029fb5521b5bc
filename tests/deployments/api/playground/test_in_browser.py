"""The playground in a headless Chromium, against the demo's own engines.

`AXE_JS` names axe-core's axe.min.js, for the check of accessibility.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from deployments.api.keys import ApiKeys
from loadtest.clients.catalog import Target
from models.rewards.registry import Rewards
from router.drafters.registry import DRAFTERS
from router.limits import SpeculationLimits
from tests.deployments.api.asking import KEY
from tests.harness.browser.chromium import CONTROL, BrowserPage, chromium_path
from tests.harness.cutting import NEW_PROXY, cutting
from tests.harness.http_clients import events_of
from tests.harness.rewards.workers import reward_workers
from tests.harness.served_demo import demo_over_http

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

STORY = "Write a short story about a dog and a ball."
SCHEMA = {
    "type": "object",
    "properties": {"item": {"type": "string", "maxLength": 12}, "quantity": {"type": "integer"}},
    "required": ["item", "quantity"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_city",
            "parameters": {
                "type": "object",
                "properties": {"name": {"type": "string", "minLength": 3, "maxLength": 12}},
                "required": ["name"],
            },
        },
    }
]
DONE = "document.querySelector('#status').textContent.startsWith('Done')"
IS_CONNECTED = "document.querySelector('#model-name').textContent.includes('tokens')"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Target]:
    """The demo under a prefix, as Serve mounts it."""
    chromium_path()
    async with demo_over_http(
        speculation=SpeculationLimits(), prefix="/llm", rewards=reward_workers()
    ) as target:
        yield target


@pytest_asyncio.fixture(loop_scope="module")
async def page(demo: Target, browser: BrowserPage) -> AsyncIterator[BrowserPage]:
    """The page as it is when it is opened; its console must stay empty."""
    browser.problems.clear()
    await browser.look(width=1280, height=900, is_dark=False)
    await browser.open(f"{demo.root_url}/")
    await browser.until(IS_CONNECTED)
    yield browser
    assert browser.problems == []


async def ask(demo: Target, **fields: Any) -> dict[str, Any]:
    body = {
        "model": demo.model,
        "messages": [{"role": "user", "content": STORY}],
        "temperature": 0,
        "seed": 7,
        "max_tokens": 60,
        **fields,
    }
    async with httpx.AsyncClient(base_url=demo.root_url, timeout=60) as client:
        answer: dict[str, Any] = (await client.post("/v1/chat/completions", json=body)).json()
    return answer


async def choose(page: BrowserPage, name: str, value: str) -> None:
    await page.click(f'[name="{name}"][value="{value}"]')


async def run(page: BrowserPage) -> None:
    await page.run("document.querySelector('#status').textContent = ''")
    await page.click("#run")
    await page.until(DONE)


async def figure(page: BrowserPage, name: str) -> str:
    return await page.text(f'#single [data-figure="{name}"]')


async def spans(page: BrowserPage) -> list[list[str]]:
    """Class and text of each token that is shown."""
    tokens = "[...document.querySelectorAll('#single .text span')]"
    found = f"JSON.stringify({tokens}.map(each => [each.className, each.textContent]))"
    return list(json.loads(await page.run(found)))


async def test_what_is_typed_is_answered_and_the_numbers_are_the_apis(
    demo: Target, page: BrowserPage
) -> None:
    await page.fill("#prompt", STORY)
    await page.fill("#max-tokens", "60")
    await choose(page, "speculation", "fixed")
    await page.fill("#k", "3")
    await page.press("Enter", CONTROL)
    await page.until(DONE)
    answer = await ask(demo, speculation={"enabled": False})
    assert await page.text("#single .text") == answer["choices"][0]["message"]["content"]
    shown = await spans(page)
    # What this very run was answered, because drafts depend on when the drafter is ready.
    *events, _ = events_of(await page.answered("completions"))
    [details] = next(e for e in events if e["choices"] and e["choices"][0]["finish_reason"])[
        "speculation_details"
    ]
    assert len(shown) == len(details["tokens"])
    for (kind, text), token in zip(shown, details["tokens"], strict=True):
        assert text == token["token"]
        is_recovered = details["rounds"][token["round"]]["last"] == "recovered"
        own = "recovered" if is_recovered else "target"
        assert kind == {"draft_model": "draft", "suffix": "copied"}.get(token["origin"], own)
    assert "draft" in {kind for kind, _ in shown}
    counted = events[-1]["metrics"]["speculative_decoding"]
    num_tokens = events[-1]["usage"]["completion_tokens"]
    assert await figure(page, "tokens") == str(num_tokens)
    assert await figure(page, "acceptance") == f"{100 * counted['draft_acceptance_rate']:.0f}%"
    assert await figure(page, "length") == f"{num_tokens / len(details['rounds']):.2f}"
    planned = [each["k"] for each in details["rounds"] if each["k"] is not None]
    assert await figure(page, "k") == str(planned[-1])
    assert float(await figure(page, "speed")) > 0
    legend = await page.text("#single .legend")
    by_draft_model = sum(token["origin"] == "draft_model" for token in details["tokens"])
    assert f"draft model {by_draft_model}" in legend
    for name, number in (
        (".round", len(details["rounds"])),
        (".up .draft", counted["num_accepted_draft_tokens_by"]["draft_model"]),
        (".up .vain", counted["num_draft_tokens"] - counted["num_accepted_draft_tokens"]),
    ):
        found = await page.run(f"document.querySelectorAll('#single {name}').length")
        assert found == number, name


@pytest.mark.parametrize(
    ("cuts", "silently"),
    [
        pytest.param((6000, 3000), False, id="broken"),
        pytest.param((600,), False, id="broken before an id"),
        pytest.param((6000, NEW_PROXY), False, id="broken, then a new proxy"),
        pytest.param((600, NEW_PROXY), False, id="broken before an id, then a new proxy"),
        pytest.param((6000,), True, id="silent"),
        pytest.param((6000, 0), True, id="silent from the first byte"),
    ],
)
async def test_a_stream_that_breaks_goes_on(
    demo: Target, browser: BrowserPage, cuts: tuple[int, ...], silently: bool
) -> None:
    answer = await ask(demo)
    async with cutting(demo.root_url, *cuts, silently=silently) as url:
        await browser.open(f"{url}/")
        await browser.until(IS_CONNECTED)
        await browser.fill("#prompt", STORY)
        await browser.fill("#max-tokens", "60")
        await run(browser)
        assert await browser.text("#single .text") == answer["choices"][0]["message"]["content"]
        assert silently or browser.problems, "a browser tells of broken connections"
    browser.problems.clear()


async def test_hovering_a_token_shows_its_probability_and_k(
    demo: Target, page: BrowserPage
) -> None:
    await page.fill("#max-tokens", "30")
    await choose(page, "speculation", "off")
    await run(page)
    answer = await ask(demo, max_tokens=30, speculation={"enabled": False, "details": True})
    token = answer["speculation_details"][0]["tokens"][5]
    await page.hover("#single .text span:nth-child(6)")
    await page.until("!document.querySelector('#tip').hidden")
    tip = await page.text("#tip")
    percent = 100 * math.exp(token["logprob"])
    assert f"{token['token']} {percent:.{0 if percent >= 1 else 1}f}%, target model" in tip
    assert f"round {token['round']}, k 0" in tip
    assert f"Round {token['round']}. A plain step" in await page.text("#single .inspector")
    await page.hover("#single .text span:nth-child(1)")
    await page.until("document.querySelector('#single .inspector').textContent.includes('Round 0')")
    assert "k 0: nobody drafts" in await page.text("#single .inspector")
    await page.run("document.querySelector('#single .text').focus()")
    await page.press("ArrowRight")
    assert await page.run("document.querySelector('#single .current').dataset.index") == "1"
    await page.run("document.querySelector('#single .chart').focus()")
    await page.press("ArrowRight")
    assert "Round 2." in await page.text("#single .inspector")
    await page.press("ArrowLeft")
    assert "Round 1." in await page.text("#single .inspector")


async def test_a_pasted_schema_is_obeyed_and_forced_text_is_coloured(page: BrowserPage) -> None:
    await choose(page, "speculation", "fixed")
    await choose(page, "shape", "json")
    await page.fill("#shape-text", json.dumps(SCHEMA))
    await page.fill("#prompt", "Turn this order into JSON.\nImogen wants 6 blue lamps.")
    await run(page)
    assert set(json.loads(await page.text("#single .text"))) == {"item", "quantity"}
    assert "forced" in {kind for kind, _ in await spans(page)}
    assert "forced by the grammar" in await page.text("#single .legend")


async def test_pasted_tools_are_called_and_the_call_is_shown_as_it_comes(page: BrowserPage) -> None:
    await choose(page, "shape", "tools")
    await page.fill("#shape-text", json.dumps(TOOLS))
    await choose(page, "call", "required")
    await choose(page, "speculation", "off")
    await page.fill("#prompt", "Where does Imogen live?")
    # Each text of the arguments that is shown, in the order in which it is.
    await page.run(
        "window.seen = []; new MutationObserver(() => seen.push("
        "document.querySelector('#single .calls pre')?.textContent)).observe("
        "document.querySelector('#single .calls'), {childList: true, subtree: true}); 0"
    )
    await run(page)
    *events, _ = events_of(await page.answered("completions"))
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
    arguments = "".join(part["function"]["arguments"] for part in parts if part["index"] == 0)
    assert parts[0]["function"]["name"] == "find_city"
    assert set(json.loads(arguments)) == {"name"}
    assert "find_city" in await page.text("#single .calls li")
    assert json.loads(await page.text("#single .calls pre")) == json.loads(arguments)
    seen = await page.run("seen")
    grown = [text for text in seen if text and arguments.startswith(text) and text != arguments]
    assert len(set(grown)) > 1  # parts of it, before it was whole
    # Above it the turn as the model wrote it, token by token, with what the grammar forced.
    written = await page.text("#single .text")
    assert "find_city" in written
    assert arguments in written
    assert "Done: 1 call" in await page.text("#status")
    assert '"tool_choice": "required"' in await page.text("#snippet")


async def test_who_drafts_can_be_chosen(page: BrowserPage) -> None:
    await page.until("document.querySelector('#drafter').length > 1")  # the page's limits are read
    names = "[...document.querySelectorAll('#drafter option')].map(each => each.value)"
    assert await page.run(names) == ["", *DRAFTERS]
    await page.fill("#prompt", STORY)
    await choose(page, "speculation", "fixed")
    texts, legends = set(), {}
    for name in DRAFTERS:
        await page.run(
            f"(box => {{ box.value = {json.dumps(name)};"
            " box.dispatchEvent(new Event('input', {bubbles: true})) })"
            "(document.querySelector('#drafter'))"
        )
        assert f'"drafter": "{name}"' in await page.text("#snippet")
        await run(page)
        legends[name] = await page.text("#single .legend")
        texts.add(await page.text("#single .text"))
    assert len(texts) == 1
    assert "draft model" in legends["draft_model"]
    for name in ("suffix", "ngram"):
        assert "draft model" not in legends[name]
        assert "target model" in legends[name]
    await choose(page, "speculation", "off")
    assert await page.run("document.querySelector('#drafter-field').hidden")
    assert '"drafter"' not in await page.text("#snippet")


@pytest.mark.parametrize("example", [3, 4, 6])
async def test_examples_run(page: BrowserPage, example: int) -> None:
    await page.click(f"#examples button:nth-child({example})")
    await run(page)
    text = await page.text("#single .text")
    if example == 6:
        assert set(json.loads(await page.text("#single .calls pre"))) == {"city", "unit"}
    else:
        assert text in ("fast", "small", "cold") if example == 3 else len(text) == 10


async def test_an_example_is_steered_by_words_and_says_what_came_of_it(page: BrowserPage) -> None:
    await page.click("#examples button:nth-child(7)")
    asked = await page.text("#snippet")
    assert '"lookahead"' in asked
    assert '"speculation"' not in asked
    hint = await page.text("#wishes-hint")
    assert "demo is not trained for that" in hint
    assert "configs/concepts.yaml" in hint
    for name in ("speculation-field", "drafter-field", "race"):
        assert await page.run(f"document.querySelector('#{name}').hidden"), name
    assert await page.run("document.querySelector('#max-tokens').value") == "40"
    await page.fill("#max-tokens", "16")
    await run(page)
    concepts = ["fox", "school", "hospital", "dance"]
    reward = Rewards().make({"kind": "concepts", "concepts": concepts})
    is_met = reward.score(await page.text("#single .text"), "", is_end=True).is_met
    told = await page.text("#single .inspector")
    assert told.startswith("All words are used:" if is_met else "Not all words are used:")
    assert "passes of the target" in told
    assert told in await page.text("#status")
    await page.click("#examples button:nth-child(1)")
    assert await page.run("document.querySelector('#wishes-hint').hidden")
    assert not await page.run("document.querySelector('#race').hidden")
    assert '"lookahead"' not in await page.text("#snippet")


@pytest.mark.parametrize(
    ("shape", "no_json", "refused", "field"),
    [
        ("tools", "[not json", '[{"type": "function"}]', "tools"),
        ("json", "{not json", '{"type": "nonsense"}', "structured_outputs.json"),
    ],
)
async def test_faults_are_told_in_words(
    page: BrowserPage, shape: str, no_json: str, refused: str, field: str
) -> None:
    await choose(page, "shape", shape)
    await page.fill("#shape-text", no_json)
    await page.click("#run")
    assert "not JSON" in await page.run("document.querySelector('#shape-text').validationMessage")
    assert await page.text("#single .text") == ""
    await page.fill("#shape-text", refused)
    await page.click("#run")
    await page.until("!document.querySelector('#problem').hidden")
    assert field in await page.text("#problem")
    # The browser itself notes that a request was refused, which is as it should be.
    assert all("400" in problem for problem in page.problems)
    page.problems.clear()


async def test_escape_stops_an_answer(page: BrowserPage) -> None:
    await page.fill("#max-tokens", "900")
    await choose(page, "speculation", "off")
    # Seen by the page itself: the answer may be over before it is asked.
    await page.run(
        "new MutationObserver("
        "() => { window.couldStop ||= !document.querySelector('#stop').hidden; }"
        ").observe(document.querySelector('#single .text'), {childList: true, subtree: true}); 0"
    )
    await page.click("#run")
    await page.until("document.querySelectorAll('#single .text span').length > 3")
    assert await page.run("window.couldStop")
    await page.press("Escape")
    await page.until("document.querySelector('#stop').hidden")
    assert await page.text("#status") in ("Stopped.", "Writing.") or await page.run(DONE)
    assert not await page.run("Boolean(document.querySelector('.writing'))")
    assert await page.run("document.querySelector('#problem').hidden")


async def test_a_race_is_of_one_text_and_can_be_replayed(page: BrowserPage) -> None:
    await page.fill("#max-tokens", "60")
    await page.fill("#temperature", "1")
    await page.click("#race")
    await page.until("!document.querySelector('#replay').hidden")
    texts = [await page.text(f"#lane-{lane} .text") for lane in ("on", "off")]
    assert texts[0] == texts[1] != ""
    verdict = await page.text("#verdict")
    assert "The texts are the same." in verdict
    assert "each alone" in verdict
    assert await page.text('#lane-off [data-figure="length"]') == "1.00"
    assert not await page.run("Boolean(document.querySelector('#lane-off .draft'))")
    await page.click("#replay")
    await page.until(
        f"document.querySelector('#lane-on .text').textContent === {json.dumps(texts[0])}"
    )
    await page.until(
        f"document.querySelector('#lane-off .text').textContent === {json.dumps(texts[1])}"
    )
    await page.until("!document.querySelector('.writing')")


async def test_the_request_runs_as_curl_and_as_python(demo: Target, page: BrowserPage) -> None:
    await page.fill("#prompt", "Say 'it\\'s' and \"so\"\nWrite a short story about a dog.")
    await page.fill("#max-tokens", "20")
    await run(page)
    text = await page.text("#single .text")
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    curl = await page.text("#snippet")
    assert f"{demo.root_url}/v1/chat/completions" in curl
    await choose(page, "language", "python")
    program = await page.text("#snippet")
    outputs = []
    for command in (["bash", "-c", curl], [sys.executable, "-c", program]):
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    events = [line for line in outputs[0].splitlines() if line.startswith("data: {")]
    deltas = [json.loads(event.removeprefix("data: "))["choices"] for event in events]
    assert "".join(c["delta"].get("content", "") for choices in deltas for c in choices) == text
    assert outputs[1] == f"{text}\n"


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["wide", "phone"])
async def test_it_fits_and_is_accessible(page: BrowserPage, width: int, is_dark: bool) -> None:
    await page.look(width=width, height=844, is_dark=is_dark)
    await choose(page, "speculation", "fixed")
    await run(page)
    assert await page.run("document.documentElement.scrollWidth <= innerWidth")
    await page.click("#examples button:nth-child(6)")
    overhang = "document.querySelector('#composer').scrollWidth > "
    assert not await page.run(f"{overhang} document.querySelector('#composer').clientWidth")
    await page.click("#examples button:nth-child(1)")
    paper = await page.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) == is_dark
    path = os.environ.get("AXE_JS", "")
    if not path:
        pytest.skip("AXE_JS does not name axe-core's axe.min.js")
    await page.run(await asyncio.to_thread(Path(path).read_text, encoding="utf-8") + ";0")
    faults = "r => JSON.stringify(r.violations.map(v => [v.impact, v.id, v.nodes.length]))"
    for view in ("single", "race"):
        if view == "race":
            await page.click("#race")
            await page.until("!document.querySelector('#replay').hidden")
        found = json.loads(await page.run(f"axe.run(document).then({faults})"))
        assert [fault for fault in found if fault[0] in ("serious", "critical")] == [], view


async def test_a_key_is_asked_for_and_kept_in_the_tab(browser: BrowserPage, keys: ApiKeys) -> None:
    async with demo_over_http(draft=None, api_keys=keys) as target:
        await browser.open(f"{target.root_url}/")
        await browser.until("document.querySelector('#key-dialog').open")
        await browser.fill("#key", "wrong")
        await browser.press("Enter")
        await browser.until(
            "document.querySelector('#key-problem').textContent.includes('not known')"
        )
        await browser.fill("#key", KEY)
        await browser.click('#key-form button[type="submit"]')
        await browser.until(IS_CONNECTED)
        await run(browser)
        assert await browser.text("#single .text")
        assert KEY not in await browser.text("#snippet")
        assert "$OUTRIDER_API_KEY" in await browser.text("#snippet")
        await browser.open(f"{target.root_url}/")
        await browser.until(IS_CONNECTED)
    assert all("401" in problem for problem in browser.problems)
    browser.problems.clear()
