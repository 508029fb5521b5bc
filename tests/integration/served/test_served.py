"""The demo as a user runs it: `serve run`, then HTTP with a real client."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments.streams import events
from models.protocol.messages import Grammar
from tests.cases.constraint import CONSTRAINTS, check_obeys
from tests.cases.grammar import TEN_SCHEMAS
from tests.harness.served_demo import ServedDemo

MODEL = "outrider-demo"
STORY = [{"role": "user", "content": "Write a short story about a dog and a ball."}]

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def client(demo: ServedDemo) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{demo.base_url}/v1", api_key="none", timeout=120, max_retries=0
    ) as opened:
        yield opened


def chat(
    client: openai.OpenAI,
    messages: list[dict[str, str]] = STORY,
    *,
    k: int | None = None,
    stream: bool = False,
    speculation: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[str, str | None]:
    """Text and finish reason of a chat completion."""
    if k is not None:
        speculation = {"k": k}
    if speculation is not None:
        options["extra_body"] = {"speculation": speculation}
    options.setdefault("max_tokens", 60)
    create: Callable[..., Any] = client.chat.completions.create
    if not stream:
        choice = create(model=MODEL, messages=messages, **options).choices[0]
        return choice.message.content, choice.finish_reason
    text, finish_reason = "", None
    for chunk in create(model=MODEL, messages=messages, stream=True, **options):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish_reason = choice.finish_reason or finish_reason
    return text, finish_reason


def test_ready_prints_where_and_how(demo: ServedDemo) -> None:
    deadline = time.monotonic() + 30  # the line is written beside the first answer, not before it
    while "ready at" not in demo.log() and time.monotonic() < deadline:
        time.sleep(0.2)
    log = demo.log()
    assert "ready at" in log
    assert f"curl {demo.base_url}/v1/chat/completions" in log


def test_the_demo_stays_under_three_gigabytes_beside_its_spare(demo: ServedDemo) -> None:
    deadline = time.monotonic() + 120.0
    while demo.log().count("target: ready in") < 2:
        assert time.monotonic() < deadline, "the target has no spare"
        time.sleep(0.2)
    ranks = demo.descendants("ray::Rank")
    rank = max(ranks, key=lambda rank: float(rank.create_time()))
    coordinator = max(
        demo.descendants("ServeReplica:outrider:Target"),
        key=lambda replica: float(replica.create_time()),
    )
    spare_bytes = sum(process.memory_full_info().pss for process in (rank, coordinator))
    assert demo.memory_bytes() - spare_bytes < 3_000_000_000
    assert spare_bytes < 800_000_000


def test_a_reward_steers_a_text(client: openai.OpenAI) -> None:
    wanted = {"kind": "concepts", "concepts": ["dog", "happy", "tree"]}
    lookahead = {"method": "cdsl", "reward": wanted, "length": 4}
    terms: dict[str, Any] = {"temperature": 0, "max_tokens": 32}
    plain, _ = chat(client, **terms)
    steered, _ = chat(client, extra_body={"lookahead": lookahead}, **terms)
    assert "happ" not in plain
    assert "happ" in steered
    streamed, _ = chat(client, stream=True, extra_body={"lookahead": lookahead}, **terms)
    assert streamed == steered
    evil = {"kind": "pattern", "pattern": r"(\D|\D{2})+[0-9]", "match": "whole"}
    with pytest.raises(openai.BadRequestError, match=r"reward_cpu_s|reward_timeout_s"):
        chat(client, extra_body={"lookahead": lookahead | {"reward": evil}}, **terms)


def test_models_and_health(demo: ServedDemo, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    health = httpx.get(f"{demo.base_url}/health", timeout=20)
    assert health.status_code == 200
    assert health.json()["status"] == "ok"


def test_a_stream_is_the_same_text(client: openai.OpenAI) -> None:
    whole = chat(client, temperature=0)
    assert whole[0]
    assert chat(client, temperature=0, stream=True) == whole


def test_a_seed_gives_one_text_whatever_is_drafted(client: openai.OpenAI) -> None:
    plain = chat(client, temperature=1, seed=12, speculation={"enabled": False})
    for k in (None, 0, 1, 3, 8):
        assert chat(client, temperature=1, seed=12, k=k) == plain
    with ThreadPoolExecutor(8) as pool:
        texts = list(
            pool.map(lambda i: chat(client, temperature=1, seed=12 + i, k=i % 4), range(8))
        )
    assert texts[0] == plain
    assert len(set(texts)) == 8


def test_usage_and_speculation_are_reported(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=STORY,  # type: ignore[arg-type]
        max_tokens=40,
        temperature=0,
        extra_body={"speculation": {"k": 3}},
    )
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    stats = answer.model_dump()["metrics"]["speculative_decoding"]
    assert stats["num_draft_tokens"] > 0
    assert 0 <= stats["num_accepted_draft_tokens"] <= stats["num_draft_tokens"]
    assert stats["draft_acceptance_rate"] == pytest.approx(
        stats["num_accepted_draft_tokens"] / stats["num_draft_tokens"], abs=1e-3
    )
    assert sum(stats["acceptance_histogram"]) == stats["num_spec_steps"]


def test_metrics_show_routers_engines_and_constraint_service(
    demo: ServedDemo, client: openai.OpenAI
) -> None:
    # Long enough for the draft model to be leased and to read the prompt.
    more = {"speculation": {"k": 3}, "ignore_eos": True}
    chat(client, temperature=0, max_tokens=400, extra_body=more)
    deadline = time.monotonic() + 30  # engines are looked at about once a second
    while True:
        text = httpx.get(f"{demo.base_url}/metrics", timeout=30).text
        values: defaultdict[tuple[str, str], float] = defaultdict(float)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:  # a spare has its own, of nothing
                values[sample.name, sample.labels.get("engine", "")] += sample.value
        if min(values["outrider:passes_total", name] for name in ("target", "draft")) > 0:
            break
        assert time.monotonic() < deadline, text
        time.sleep(0.5)
    assert values["vllm:generation_tokens_total", ""] >= 40
    assert values["outrider:pass_seconds_total", "draft"] > 0
    for engine in ("target", "draft"):
        assert 0 <= values["vllm:kv_cache_usage_perc", engine] <= 1
        assert values["vllm:prefix_cache_queries_total", engine] > 0
        assert values["outrider:pass_rows_total", engine] > 0
    assert values["outrider:constraint_queue_length", "constraint"] >= 0
    replicas = Counter(
        sample.labels["engine"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "outrider:leases"
    )
    assert replicas["draft"] == 1
    assert {replicas["target"], replicas["constraint"]} <= {1, 2}, "with a spare or without"


def test_text_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=20, temperature=0
    )
    assert answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"


def test_prompts_with_long_lists_of_logprobs_come_whole_through_the_proxy(
    client: openai.OpenAI,
) -> None:
    """The body comes in chunks; each prompt has the answers that it has alone."""
    prompts = ["Once upon a time there was a dog. " * 12, "The cat sat. " * 30]
    options: Any = {"model": MODEL, "n": 2, "seed": 3, "max_tokens": 6}
    extra = {"prompt_logprobs": 20}
    raw = client.completions.with_raw_response.create(prompt=prompts, extra_body=extra, **options)
    together = raw.parse()
    assert len(raw.content) == int(raw.headers["content-length"]) > 200_000
    alone = [client.completions.create(prompt=prompt, **options) for prompt in prompts]
    texts = [choice.text for answer in alone for choice in answer.choices]
    assert [choice.text for choice in together.choices] == texts
    lists = [(choice.model_extra or {})["prompt_logprobs"] for choice in together.choices]
    assert lists[0] == lists[1] != lists[2] == lists[3]
    num_prompt = sum(answer.usage.prompt_tokens for answer in alone if answer.usage is not None)
    assert len(lists[0]) + len(lists[2]) == num_prompt
    assert together.usage is not None
    assert together.usage.prompt_tokens == num_prompt


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_answers_obey_their_schema(client: openai.OpenAI, k: int, stream: bool) -> None:
    def answer(name: str) -> tuple[str, str | None]:
        return chat(
            client,
            [{"role": "user", "content": f"Write a {name} record."}],
            k=k,
            stream=stream,
            max_tokens=200,
            temperature=1,
            seed=3,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": name, "schema": TEN_SCHEMAS[name], "strict": True},
            },
        )

    with ThreadPoolExecutor(4) as pool:
        answers = dict(zip(TEN_SCHEMAS, pool.map(answer, TEN_SCHEMAS), strict=True))
    num_ended = 0
    for name, (text, finish_reason) in answers.items():
        if finish_reason == "stop":
            num_ended += 1
            jsonschema.validate(json.loads(text), TEN_SCHEMAS[name])
    assert num_ended >= 5


@pytest.mark.parametrize("k", [0, 4])
def test_answers_obey_patterns_and_choices(client: openai.OpenAI, k: int) -> None:
    constraints = {n: g for n, g in CONSTRAINTS.items() if g.kind in ("regex", "choice")}

    def answer(grammar: Grammar) -> tuple[str, str]:
        value = json.loads(grammar.text) if grammar.kind == "choice" else grammar.text
        choice = client.chat.completions.create(
            model=MODEL,
            messages=STORY,  # type: ignore[arg-type]  # as the client reads it
            max_tokens=200,
            seed=3,
            extra_body={"structured_outputs": {grammar.kind: value}, "speculation": {"k": k}},
        ).choices[0]
        return choice.message.content or "", choice.finish_reason

    with ThreadPoolExecutor(4) as pool:
        answers = dict(zip(constraints, pool.map(answer, constraints.values()), strict=True))
    for name, (text, finish_reason) in answers.items():
        assert finish_reason == "stop", name
        check_obeys(constraints[name], text)


def test_grammars_with_rules_and_texts_against_them(demo: ServedDemo) -> None:
    nested = {"structured_outputs": {"grammar": 'root ::= "(" root ")" | [a-z]{1,4}'}}
    call = {
        "structured_outputs": {
            "structural_tag": {
                "format": {
                    "type": "triggered_tags",
                    "triggers": ["<f"],
                    "at_least_one": True,
                    "stop_after_first": True,
                    "tags": [
                        {
                            "begin": "<f>",
                            "end": "</f>",
                            "content": {
                                "type": "json_schema",
                                "json_schema": {
                                    "type": "object",
                                    "properties": {
                                        "x": {"type": "integer", "maximum": 99, "minimum": 0}
                                    },
                                    "required": ["x"],
                                    "additionalProperties": False,
                                },
                            },
                        }
                    ],
                }
            }
        }
    }
    spaced = {"structured_outputs": {"json": TEN_SCHEMAS["optional"], "whitespace_pattern": " ?"}}
    for constraint in (nested, call, spaced):
        body = {"model": MODEL, "messages": STORY, "max_tokens": 200, "seed": 4, **constraint}
        answer = httpx.post(f"{demo.base_url}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        text = answer.json()["choices"][0]["message"]["content"]
        for asked, is_valid in ((text, True), (text + "!", False)):
            found = httpx.post(
                f"{demo.base_url}/v1/grammar/check", json={"text": asked, **constraint}, timeout=60
            ).json()
            assert found["valid"] == is_valid, (asked, found)
            assert found["num_bytes"] == len(text.encode())
    refused = httpx.post(
        f"{demo.base_url}/v1/grammar/check",
        json={"text": "", "structured_outputs": {"grammar": "root ::= x"}},
        timeout=60,
    )
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "structured_outputs.grammar")
    assert "line 1, column 10: the rule x is not defined" in error["message"]


def test_a_json_object_is_one(client: openai.OpenAI) -> None:
    order = "Turn this order into JSON.\nAnna from Oslo wants 3 blue lamps at $12.50 each."
    text, finish_reason = chat(
        client,
        [{"role": "user", "content": order}],
        temperature=0,
        max_tokens=300,
        response_format={"type": "json_object"},
    )
    assert finish_reason == "stop"
    assert isinstance(json.loads(text), dict)


BAD_REQUESTS: dict[str, tuple[dict[str, Any], int, list[str]]] = {
    "unknown model": ({"model": "other"}, 404, ["other", "model"]),
    "temperature": ({"temperature": 2.5}, 400, ["temperature", "2", "2.5"]),
    "top_p": ({"top_p": 0}, 400, ["top_p", "0"]),
    "max_tokens": ({"max_tokens": 0}, 400, ["max_tokens", "0", "1"]),
    "unknown field": ({"temprature": 1}, 400, ["temprature"]),
    "unknown speculation key": ({"speculation": {"kk": 1}}, 400, ["speculation", "kk"]),
    "k too large": ({"speculation": {"k": 99}}, 400, ["speculation.k", "99", "8"]),
    "unknown role": ({"messages": [{"role": "robot", "content": "x"}]}, 400, ["role", "robot"]),
    "long prompt": (
        {"messages": [{"role": "user", "content": "dog " * 3000}]},
        400,
        ["1024", "tokens"],
    ),
    "bad schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "nonsense"}},
            }
        },
        400,
        ["response_format", "nonsense"],
    ),
    "bad pattern": (
        {"structured_outputs": {"regex": "ab(?<=c)"}},
        400,
        ["structured_outputs.regex", "position 2", "look-behind"],
    ),
    "bad choice": (
        {"structured_outputs": {"choice": ["a", "a"]}},
        400,
        ["structured_outputs.choice", "[1]", "[0]"],
    ),
    "bad schema of vLLM's": (
        {"structured_outputs": {"json": {"type": "nonsense"}}},
        400,
        ["structured_outputs.json", "$.type", "nonsense"],
    ),
    "unknown format": ({"response_format": {"type": "yaml"}}, 400, ["response_format", "yaml"]),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests_are_refused_by_name(demo: ServedDemo, case: str) -> None:
    change, status, words = BAD_REQUESTS[case]
    body = {"model": MODEL, "messages": STORY, "max_tokens": 5, **change}
    answer = httpx.post(f"{demo.base_url}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == status
    error = answer.json()["error"]
    for word in words:
        assert word in error["message"] + str(error["param"]), error


def test_bad_json_is_refused(demo: ServedDemo) -> None:
    answer = httpx.post(
        f"{demo.base_url}/v1/chat/completions",
        content=b'{"model": ',
        headers={"content-type": "application/json"},
        timeout=30,
    )
    assert answer.status_code == 400
    assert "JSON" in answer.json()["error"]["message"]


def test_bad_requests_disturb_no_neighbour(demo: ServedDemo, client: openai.OpenAI) -> None:
    expected = chat(client, temperature=1, seed=5, max_tokens=120)
    stop = threading.Event()

    def disturb() -> list[tuple[int, int]]:
        """(wanted, got) of every refusal."""
        statuses = []
        while not stop.is_set():
            for change, status, _ in BAD_REQUESTS.values():
                body = {"model": MODEL, "messages": STORY, **change}
                answer = httpx.post(f"{demo.base_url}/v1/chat/completions", json=body, timeout=30)
                statuses.append((status, answer.status_code))
        return statuses

    with ThreadPoolExecutor(1) as pool:
        refusals = pool.submit(disturb)
        try:
            assert chat(client, temperature=1, seed=5, max_tokens=120) == expected
        finally:
            stop.set()
        statuses = refusals.result(60)
    assert statuses
    assert [pair for pair in statuses if pair[0] != pair[1]] == []


def test_a_client_that_goes_away_frees_its_place(demo: ServedDemo, client: openai.OpenAI) -> None:
    """The service holds 32 sessions: 100 abandoned streams would fill it were they not freed."""
    body = {"model": MODEL, "messages": STORY, "max_tokens": 800, "stream": True}
    body |= {"ignore_eos": True}
    for _ in range(100):
        with httpx.stream(
            "POST", f"{demo.base_url}/v1/chat/completions", json=body, timeout=30
        ) as answer:
            assert answer.status_code == 200
            next(answer.iter_bytes())
    started_at = time.monotonic()
    assert chat(client, max_tokens=5)[0]
    assert time.monotonic() - started_at < 60


def test_the_draft_may_die_under_running_streams(demo: ServedDemo, client: openai.OpenAI) -> None:
    has_ended = False

    def story(seed: int) -> tuple[str, str | None]:
        nonlocal has_ended
        answer = chat(
            client,
            temperature=1,
            seed=seed,
            stream=True,
            max_tokens=600,
            extra_body={"speculation": {"k": 3}, "ignore_eos": True},
        )
        has_ended = True
        return answer

    expected = [story(seed) for seed in range(8)]
    victims = draft_ranks(demo)
    assert len(victims) == 1, "one draft process"
    with ThreadPoolExecutor(9) as pool:
        has_ended = False
        running = [pool.submit(story, seed) for seed in range(8)]
        time.sleep(0.5)
        victims[0].kill()
        assert not has_ended, "all eight streams ran when the draft died"
        late = pool.submit(story, 0)
        assert [future.result(180) for future in running] == expected
        assert late.result(180) == expected[0]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=STORY,  # type: ignore[arg-type]
            max_tokens=40,
            temperature=0,
            extra_body={"speculation": {"k": 3}},
        )
        stats = answer.model_dump()["metrics"]["speculative_decoding"]
        if stats["num_draft_tokens_by"].get("draft_model"):  # not only lookup, which fills in
            return
        time.sleep(0.5)
    pytest.fail("the draft model did not come back within 120 s")


def test_a_lost_routers_stream_goes_on_at_its_spare_behind_its_tokens(demo: ServedDemo) -> None:
    url = f"{demo.base_url}/v1/chat/completions"
    body = {"model": MODEL, "messages": STORY, "temperature": 1, "seed": 5, "max_tokens": 400}
    body |= {"ignore_eos": True, "speculation": {"k": 0}, "stream_options": {"include_usage": True}}
    expected = list(events(url, body))
    older, spare = two_routers(demo)
    found: list[Any] = []
    for event in events(url, body):
        found.append(event)
        if len(found) == 50:
            older.kill()
    assert joined_text(found) == joined_text(expected)
    assert found[-1]["usage"]["completion_tokens"] == 400
    assert found[-1]["metrics"]["rounds"]["num_rounds"] < 380, "the first tokens took no pass"
    assert two_routers(demo)[0] == spare, "another has come"


def two_routers(demo: ServedDemo) -> list[Any]:
    """Wait for the router and its spare; the older comes first."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        routers = demo.descendants("ServeReplica:outrider:Router")
        if len(routers) == 2:
            return sorted(routers, key=lambda router: float(router.create_time()))
        time.sleep(0.2)
    pytest.fail("the router has no spare")


def joined_text(found: list[Any]) -> str:
    choices = [choice for event in found for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def draft_ranks(demo: ServedDemo) -> list[Any]:
    """The process that holds the draft model: its coordinator logs the pid."""
    import re

    import psutil

    pids = re.findall(r"draft: ready .* pid (\d+)", demo.log())
    return [psutil.Process(int(pids[-1]))] if pids else []
