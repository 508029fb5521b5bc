"""Logprobs over HTTP: OpenAI's two shapes; vLLM's for the prompt; echo."""

from __future__ import annotations

import pytest

from models.protocol.messages import TokenLogprobs
from models.protocol.packed_logprobs import pack
from router.types import Delta, ShownToken
from tests.deployments.api.asking import post
from tests.fakes.http import CHAT, SPECIALS, ScriptedGenerator, tiny_tokenizer
from tests.harness.http_clients import events_of

TOKENIZER = tiny_tokenizer()
[EOS] = TOKENIZER.eos_ids
[A] = TOKENIZER.encode_piece("a")
THE = TOKENIZER.encode_piece("The")
EURO = TOKENIZER.encode_piece("€")  # three tokens of one byte each
TEXT = {"model": "tiny", "prompt": "The"}


def entry(token: int, logprob: float, *top: tuple[int, float], rank: int = 1) -> TokenLogprobs:
    return TokenLogprobs(token, logprob, rank, top)


# "a€": a token, then a character of three; the eos might have come instead of each.
SHOWN = [
    ShownToken(0, entry(A, -0.5, (A, -0.5), (EOS, -1.0))),
    *(ShownToken(1, entry(part, -2.0, (EOS, -0.25), (A, -1.5), rank=3)) for part in EURO),
]
DELTAS = (
    Delta("a", (A, EURO[0]), tuple(SHOWN[:1])),
    Delta("", (EURO[1],)),
    Delta("€", (EURO[2],), tuple(SHOWN[1:])),
)
OF_PROMPT = tuple(
    entry(token_id, -1.0 - i, (A, -0.1), (token_id, -1.0 - i), rank=2)
    for i, token_id in enumerate(THE[1:])
)


def generator() -> ScriptedGenerator:
    return ScriptedGenerator(deltas=DELTAS)


def with_prompt() -> ScriptedGenerator:
    first = Delta("a", (A,), (SHOWN[0],), tuple(map(pack, OF_PROMPT)))
    return ScriptedGenerator(deltas=(first, Delta("a", (A,), (ShownToken(1, SHOWN[0].logprobs),))))


CONTENT = [
    {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -0.5, "bytes": [97]},
            {"token": SPECIALS[0], "logprob": -1.0, "bytes": list(SPECIALS[0].encode())},
        ],
    },
    *(
        {
            "token": f"\\x{byte:02x}",
            "logprob": -2.0,
            "bytes": [byte],
            "top_logprobs": [
                {"token": SPECIALS[0], "logprob": -0.25, "bytes": list(SPECIALS[0].encode())},
                {"token": "a", "logprob": -1.5, "bytes": [97]},
            ],
        }
        for byte in "€".encode()
    ),
]


async def test_a_chat_answer_has_an_entry_for_each_token():
    scripted = generator()
    fields = {"logprobs": True, "top_logprobs": 2}
    answer = (await post("/v1/chat/completions", CHAT | fields, scripted)).json()
    [choice] = answer["choices"]
    assert choice["message"]["content"] == "a€"
    assert choice["logprobs"] == {"content": CONTENT, "refusal": None}
    assert bytes(b for token in CONTENT for b in token["bytes"]).decode() == "a€"
    assert scripted.requests[0].sampling.num_logprobs == 2
    assert "prompt_logprobs" not in answer


async def test_a_chat_stream_has_them_with_their_text():
    fields = {"logprobs": True, "top_logprobs": 2, "stream": True}
    response = await post("/v1/chat/completions", CHAT | fields, generator())
    choices = [event["choices"][0] for event in events_of(response.text)[:-1]]
    assert [choice["delta"].get("content") for choice in choices] == ["", "a", "€", None]
    assert [choice["logprobs"] for choice in choices] == [
        None,
        {"content": CONTENT[:1], "refusal": None},
        {"content": CONTENT[1:], "refusal": None},
        None,
    ]


TEXT_LOGPROBS = {
    "text_offset": [0, 1, 1, 1],
    "token_logprobs": [-0.5, -2.0, -2.0, -2.0],
    "tokens": ["a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"],
    "top_logprobs": [
        {"a": -0.5, SPECIALS[0]: -1.0},
        *({SPECIALS[0]: -0.25, "a": -1.5, f"bytes:\\x{byte:02x}": -2.0} for byte in "€".encode()),
    ],
}


async def test_a_completion_has_lists():
    scripted = generator()
    answer = (await post("/v1/completions", TEXT | {"logprobs": 2}, scripted)).json()
    assert answer["choices"][0]["logprobs"] == TEXT_LOGPROBS
    assert scripted.requests[0].sampling.num_logprobs == 2


async def test_a_completion_stream_has_parts_of_the_lists():
    response = await post("/v1/completions", TEXT | {"logprobs": 2, "stream": True}, generator())
    parts = [event["choices"][0]["logprobs"] for event in events_of(response.text)[:-1]]
    assert parts[-1] is None
    for name, values in TEXT_LOGPROBS.items():
        assert [value for part in parts[:-1] for value in part[name]] == values


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_prompt_logprobs_are_by_id_with_rank(path):
    scripted = with_prompt()
    body = CHAT if "chat" in path else TEXT
    answer = (await post(path, body | {"prompt_logprobs": 1}, scripted)).json()
    given = answer if "chat" in path else answer["choices"][0]
    first, *others = given["prompt_logprobs"]
    assert first is None
    assert len(others) == len(OF_PROMPT)
    for token, shape in zip(OF_PROMPT, others, strict=True):
        assert shape == {
            str(A): {"logprob": -0.1, "rank": 1, "decoded_token": "a"},
            str(token.token): {
                "logprob": token.logprob,
                "rank": 2,
                "decoded_token": TOKENIZER.token_bytes(token.token).decode(),
            },
        }
    assert scripted.requests[0].sampling.num_prompt_logprobs == 1
    assert answer["choices"][0]["logprobs"] is None


async def test_a_very_unlikely_token_is_still_json():
    delta = Delta("a", (A,), (ShownToken(0, entry(A, float("-inf"))),))
    scripted = ScriptedGenerator(deltas=(delta,))
    answer = (await post("/v1/completions", TEXT | {"logprobs": 0}, scripted)).json()
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [-9999.0]


# --- echo -----------------------------------------------------------------------------------------


async def test_echo_puts_the_prompt_in_front():
    scripted = ScriptedGenerator()
    answer = (await post("/v1/completions", TEXT | {"echo": True}, scripted)).json()
    assert answer["choices"][0]["text"] == "TheThe bear."
    assert scripted.requests[0].sampling.num_prompt_logprobs == -1
    response = await post("/v1/completions", TEXT | {"echo": True, "n": 2})
    assert [choice["text"] for choice in response.json()["choices"]] == ["TheThe bear."] * 2


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("prompt", ["The", THE], ids=["text", "ids"])
async def test_an_echoed_prompt_has_its_logprobs(is_stream, prompt):
    scripted = with_prompt()
    body = TEXT | {"prompt": prompt, "echo": True, "logprobs": 1, "stream": is_stream}
    response = await post("/v1/completions", body, scripted)
    answers = events_of(response.text)[:-2] if is_stream else [response.json()]
    shapes = [answer["choices"][0] for answer in answers]
    assert "".join(shape["text"] for shape in shapes) == "Theaa"
    assert scripted.requests[0].sampling.num_prompt_logprobs == 1
    lists = {
        name: [value for shape in shapes for value in shape["logprobs"][name]]
        for name in shapes[0]["logprobs"]
    }
    names = [TOKENIZER.token_bytes(token_id).decode() for token_id in THE]
    starts = [len("".join(names[:i])) for i in range(len(names))]
    assert lists["tokens"] == [*names, "a", "a"]
    assert lists["text_offset"] == [*starts, 3, 4]
    assert lists["token_logprobs"] == [None, *(e.logprob for e in OF_PROMPT), -0.5, -0.5]
    assert lists["top_logprobs"][0] is None


async def test_special_tokens_of_an_echoed_prompt_have_their_place():
    prompt = f"{SPECIALS[2]}a{SPECIALS[0]}"
    prompt_ids = TOKENIZER.encode(prompt)
    entries = tuple(pack(entry(token_id, -1.0)) for token_id in prompt_ids[1:])
    scripted = ScriptedGenerator(deltas=(Delta("a", (A,), (SHOWN[0],), entries),))
    body = TEXT | {"prompt": prompt, "echo": True, "logprobs": 0}
    logprobs = (await post("/v1/completions", body, scripted)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [SPECIALS[2], "a", SPECIALS[0], "a"]
    assert logprobs["text_offset"] == [0, len(SPECIALS[2]), len(SPECIALS[2]) + 1, len(prompt)]
