"""The Python API over the shipped pair: what it returns, refuses, and frees."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from deployments.llm import LLM, RequestOutput, SamplingParams
from models.protocol.errors import InvalidRequest, UnsupportedGrammar
from tests.deployments.ingress.test_service import config as http_config
from tests.deployments.ingress.test_service import serving

ROOT = Path(__file__).parents[2]
STORY = [{"role": "user", "content": "Write a short story about a dog."}]
STARTS = ["Once upon a time", "The cat", "A big dog", "Write the date"]


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_model_len=256, kv_cache_tokens=4096) as made:
        yield made


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [one.text for output in outputs for one in output.outputs]


async def test_a_seed_gives_the_text_that_it_gives_over_http(llm: LLM) -> None:
    fields: dict[str, Any] = {"seed": 11, "max_tokens": 40, "temperature": 0.9}
    async with serving(http_config()) as (client, _, _):
        body = {"model": "demo", **fields}
        chat = await client.post("/v1/chat/completions", json={**body, "messages": STORY})
        raw = await client.post("/v1/completions", json={**body, "prompt": STARTS})
    over_http = [choice["text"] for choice in raw.json()["choices"]]
    assert texts(llm.generate(STARTS, SamplingParams(**fields))) == over_http
    [answer] = llm.chat(STORY, SamplingParams(**fields))
    assert answer.outputs[0].text == chat.json()["choices"][0]["message"]["content"]
    assert len(set(over_http)) == len(STARTS)


def test_drafts_move_no_text_and_are_counted(llm: LLM) -> None:
    found = set()
    for speculation in ({"enabled": False}, {"k": 0}, {"k": 4}, {"k": 3, "drafter": "ngram"}, {}):
        params = SamplingParams(seed=3, max_tokens=48, speculation=speculation)
        outputs = llm.generate(STARTS, params)
        found.add(tuple(texts(outputs)))
        num_drafted = sum(output.metrics.num_draft_tokens for output in outputs)
        if speculation == {"k": 4}:
            assert num_drafted > 0
        elif speculation in ({"enabled": False}, {"k": 0}):
            assert num_drafted == 0
    assert len(found) == 1


def test_a_reward_steers_a_text(llm: LLM) -> None:
    wanted = {"kind": "concepts", "concepts": ["dog", "happy", "tree"]}
    lookahead = {"method": "cdlh", "reward": wanted, "length": 4, "commit": "token"}
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 32}
    story = [{"role": "user", "content": "Write a short story about a dog and a ball."}]
    [plain] = llm.chat(story, SamplingParams(**fields))
    steered, *others = llm.chat([story] * 12, SamplingParams(lookahead=lookahead, **fields))
    assert texts(others) == texts([steered]) * 11
    found = steered.outputs[0].lookahead
    assert plain.outputs[0].lookahead is None
    assert found is not None
    assert "happ" not in plain.outputs[0].text
    assert "happ" in steered.outputs[0].text
    assert found.score >= 2 / 3
    assert found.states == {"lookahead": len(steered.outputs[0].token_ids)}
    with pytest.raises(InvalidRequest, match="does not go with lookahead"):
        llm.chat(story, SamplingParams(lookahead=lookahead, n=2))


def test_prompts_share_passes(llm: LLM) -> None:
    params = SamplingParams(seed=1, max_tokens=24, ignore_eos=True, speculation={"k": 0})

    def passes(generate: Callable[[], list[RequestOutput]]) -> tuple[list[str], int]:
        before = llm.loads()["target"].num_passes
        return texts(generate()), llm.loads()["target"].num_passes - before

    alone, many = passes(lambda: [llm.generate(start, params)[0] for start in STARTS])
    together, few = passes(lambda: llm.generate(STARTS, params, use_tqdm=False))
    assert together == alone
    assert few <= many / 2


def test_outputs_have_the_shapes_of_vllm(llm: LLM) -> None:
    params = SamplingParams(seed=5, n=2, max_tokens=12, logprobs=2, prompt_logprobs=1)
    ids = llm.generate("The cat", SamplingParams(max_tokens=1))[0].prompt_token_ids
    prompts: list[dict[str, Any]] = [{"prompt": "The cat"}, {"prompt_token_ids": ids}]
    by_text, by_ids = llm.generate(prompts, params)
    assert (by_text.prompt, by_ids.prompt) == ("The cat", None)
    assert texts([by_text]) == texts([by_ids])
    assert by_text.prompt_token_ids == by_ids.prompt_token_ids == ids
    assert by_text.prompt_logprobs is not None
    assert by_text.prompt_logprobs[0] is None
    assert len(by_text.prompt_logprobs) == len(ids)
    assert by_text.finished
    for index, (one, seed) in enumerate(zip(by_text.outputs, (5, 6), strict=True)):
        assert (one.index, one.seed, one.finish_reason) == (index, seed, "length")
        assert len(one.token_ids) == 12
        assert one.logprobs is not None
        assert len(one.logprobs) == 12
        came = [entry[token] for entry, token in zip(one.logprobs, one.token_ids, strict=True)]
        assert one.cumulative_logprob == pytest.approx(sum(entry.logprob for entry in came))
        assert "".join(entry.decoded_token for entry in came) == one.text
        assert all(len(entry) >= 2 for entry in one.logprobs)


def test_a_pydantic_class_is_a_schema(llm: LLM) -> None:
    params = SamplingParams(temperature=0, structured_outputs={"json": Person}, max_tokens=80)
    asked = [{"role": "user", "content": "Imogen is 7."}]
    [answer] = llm.chat(asked, params, speculation={"k": 4})  # a chosen k depends on times
    assert answer.outputs[0].finish_reason == "stop"
    Person.model_validate(json.loads(answer.outputs[0].text), strict=True)
    assert answer.metrics.num_drafted_by["forced"] > 0


def test_a_list_is_drawn_from_with_its_probabilities(llm: LLM) -> None:
    wanted = {"choice": ["red", "blue"], "choice_probabilities": True}
    [answer] = llm.generate("Which colour?", SamplingParams(structured_outputs=wanted, n=2))
    for output in answer.outputs:
        assert output.text in wanted["choice"]  # type: ignore[operator]
        assert output.choice_probabilities is not None
        assert [one.choice for one in output.choice_probabilities] == wanted["choice"]
        assert sum(one.probability for one in output.choice_probabilities) == pytest.approx(1.0)
    [plain] = llm.generate("Which colour?", SamplingParams(max_tokens=2))
    assert plain.outputs[0].choice_probabilities is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 9}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": "many"}, "top_k"),
        ({"no_such": 1}, "no_such"),
        ({"speculation": {"k": -1}}, "speculation.k"),
        ({"speculation": {"details": True}}, "speculation.details"),
        ({"best_of": 3}, "best_of"),
        ({"stream": True}, "stream"),
        ({"resume_token_ids": [[1]]}, "resume_token_ids"),
        ({"stop": [b"x"]}, "stop"),
        ({"structured_outputs": {"json": int}}, "structured_outputs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_parameters_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**fields)
    assert caught.value.param == param
    assert caught.value.message.startswith(param)


def test_refusals_name_the_prompt_and_the_model_limits(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match=r"^prompts\[1\]: prompt: .* 256 tokens"):
        llm.generate(["a", "b " * 600])
    with pytest.raises(InvalidRequest, match=r"^prompt\[1\]: token id -3"):
        llm.generate([5, -3])
    with pytest.raises(InvalidRequest, match=r"^speculation.k: at most 8 \(got 9\)"):
        llm.generate("a", SamplingParams(speculation={"k": 9}))
    with pytest.raises(InvalidRequest, match=r"^sampling_params: .* of the 2 prompts \(got 1\)"):
        llm.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(UnsupportedGrammar, match=r"^structured_outputs.json: "):
        llm.generate("a", SamplingParams(structured_outputs={"json": {"type": "nonsense"}}))
    wrong, few = SamplingParams(structured_outputs={"json": {"type": "x"}}), SamplingParams(n=2)
    with pytest.raises(UnsupportedGrammar, match=r"^prompts\[1\]: structured_outputs.json: "):
        llm.generate(["a", "b"], [few, wrong])
    assert llm.generate([]) == []


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (None, "^prompt: must be a text, .* [(]got NoneType[)]"),
        (["a", None], r"^prompts\[1\]: prompt: must be .* [(]got NoneType[)]"),
        ([["a", "b"]], "^prompt: must be a text, a list of token ids"),
        (b"a", "^prompt: must be .* [(]got bytes[)]"),
        ({"prompt": "a", "multi_modal_data": 1}, "^multi_modal_data: is no key of a prompt"),
        ({"prompt_token_ids": None}, "^prompt: must be"),
    ],
    ids=str,
)
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate(prompts)


def test_what_is_no_conversation_or_parameters_is_refused(llm: LLM) -> None:
    wrong: list[Any] = [3, {"n": 2}, [{"n": 2}]]
    for value in wrong[:2]:
        with pytest.raises(InvalidRequest, match=r"^messages: a conversation is a list of dicts"):
            llm.chat(value)
    for value in wrong:
        with pytest.raises(InvalidRequest, match=r"^sampling_params: must be SamplingParams"):
            llm.generate("a", value)


def test_the_bar_counts_each_answer_once(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(STARTS[:2], SamplingParams(n=3, max_tokens=4))
    assert " 6/6 " in capsys.readouterr().err


def test_fields_of_a_section_leave_its_others() -> None:
    speculation = {"num_speculative_tokens": 3}
    router = {"speculation": {"draft_ahead": 0}, "timeouts": {"draft_ms": 5}}
    with LLM("models/demo/draft", max_model_len=64, speculation=speculation, router=router) as made:
        assert made.config.router.speculation.num_speculative_tokens == 3
        assert made.config.router.timeouts.draft_ms == 5
        assert made.config.router.timeouts.first_token_s == 3600


VLLM_WORDS: dict[str, dict[str, Any]] = {
    "draft_model": {"model": "models/demo/draft", "num_speculative_tokens": 4},
    "ngram": {"num_speculative_tokens": 5, "prompt_lookup_min": 1, "prompt_lookup_max": 4},
    "suffix": {"num_speculative_tokens": 6},
    "medusa": {"model": "models/demo/heads", "num_speculative_tokens": 3},
    "mtp": {"model": "models/demo/mtp", "num_speculative_tokens": 3},
}


@pytest.mark.parametrize("method", VLLM_WORDS)
def test_vllm_words_have_one_drafter_and_move_no_text(llm: LLM, method: str) -> None:
    words = {"method": method, **VLLM_WORDS[method]}
    params = SamplingParams(seed=3, max_tokens=48)
    prompts = [*STARTS, "one two three one two three one two"]
    more: dict[str, Any] = {"max_model_len": 256, "tensor_parallel_size": 1, "dtype": "auto"}
    with LLM(model="models/demo/target", speculative_config=words, **more) as made:
        outputs = made.generate(prompts, params, use_tqdm=False)
    assert texts(outputs) == texts(llm.generate(prompts, params))
    drafted = {name for output in outputs for name in output.metrics.num_drafted_by}
    assert drafted == {"heads" if method in ("medusa", "mtp") else method}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "x", "target": "x"}, "target and model say the same"),
        ({"speculative_config": {}, "draft": "x"}, "draft and speculative_config say the same"),
        ({"speculative_config": {"method": "magic"}}, r"speculative_config\.method='magic'"),
        ({"trust_remote_code": True}, "trust_remote_code=True: code of a checkpoint is never run"),
        (
            {
                "model": "models/demo/target",
                "speculative_config": {"method": "medusa", **VLLM_WORDS["medusa"]}
                | {"num_speculative_tokens": 5},
            },
            "at most 4 with method medusa: there are so many heads",
        ),
        ({"dtyp": "float32"}, "unknown key 'dtyp'"),
        ({"target": "no/such/model"}, r"target\.model_path: no such folder"),
        ({"draft": "models/demo/draft"}, "draft: needs a target"),
        ({"speculation": {"method": "magic"}}, r"router\.speculation\.method"),
        ({"tensor_parallel_size": 2}, r"target\.tensor_parallel_size: must be 1 in one process"),
        ({"max_model_len": 10**6}, r"target\.max_model_len: 1000000 is more than"),
    ],
)
def test_wrong_models_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(**arguments)


async def test_it_works_inside_a_running_loop_and_from_several_threads(llm: LLM) -> None:
    params = SamplingParams(seed=2, max_tokens=16)
    here = llm.generate(STARTS, params)  # as a notebook calls it
    with ThreadPoolExecutor(4) as pool:
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(pool, llm.generate, start, params) for start in STARTS]
        there = [output for outputs in await asyncio.gather(*calls) for output in outputs]
    assert texts(there) == texts(here)


def test_more_than_the_cache_holds_is_answered_without_losing_any(llm: LLM) -> None:
    params = SamplingParams(seed=9, max_tokens=200, ignore_eos=True, n=8)
    before = llm.loads()["target"].num_preemptions
    few = SamplingParams(seed=9, max_tokens=200, ignore_eos=True)
    assert 8 * 3 * 200 > 4096
    many = llm.generate(STARTS[:3], params)
    assert llm.loads()["target"].num_preemptions == before
    assert [one.outputs[0].text for one in many] == texts(llm.generate(STARTS[:3], few))


def test_refused_prompts_give_their_room_back() -> None:
    wrong = SamplingParams(structured_outputs={"json": {"type": "nonsense"}})
    few = SamplingParams(max_tokens=4)
    with LLM("models/demo/draft", max_model_len=64, kv_cache_tokens=128, max_num_seqs=1) as made:
        for _ in range(3):
            with pytest.raises(UnsupportedGrammar):
                made.generate(STARTS, [wrong, few, few, few])
        assert len(texts(made.generate(STARTS, few))) == len(STARTS)


def test_delivery_is_no_field_of_a_chat(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match=r"^stream: is no sampling parameter"):
        llm.chat(STORY, stream=True)
    [answer] = llm.chat(STORY, SamplingParams(logprobs=False, max_tokens=4))
    assert answer.outputs[0].logprobs is None


def test_an_interrupt_ends_the_call_and_frees_its_sessions(llm: LLM) -> None:
    # Whoever runs these tests in the background may have had interrupts ignored.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _interrupt(llm)
    finally:
        signal.signal(signal.SIGINT, handler)


def _interrupt(llm: LLM) -> None:
    before = llm.generate("The cat", SamplingParams(seed=4, max_tokens=8))
    params = SamplingParams(max_tokens=200, ignore_eos=True, n=8)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(STARTS * 4, params)
    timer.join()
    assert texts(llm.generate("The cat", SamplingParams(seed=4, max_tokens=8))) == texts(before)
    assert [load.num_sessions for load in llm.loads().values()] == [0, 0]


def test_a_closed_one_says_so() -> None:
    made = LLM("models/demo/draft", max_model_len=64, kv_cache_tokens=128)
    assert texts(made.generate("The cat", SamplingParams(max_tokens=4)))
    made.close()
    made.close()
    with pytest.raises(RuntimeError, match="closed"):
        made.generate("The cat")


def test_a_call_ends_when_another_thread_closes_it() -> None:
    made = LLM("models/demo/draft", max_model_len=256, kv_cache_tokens=1024)
    closing = threading.Timer(0.3, made.close)
    closing.start()
    with pytest.raises(RuntimeError, match="closed"):
        made.generate(STARTS * 40, SamplingParams(max_tokens=200, ignore_eos=True))
    closing.join()


def test_the_page_shows_it_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The code of models/README.md runs; what it prints is what its comments say."""
    page = (ROOT / "models" / "README.md").read_text(encoding="utf-8")
    section = page.partition("## Without a server")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    exec(compile(code, "models/README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    said = [line.partition("# ")[2] for line in code.splitlines() if "print(" in line]
    assert printed == said


SCRIPT = """
import signal
import deployments.llm as api
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job in the background
llm = api.LLM(max_model_len=256)
print("loaded", flush=True)
try:
    llm.generate(["The cat"] * 400, api.SamplingParams(max_tokens=200, ignore_eos=True))
except KeyboardInterrupt:
    print("sessions", llm.loads()["target"].num_sessions)
print(len(llm.generate("The cat", use_tqdm=False)), flush=True)
"""  # and no close: the interpreter ends


def test_ctrl_c_in_a_script_and_an_end_without_close() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "loaded\n"
        time.sleep(0.5)
        script.send_signal(signal.SIGINT)
        printed, errors = script.communicate(timeout=60)
    assert printed == "sessions 0\n1\n"
    assert script.returncode == 0
    assert "Error" not in errors
    assert "destroyed" not in errors
