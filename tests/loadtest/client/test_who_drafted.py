"""Who drafted a load, and why the draft model did not, from answers as the service writes them."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.client.answers import Answer
from loadtest.client.who_drafted import WhoDrafted


def answer(drafted: dict[str, int], accepted: dict[str, int], *whys: dict[str, Any]) -> Answer:
    rounds = [{"k": why.pop("k"), "why": why} for why in whys]
    return Answer(
        speculation={
            "num_spec_steps": 4,
            "num_draft_tokens_by": drafted,
            "num_accepted_draft_tokens_by": accepted,
        },
        details=[{"index": 0, "rounds": [*rounds, {"k": None, "why": None}]}] if whys else [],
    )


def why(k: int, drafting: float, plain: float) -> dict[str, Any]:
    return {
        **{"k": k, "num_sessions": 6, "step_ms": 0.42, "pass_ms": 0.8},
        **{"drafting_tokens_per_ms": drafting, "plain_tokens_per_ms": plain},
    }


def test_k_is_a_number_and_shares_are_by_who_drafted() -> None:
    drafts = WhoDrafted()
    drafts.take("chat", answer({"draft_model": 6, "suffix": 4}, {"draft_model": 5}))
    drafts.take("record", answer({"forced": 30}, {"forced": 30}))
    further = WhoDrafted()
    further.take("chat", answer({"tiny": 3, "ngram": 1, "heads": 2}, {}))
    assert further.content()["whole"]["draft_model_share"] == 0.5, "tiny is a draft model"
    content = drafts.content()
    assert content["kinds"]["chat"]["k"] == 2.5
    assert content["kinds"]["chat"]["acceptance"] == 0.5
    assert content["whole"]["num_draft_tokens_by"] == {
        **{"draft_model": 6, "suffix": 4, "forced": 30}
    }
    assert content["whole"]["draft_model_share"] == pytest.approx(0.15)
    assert content["in_words"] == "The draft model drafted 6 of 40 draft tokens."
    [head, chat, record, whole, _] = drafts.lines()
    assert head.split()[-3:] == ["draft_model", "forced", "suffix"]
    assert chat.split() == ["chat", "2.50", "50%", "6", "0", "4"]
    assert record.split() == ["record", "7.50", "100%", "0", "30", "0"]
    assert whole.split() == ["all", "5.00", "88%", "6", "30", "4"]


def test_where_the_draft_model_drafts_little_the_planners_reason_is_told() -> None:
    drafts = WhoDrafted()
    plain = [why(0, 2.0, 3.0), why(0, 2.2, 2.8), why(0, 1.9, 2.9)]
    drafts.take("chat", answer({"draft_model": 2, "suffix": 98}, {}, *plain, why(3, 3.0, 2.0)))
    words = drafts.in_words()
    assert words.startswith(
        "The draft model drafted 2 of 100 draft tokens. The planner chose k = 0 "
    )
    assert "in 75% of the 4 rounds that were looked at" in words
    assert (
        "With 6 requests at once it expected 2.00 tokens/ms with the draft model and 2.90" in words
    )
    assert "a draft step took 0.42 ms, a pass of the target 0.80 ms" in words
    assert "A step that long beside a pass hardly pays" in words
    assert words.endswith("With --k 4 the draft model drafts whether it pays or not.")
