"""Mistakes that parts of the fuzzer must see; `test_failures` has those of a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from deployments.api.history import calls
from deployments.api.schemas import sampling_fields
from deployments.api.transport.encodings import _Inflating
from deployments.api.transport.paths import PlainPaths
from deployments.api.writing.sse import EventStream
from loadtest.fuzz.campaign import Limits, PartResult, run_one, run_part
from loadtest.fuzz.folders import damage, part
from loadtest.fuzz.folders.part import open_folders
from loadtest.fuzz.parts import PARTS
from models.engine import sampler
from models.grammar import compiler
from models.grammar.schema import numbers, source
from models.protocol.messages import Grammar
from models.sampling.penalties import TokenHistory

SEED = 20
Patch = pytest.MonkeyPatch


def noise_hangs_on_the_batch(patch: Patch) -> None:
    draw = sampler.draw_from_logits  # type: ignore[attr-defined]  # a name it imports

    def shifted(logits: Any, samplings: Any, positions: Any) -> Any:
        extra = int(len(positions) > 4)  # nobody's, but for who shares a pass
        return draw(logits, samplings, [position + extra for position in positions])

    patch.setattr(sampler, "draw_from_logits", shifted)


def rollback_forgets_the_penalties(patch: Patch) -> None:
    """Refused draft tokens go on being counted. (KV cannot be left stale in this way: the rows from
    the anchor on are computed again by every verify.)"""
    patch.setattr(TokenHistory, "remove", lambda history, start, ids: None)


def a_bound_is_forgotten(patch: Patch) -> None:
    """Texts lose their longest length."""
    fit = numbers.fit_bounds

    def forgetful(schema: Any, places: Any, complaints: Any) -> None:
        fit(schema, places, complaints)
        for _, inner in places.walk(schema):
            inner.pop("maxLength", None)

    patch.setattr(source, "fit_bounds", forgetful)


def nothing_is_loosened(patch: Patch) -> None:
    """A grammar that is refused is not tried again without its parts."""

    def refusing(grammar: Grammar, limits: Any, compiles: Any, whole: Any) -> Any:
        return grammar, whole(grammar)

    patch.setattr(compiler, "settled", refusing)


def arguments_must_be_an_object(patch: Patch) -> None:
    patch.setattr(calls, "read_arguments", lambda value: json.loads(value))


def a_null_is_a_value(patch: Patch) -> None:
    patch.setattr(sampling_fields, "without_nulls", lambda value: value)


def signs_of_life_are_no_comments(patch: Patch) -> None:
    patch.setattr(EventStream, "sign", b"waiting\n\n")


def a_slash_too_many_is_another_route(patch: Patch) -> None:
    patch.setattr(PlainPaths, "_plain", lambda paths, asked: asked)


def a_packed_body_has_no_limit(patch: Patch) -> None:
    patch.setattr(_Inflating, "_count", lambda decoder, piece: None)


MISTAKES: list[tuple[str, int, Callable[[Patch], None]]] = [
    ("engines", 20, noise_hangs_on_the_batch),
    ("engines", 20, rollback_forgets_the_penalties),
    ("tools", 60, a_bound_is_forgotten),
    ("tools", 60, nothing_is_loosened),
    ("histories", 10, arguments_must_be_an_object),
    ("histories", 10, a_null_is_a_value),
    ("proxies", 30, signs_of_life_are_no_comments),
    ("proxies", 30, a_slash_too_many_is_another_route),
    ("proxies", 30, a_packed_body_has_no_limit),
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "num_cases", "mistake"), MISTAKES, ids=[mistake.__name__ for _, _, mistake in MISTAKES]
)
async def test_a_mistake_is_seen_and_its_seed_repeats_it(
    name: str, num_cases: int, mistake: Callable[[Patch], None]
) -> None:
    told: list[str] = []
    limits = Limits(num_cases, 1)
    with Patch.context() as patch:
        mistake(patch)
        report = await run_part(name, PARTS[name], SEED, 1e6, limits=limits, log=told.append)
        assert report.failures
        failure = report.failures[0]
        assert f"  repeat: {failure.command}" in told
        again = PartResult(name)
        async with PARTS[name]() as run_case:
            for _ in range(20):  # the draft lengths are planned live, so who shares a pass differs
                await run_one(again, run_case, failure.seed, told.append)
                if again.failures:
                    break
        assert [one.seed for one in again.failures] == [failure.seed]
    healthy = PartResult(name)
    async with PARTS[name]() as run_case:
        await run_one(healthy, run_case, failure.seed, told.append)
    assert healthy.failures == [], "it is gone without the mistake"


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_check_that_skips_the_tokenizer_is_seen(monkeypatch: Patch) -> None:
    """Damage to a tokenizer alone, which the check then promises and the model does not hold."""
    monkeypatch.setattr(damage, "_KINDS", (partial(damage.cut, names=(damage.WORDS,)),))
    run = partial(
        run_part, "folders", open_folders, SEED, 1e6, limits=Limits(3, 1), log=lambda line: None
    )
    assert (await run()).failures == []
    monkeypatch.setattr(part, "file_faults", lambda config: [])
    [complaint, *_] = (await run()).failures[0].complaints
    assert "the check found nothing, then: " in complaint
    assert "tokenizer.json" in complaint
