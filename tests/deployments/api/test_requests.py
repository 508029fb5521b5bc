"""From a validated body to a request for the router: ids, limits, seeds, grammars."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.api.bodies import parse
from deployments.api.requests import ServedModel
from deployments.api.sampling_terms import bad_word_ids
from deployments.api.schemas.requests import ChatCompletionRequest
from models.protocol.errors import ContextTooLong, InvalidRequest, UnknownModel
from models.protocol.messages import Grammar, Sampling
from router.types import GenerationRequest, SpeculationSettings
from tests.deployments.api.asking import chat_request, text_request
from tests.fakes.http import served_model, tiny_tokenizer

MODEL = served_model()
TOKENIZER = tiny_tokenizer()
VOCAB_SIZE = TOKENIZER.vocab_size
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}


def chat(served: ServedModel = MODEL, /, **fields: Any) -> GenerationRequest:
    return chat_request(served, **fields)


def completion(served: ServedModel = MODEL, /, **fields: Any) -> GenerationRequest:
    return text_request(served, **fields)


def test_chat_is_the_templates_ids_and_the_models_ends():
    request = chat(temperature=0, top_p=0.5, top_k=3, seed=7, stop="x", ignore_eos=True)
    expected = MODEL.tokenizer.encode("<|user|>hi<|end|><|assistant|>")
    assert request.prompt_ids == tuple(expected)
    assert request.eos_ids == MODEL.tokenizer.eos_ids != ()
    assert request.request_id == "r1"
    assert request.sampling.temperature == 0
    assert (request.sampling.top_p, request.sampling.top_k, request.sampling.seed) == (0.5, 3, 7)
    assert request.stop == ("x",)
    assert request.ignore_eos
    assert request.speculation == SpeculationSettings()


def test_the_turns_of_a_chat_have_one_prefix_key_and_short_prompts_none():
    roomy = served_model(max_model_len=2000)
    system = {"role": "system", "content": "Be kind. " * 60}
    hello, bye = ({"role": "user", "content": text} for text in ("hello", "bye"))
    turns = [system, hello, {"role": "assistant", "content": "hi"}, bye]
    first, later = chat(roomy, messages=turns[:2]), chat(roomy, messages=turns)
    assert first.prefix_key == later.prefix_key != ""
    tool = {"type": "function", "function": {"name": "f"}}
    others = [chat(roomy, messages=[system, bye]), chat(roomy, messages=turns, tools=[tool])]
    assert len({first.prefix_key, "", *(one.prefix_key for one in others)}) == 4
    assert chat(roomy).prefix_key == completion(roomy).prefix_key == ""


def test_raw_prompts_that_begin_alike_have_one_prefix_key():
    roomy = served_model(max_model_len=2000)
    begins = list(range(40, 240)) * 2
    one, longer = completion(roomy, prompt=begins[:300]), completion(roomy, prompt=begins)
    assert one.prefix_key == longer.prefix_key != ""
    assert completion(roomy, prompt=begins[1:]).prefix_key not in ("", one.prefix_key)


def test_a_cache_salt_is_passed_on():
    assert chat().cache_salt == completion(cache_salt=None).cache_salt == ""
    assert chat(cache_salt="team-7").cache_salt == "team-7"
    for salt in ("", "x" * 257, 5):
        with pytest.raises(InvalidRequest, match="cache_salt: ") as caught:
            completion(cache_salt=salt)
        assert caught.value.param == "cache_salt"


def test_developer_is_the_system():
    message = {"role": "developer", "content": "Be short."}
    assert (
        chat(messages=[message]).prompt_ids
        == chat(messages=[message | {"role": "system"}]).prompt_ids
    )


def test_another_model_is_unknown():
    with pytest.raises(UnknownModel, match=r'"gpt-4".*"tiny"') as caught:
        completion(model="gpt-4")
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, 64), (5, 5), (100, 100)], ids=["default", "asked", "limit"]
)
def test_max_tokens(asked, expected):
    assert chat(max_tokens=asked).max_tokens == expected
    assert chat(max_completion_tokens=asked).max_tokens == expected
    assert completion(max_tokens=asked).max_tokens == expected


def test_tokens_shrink_to_the_room_that_is_left():
    assert completion(prompt=[5] * 190).max_tokens == 10
    assert completion(prompt=[5] * 199).max_tokens == 1
    assert completion(prompt=[5] * 190, max_tokens=11).max_tokens == 10
    roomy = served_model(max_tokens_limit=200)  # no limit but the window's
    assert completion(roomy, prompt=[5] * 150, max_tokens=10**6).max_tokens == 50
    assert chat(roomy, max_completion_tokens=10**6).max_tokens < 200


def test_no_tokens_make_sense_where_the_prompt_is_asked_for():
    assert completion(max_tokens=0, echo=True).max_tokens == 0
    assert completion(max_tokens=0, prompt_logprobs=1).max_tokens == 0
    assert chat(max_completion_tokens=0, prompt_logprobs=0).max_tokens == 0
    with pytest.raises(InvalidRequest, match="at least 1, or 0 with echo or prompt_logprobs"):
        completion(max_tokens=0)
    with pytest.raises(InvalidRequest, match="at least 1, or 0 with prompt_logprobs") as caught:
        chat(max_tokens=0)
    assert caught.value.param == "max_tokens"
    with pytest.raises(InvalidRequest, match="min_tokens: must be at most max_tokens, 0"):
        completion(max_tokens=0, min_tokens=1, echo=True)


@pytest.mark.parametrize(
    ("num_prompt", "asked"),
    [(200, None), (201, 1), (200, 0)],
)
def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(num_prompt, asked):
    with pytest.raises(ContextTooLong) as caught:
        completion(prompt=[5] * num_prompt, max_tokens=asked, echo=True)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "prompt"
    for number in (200, num_prompt):
        assert str(number) in caught.value.message
    # OpenAI's words: litellm knows the error by them and raises its ContextWindowExceededError.
    assert "this model's maximum context length is 200 tokens" in caught.value.message


def test_refusals_name_the_field_the_client_wrote():
    with pytest.raises(ContextTooLong, match=r"messages: .*200.*201") as caught:
        chat(messages=[{"role": "user", "content": "x" * 198}], max_tokens=1)
    assert caught.value.param == "messages"
    with pytest.raises(InvalidRequest, match=r"max_completion_tokens: .*100.*101") as caught:
        chat(max_completion_tokens=101)
    assert caught.value.param == "max_completion_tokens"


def test_a_default_beyond_the_limit_does_not_break_it():
    model = served_model(default_max_tokens=64, max_tokens_limit=10)
    assert chat(model).max_tokens == 10


@pytest.mark.parametrize("depth", range(900, 1000, 3))
def test_a_deep_value_is_refused_and_not_our_fault(depth):
    nested = "[" * depth + "]" * depth
    body = f'{{"model": {nested}, "messages": [{{"role": "user", "content": "a"}}]}}'
    with pytest.raises(InvalidRequest):
        parse(body.encode(), ChatCompletionRequest)


@pytest.mark.parametrize("temperature", [5e-324, 1e-50, 1e-6])
def test_a_temperature_that_float32_cannot_divide_by_is_greedy(temperature):
    assert chat(temperature=temperature).sampling.temperature == 0


@pytest.mark.parametrize("token_id", [-1, 300, 10**30])
def test_token_ids_outside_the_vocabulary_are_refused(token_id):
    with pytest.raises(InvalidRequest, match=rf"prompt\[1\]: token id {token_id} is outside"):
        completion(prompt=[1, token_id])


def test_an_empty_prompt_is_refused():
    with pytest.raises(InvalidRequest, match="no tokens"):
        completion(prompt="")


@pytest.mark.parametrize(("seed", "expected"), [(0, 0), (2**64 - 1, 2**64 - 1), (-1, 2**64 - 1)])
def test_any_64_bit_seed(seed, expected):
    assert chat(seed=seed).sampling.seed == expected


def test_without_a_seed_one_is_drawn_that_any_client_can_repeat():
    seeds = {chat().sampling.seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**53 for seed in seeds)


@pytest.mark.parametrize(
    "fields",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
            }
        },
        {"structured_outputs": {"json": SCHEMA}},
    ],
    ids=["response_format", "structured_outputs"],
)
def test_a_schema_becomes_a_grammar_with_its_keys_in_order(fields):
    expected = Grammar(kind="json_schema", text=json.dumps(SCHEMA))
    assert chat(**fields).grammar == expected
    assert completion(**fields).grammar == expected
    assert expected.text.index('"b"') < expected.text.index('"a"')


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "json_object"}}, Grammar(kind="json_object", text="")),
        ({"structured_outputs": {"json_object": True}}, Grammar(kind="json_object", text="")),
        ({"structured_outputs": {"regex": "\\d+|é"}}, Grammar(kind="regex", text="\\d+|é")),
        (
            {
                "structured_outputs": {
                    "choice": ["yes", "né"],
                    "choice_sampling": "masked",
                    "json": None,
                }
            },
            Grammar(kind="choice", text='["yes", "né"]'),
        ),
        (
            {"structured_outputs": {"grammar": "// root\nstart: /a/"}},
            Grammar(kind="lark", text="// root\nstart: /a/"),
        ),
        (
            {"structured_outputs": {"grammar": '# a\n root ::= "a"'}},
            Grammar(kind="ebnf", text='# a\n root ::= "a"'),
        ),
        (
            {"structured_outputs": {"structural_tag": '{"format": 1}'}},
            Grammar(kind="structural_tag", text='{"format": 1}'),
        ),
        (
            {"response_format": {"type": "structural_tag", "structures": [], "triggers": ["a"]}},
            Grammar(
                kind="structural_tag",
                text='{"type": "structural_tag", "structures": [], "triggers": ["a"]}',
            ),
        ),
        (
            {"structured_outputs": {"json": {}, "disable_any_whitespace": True}},
            Grammar(kind="json_schema", text="{}", whitespace=""),
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " ?"}},
            Grammar(kind="json_schema", text="{}", whitespace=" ?"),
        ),
        (
            {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
            Grammar(kind="json_schema", text="{}", is_closed=True),
        ),
    ],
)
def test_other_constraints_become_grammars(fields, grammar):
    assert chat(**fields).grammar == grammar
    assert completion(**({"response_format": {"type": "text"}} | fields)).grammar == grammar


def test_sampling_fields_pass():
    fields = {
        "min_p": 0.1,
        "presence_penalty": -2,
        "frequency_penalty": 1.5,
        "repetition_penalty": 1.2,
    }
    for request in (chat(seed=1, **fields), completion(seed=1, **fields)):
        assert request.sampling == Sampling(seed=1, **fields)
    assert chat(seed=1, top_k=-1).sampling == Sampling(seed=1)


def test_the_verification_rule_is_the_servers_unless_asked_for():
    strict = served_model(verification="rejection")
    assert chat().sampling.verification == "coupled"
    assert chat(strict).sampling.verification == "rejection"
    assert chat(speculation={"verification": "rejection"}).sampling.verification == "rejection"
    assert chat(strict, speculation={"verification": "coupled"}).sampling.verification == "coupled"


def test_speculation_settings_pass():
    asked = {"enabled": False, "k": 3, "drafter": "ngram", "disable_by_batch_size": 4}
    asked["draft_sample_method"] = "greedy"
    assert chat(speculation=asked).speculation == SpeculationSettings(
        enabled=False,
        num_speculative_tokens=3,
        drafter="ngram",
        disable_by_batch_size=4,
        draft_sample_method="greedy",
    )
    assert completion(speculation={"k": 0}).speculation.num_speculative_tokens == 0


# --- sampling terms: ids, tokenised words, and fields that contradict each other ------------------


def test_terms_are_taken_over():
    request = chat(
        logit_bias={"3": 1.5, "0": -100},
        min_tokens=7,
        stop_token_ids=[4, 5],
        include_stop_str_in_output=True,
        prompt_logprobs=3,
    )
    sampling = request.sampling
    assert sampling.logit_bias == ((3, 1.5), (0, -100.0))
    assert (sampling.min_tokens, sampling.num_prompt_logprobs) == (7, 3)
    assert request.stop_token_ids == (4, 5)
    assert request.includes_stop
    plain = chat()
    assert (plain.sampling.num_logprobs, plain.sampling.num_prompt_logprobs) == (-1, -1)
    assert not plain.includes_stop


def test_how_many_logprobs():
    assert chat(logprobs=True).sampling.num_logprobs == 0
    assert chat(logprobs=True, top_logprobs=5).sampling.num_logprobs == 5
    assert chat(logprobs=False).sampling.num_logprobs == -1
    assert completion(logprobs=0).sampling.num_logprobs == 0
    assert completion(logprobs=4).sampling.num_prompt_logprobs == -1
    echoed = completion(logprobs=4, echo=True, prompt_logprobs=2).sampling
    assert (echoed.num_logprobs, echoed.num_prompt_logprobs) == (4, 4)


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode_piece(text))


def test_a_bad_word_is_one_at_the_start_and_one_behind_a_space():
    assert ids(" bear")[-len(ids("bear")) :] != ids("bear")  # one token with its space
    assert bad_word_ids(["bear"], TOKENIZER) == (ids("bear"), ids(" bear"))
    assert bad_word_ids(["  bear", "bear"], TOKENIZER) == (ids("bear"), ids(" bear"))


def test_a_form_that_forbids_nothing_more_is_left_out():
    assert ids(" zq") == (*ids(" "), *ids("zq"))
    assert bad_word_ids(["zq"], TOKENIZER) == (ids("zq"),)


def test_bad_words_of_a_request_are_tokenised():
    assert chat(bad_words=["bear"]).sampling.bad_words == (ids("bear"), ids(" bear"))
    assert chat().sampling.bad_words == ()
