"""Limits that change while a router serves: what is taken, and what is refused how."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from deployments.config.live_limits import (
    ADMISSION_HEADROOM,
    LIVE_KEYS,
    changes_of,
    refuse_any,
    take_user_config,
    with_user_config,
)
from deployments.config.reference import keys_page
from deployments.config.schema import RouterConfig
from router.limits import SessionLimits, SpeculationLimits

BASE = RouterConfig(model_name="m", tokenizer_path="t", max_model_len=64, max_sessions=10)


def test_it_changes_what_it_names_and_nothing_else() -> None:
    changes: dict[str, Any] = {
        "max_sessions": 12,
        "speculation": {"enabled": False},
        "timeouts": {"draft_ms": 50},
    }
    config = with_user_config(BASE, changes)
    assert changes_of(BASE, config) == [
        "max_sessions: 10 -> 12",
        "speculation.enabled: True -> False",
        "timeouts.draft_ms: 500.0 -> 50.0",
    ]


@pytest.mark.parametrize("nothing", [None, {}])
def test_without_it_args_hold(nothing: object) -> None:
    assert with_user_config(BASE, nothing) == BASE


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"max_sesions": 1}, "user_config: unknown key 'max_sesions'"),
        ({"timeouts": {"draft_s": 1}}, "unknown key 'timeouts.draft_s'"),
        ({3: 1}, "unknown key '3'"),
        ({"model_name": "x"}, "model_name cannot change while it serves: change args.router.model"),
        ({"speculation": {"verification": "rejection"}}, "speculation.verification cannot change"),
        ({"max_sessions": 0}, r"max_sessions: .*greater than 0 \(got 0\)"),
        ({"max_sessions": None}, r"max_sessions: .* \(got None\)"),
        ({"timeouts": {"draft_ms": "soon"}}, r"timeouts.draft_ms: .* \(got 'soon'\)"),
        ({"timeouts": 5}, r"timeouts must be a mapping of keys \(got 5\)"),
        ([1], r"it must be a mapping of keys \(got \[1\]\)"),
        ({"speculation": {"prompt_lookup_min": 9}}, "at most prompt_lookup_max, 4"),
        (
            {"speculation": {"disable_above_temperature": 2.5}},
            r"disable_above_temperature: .* less than or equal to 2 \(got 2.5\)",
        ),
        (
            {"speculation": {"disable_by_batch_size": -1}},
            r"disable_by_batch_size: .* greater than or equal to 0 \(got -1\)",
        ),
        ({"reserved_sessions": 1}, "reserved_sessions: must be 0 without api_keys_file"),
        ({"max_sessions": 200}, "200 and max_queued_sessions 128 are 328 together, at most 276"),
    ],
)
def test_what_is_wrong_is_named(changes: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        with_user_config(BASE, changes)
    assert "\n" not in str(caught.value)


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"'a'.*model_name.*'timeouts\.b'"):
        with_user_config(BASE, {"a": 1, "model_name": "x", "timeouts": {"b": 1}})


async def test_a_replica_that_serves_keeps_its_limits(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[object] = []

    async def take(user_config: object) -> None:
        taken.append(with_user_config(BASE, user_config))

    logger = logging.getLogger("ray.serve")
    logger.addHandler(caplog.handler)
    try:
        assert await take_user_config(take, {"max_sessions": 5}, "Router", is_serving=True)
        assert not await take_user_config(take, {"max_session": 6}, "Router", is_serving=True)
        assert not await take_user_config(refuse_any, {"k": 1}, "Target", is_serving=True)
    finally:
        logger.removeHandler(caplog.handler)
    assert len(taken) == 1
    assert "Router: all stays as it was: user_config: unknown key 'max_session'" in caplog.text
    assert "Target: all stays as it was: user_config: only Router and Draft" in caplog.text


def test_what_decides_a_text_is_fixed_and_the_page_says_what_is_not() -> None:
    [said] = re.findall(r"## `user_config` of Router\n\n(.*)\n", keys_page())
    fixed = set(SpeculationLimits.model_fields) - LIVE_KEYS["speculation"]
    assert fixed == {"method", "verification"}
    assert "all of `speculation` but `method` and `verification`, all of `timeouts`" in said
    assert LIVE_KEYS["timeouts"] == set(SessionLimits.model_fields)
    assert all(f"`{key}`" in said for key in LIVE_KEYS[""])
    assert f"at most {ADMISSION_HEADROOM} times those of `args`" in said
