"""Look-aheads through the routes, real engines and real rewards, with OpenAI's client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.cases.lookahead.compared import TERMS
from tests.cases.rewards.plugin import write_plugin
from tests.harness.local import demo_grammar_host, demo_http
from tests.harness.rewards.workers import reward_workers

WORDS = {"kind": "concepts", "concepts": ["dog", "happy", "tree"]}
PROMPT = "Write a short story about a dog and a ball."
CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": PROMPT}],
    "max_tokens": 32,
    "temperature": 0.0,
}


def steered(method: str = "cdsl", reward: Any = WORDS, **fields: Any) -> dict[str, Any]:
    return {"lookahead": TERMS | {"method": method, "reward": reward} | fields}


async def asked(
    client: openai.AsyncOpenAI, extra: dict[str, Any], **fields: Any
) -> tuple[str, dict[str, Any]]:
    """The text, and what the usage says of looking ahead."""
    answer = await client.chat.completions.create(**CHAT | fields, extra_body=extra)
    assert answer.usage is not None
    return answer.choices[0].message.content or "", (answer.usage.model_extra or {}).get(
        "lookahead", {}
    )


@pytest.mark.parametrize("method", ["cdlh", "cdsl"])
async def test_a_reward_steers_the_text_and_the_usage_says_how(
    client: openai.AsyncOpenAI, method: str
) -> None:
    plain, nothing = await asked(client, {})
    assert nothing == {}
    assert "happy" not in plain
    text, usage = await asked(client, steered(method))
    assert "happy" in text
    found = sum(stem in text.lower() for stem in ("dog", "happ", "tree"))
    assert usage["soft_satisfaction"] == pytest.approx(found / 3)
    assert usage["hard_satisfaction"] == (found == 3)
    assert usage["target_passes"] > usage["rollouts"] > 0
    assert usage["reward_calls"] > 2
    assert usage["budget_spent"] is False
    if method == "cdlh":
        assert usage["advice"] == []
        assert usage["states"] == {"lookahead": 32}
        assert usage["draft_steps"] == 0
    else:
        assert set(usage["states"]) <= {"accepted", "low_acceptance", "low_reward"}
        assert usage["draft_steps"] > 0
        [advice] = usage["advice"]  # most of what is drafted has not all the words
        assert "mostly for low_reward: lower reward_threshold (0.5)" in advice


async def test_cdsl_takes_fewer_passes_than_cdlh(client: openai.AsyncOpenAI) -> None:
    terms = {"candidates": 3, "reward_threshold": 0.3, "accept_threshold": 0.25}
    _, cdlh = await asked(client, steered("cdlh", **terms))
    _, cdsl = await asked(client, steered("cdsl", **terms))
    assert cdsl["target_passes"] < cdlh["target_passes"]
    _, whole = await asked(client, steered("cdlh", commit="rollout", **terms))
    assert whole["target_passes"] < 0.4 * cdlh["target_passes"]


async def test_a_stream_has_the_same_text_and_usage(client: openai.AsyncOpenAI) -> None:
    extra = steered(reward_threshold=0.3)
    text, usage = await asked(client, extra)
    stream = await client.chat.completions.create(
        **CHAT, extra_body=extra, stream=True, stream_options={"include_usage": True}
    )
    pieces, told = [], None
    async for event in stream:
        pieces += [choice.delta.content or "" for choice in event.choices]
        told = event.usage.model_extra["lookahead"] if event.usage is not None else told  # type: ignore[index]
    assert "".join(pieces) == text
    assert sum(map(bool, pieces)) > 3
    assert told == usage


async def test_a_seed_gives_one_text(client: openai.AsyncOpenAI) -> None:
    extra = steered(verification="speculative_sampling", rollout="sampled", reward_threshold=0.3)
    sampled = {"temperature": 0.9}
    first, second, crowd = await asyncio.gather(
        *(asked(client, extra, seed=5, **sampled) for _ in range(2)),
        asked(client, {}, seed=5, **sampled),
    )
    assert first == second
    assert first[0] != crowd[0]
    other = await asked(client, extra, seed=6, **sampled)
    assert other[0] != first[0]
    rolled = steered("cdlh", rollout="sampled", seed=1)
    again = steered("cdlh", rollout="sampled", seed=2)
    texts = [await asked(client, one, seed=5, **sampled) for one in (rolled, rolled, again)]
    assert texts[0] == texts[1]
    assert texts[0][1] != texts[2][1]


async def test_a_spent_budget_leaves_a_plain_end(client: openai.AsyncOpenAI) -> None:
    whole, unlimited = await asked(client, steered("cdlh"))
    text, usage = await asked(client, steered("cdlh", budget=60))
    states = usage["states"]
    assert usage["budget_spent"] is True
    assert states["lookahead"] + states["plain"] == 32
    assert 0 < states["lookahead"] < 32
    assert 60 <= usage["target_passes"] - states["plain"] < 60 + 4 * 4 + 1  # a step more at most
    assert usage["target_passes"] < unlimited["target_passes"]
    assert text[:20] == whole[:20]
    # Its end is what the target writes behind its beginning.
    assert (await asked(client, steered("cdlh", budget=60)))[0] == text


async def test_off_is_as_if_it_were_not_there(client: openai.AsyncOpenAI) -> None:
    assert await asked(client, {"lookahead": {"method": "off"}}) == await asked(client, {})


async def test_raw_prompts_and_stop_strings(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model="demo",
        prompt="Once upon a time",
        max_tokens=24,
        temperature=0.0,
        stop=["."],
        extra_body=steered("cdlh", {"kind": "words", "required": ["garden"]}),
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert "." not in choice.text
    assert answer.usage is not None
    usage = (answer.usage.model_extra or {})["lookahead"]
    assert usage["hard_satisfaction"] == ("garden" in choice.text)


async def test_a_reward_that_is_wrong_is_refused_by_field(client: openai.AsyncOpenAI) -> None:
    for reward, fault in (
        ({"kind": "concepts", "concepts": ["x"] * 65}, "concepts: List should have at most 64"),
        ({"kind": "classifier", "model": "m", "label": "x"}, "in the config, which has none"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await asked(client, steered("cdlh", reward))
        body: Any = caught.value.body
        assert (body["param"], body["code"]) == ("lookahead.reward", "unsupported_reward")
        assert body["message"].startswith("lookahead.reward: ")
        assert fault in body["message"]


async def test_cdsl_needs_a_draft_model() -> None:
    options: Any = {"grammar_host": demo_grammar_host(), "rewards": reward_workers()}
    async with demo_http(draft=None, **options) as http:
        answer = await http.post("/v1/chat/completions", json=CHAT | steered())
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "lookahead.method"
        assert "needs a draft model" in answer.json()["error"]["message"]
        plain = await http.post("/v1/chat/completions", json=CHAT | steered("cdlh"))
        assert plain.status_code == 200


async def test_without_rewards_it_is_unavailable() -> None:
    async with demo_http() as http:
        answer = await http.post("/v1/chat/completions", json=CHAT | steered("cdlh"))
        assert answer.status_code == 503
        assert "no constraint service" in answer.json()["error"]["message"]


@pytest.mark.parametrize("deed", ["sleep", "crash"])
async def test_a_harmful_reward_fails_its_own_request(
    deed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models.rewards.registry import reward_names

    write_plugin(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    reward_names.cache_clear()
    rewards = reward_workers(reward_timeout_s=2.0)
    try:
        async with demo_http(grammar_host=demo_grammar_host(), rewards=rewards) as http:
            url = "/v1/chat/completions"
            evil = steered("cdlh", {"kind": "harm", "deed": deed})
            harmed, steered_one, ordinary = await asyncio.gather(
                http.post(url, json=CHAT | evil),
                http.post(url, json=CHAT | steered("cdlh")),
                http.post(url, json=CHAT),
            )
    finally:
        reward_names.cache_clear()
    assert harmed.status_code == 400
    error = harmed.json()["error"]
    assert (error["param"], error["code"]) == ("lookahead.reward", "unsupported_reward")
    assert steered_one.status_code == ordinary.status_code == 200
    assert steered_one.json()["usage"]["lookahead"]["soft_satisfaction"] > 0
