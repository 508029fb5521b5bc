"""The bench by kind of prompt: its prompts, its arithmetic, and what it calls a violation."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from loadtest.client.answers import Answer
from loadtest.kinds import WAYS, Chats, KindReport, Report, claims_of, measure_kind, read_prompts


def test_prompts_are_forty_of_ten_kinds() -> None:
    prompts = read_prompts()
    assert {kind: len(texts) for kind, texts in prompts.items()} == dict.fromkeys(prompts, 4)
    assert len(prompts) == 10
    assert len({text for texts in prompts.values() for text in texts}) == 40


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kinds.json"
    path.write_text('{"a": "b"}')
    with pytest.raises(ValueError, match="must map kinds to lists of prompts"):
        read_prompts(path)


class Scripted:
    """Answers 10 tokens; drafted for in half the time, and `wrong` in another text."""

    ways = WAYS

    def __init__(self, wrong: str = "") -> None:
        self._wrong = wrong

    def ask(self, text: str, way: str, max_tokens: int) -> Answer:
        seconds = 1.0 if way == "plain" else 0.5
        return Answer(
            text="other" if way == self._wrong else text,
            num_completion_tokens=max_tokens,
            ended_s=seconds,
            speculation={} if way == "plain" else {"mean_acceptance_length": 2.5},
        )


@pytest.mark.parametrize("wrong", ["", "k=5"])
def test_rates_ratios_and_texts_are_compared(wrong: str) -> None:
    report = Report()
    measure_kind(Scripted(wrong), "math", ["a", "b"], 10, 3, report)  # type: ignore[arg-type]  # has `ask`
    [one] = report.kinds
    assert one.tokens_per_s == {"plain": 10.0, "k=5": 20.0, "adaptive": 20.0}
    assert one.ratio_to_plain == {"plain": 1.0, "k=5": 2.0, "adaptive": 2.0}
    assert one.tokens_per_round["k=5"] == 2.5
    assert report.differing == (["math 1", "math 2"] if wrong else [])


def test_an_answer_is_read_from_its_stream() -> None:
    events = [
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"delta": {"content": "The "}}]},
        {"choices": [{"delta": {"content": "end"}, "finish_reason": "stop"}]},
        {
            "choices": [],
            "usage": {"completion_tokens": 4},
            "metrics": {"speculative_decoding": {"mean_acceptance_length": 2.0}},
        },
    ]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    asked: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return httpx.Response(200, text=stream)

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://x") as client:
        chats = Chats(client, "m")
        got = chats.ask("Say it", "k=5", 7)
        chats.ask("Say it", "k=5", 7)
    assert (got.text, got.num_completion_tokens) == ("The end", 4)
    assert got.speculation == {"mean_acceptance_length": 2.0}
    assert asked[0]["speculation"] == {"k": 5}
    assert asked[0]["max_tokens"] == 7
    assert asked[0]["cache_salt"] != asked[1]["cache_salt"]


def test_heads_are_held_to_what_suffix_decoding_gains() -> None:
    def found(kind: str, **gains: float) -> KindReport:
        ratios = {"plain": 1.0, **gains}
        return KindReport(
            kind=kind,
            num_prompts=1,
            tokens_per_s=ratios,
            ratio_to_plain=ratios,
            tokens_per_round=ratios,
        )

    claims = claims_of(
        [
            found("writing", suffix=1.0, heads=1.6, adaptive=1.6),
            found("extraction", suffix=2.5, heads=1.4, adaptive=2.0),
            found("no heads", adaptive=1.0),
        ]
    )
    assert [(claim.text, claim.is_met) for claim in claims] == [
        ("writing: heads / plain", True),
        ("writing: both / the better of the two", True),
        ("extraction: both / the better of the two", False),
    ]
