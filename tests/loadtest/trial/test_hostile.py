"""The hostile load: what its bodies are, and that it notices what a service does wrong."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from loadtest.client.attacks import (
    Attack,
    Attackers,
    Wave,
    fitting_logprob_requests,
    hostile_schemas,
    large_bodies,
    logprob_requests,
    ordinary_schema,
    refusal_complaint,
)
from loadtest.experiments.crowds import HOSTILE
from loadtest.trial.scene import Scene, Terms
from tests.fakes.scripted_server import answer, scripted_server
from tests.harness.waiting import block_until

LIMIT_BYTES = 1_048_576
NAMED = {"message": "prompt: 99 tokens, the limit is 10", "param": "prompt", "code": "x"}


def refusal(**changes: object) -> str:
    return json.dumps({"error": {**NAMED, **changes}})


def test_attacks_are_as_large_as_they_may_be_and_all_different() -> None:
    bodies, schemas = large_bodies("m", LIMIT_BYTES), hostile_schemas("m")
    assert len({attack.body for attack in bodies}) == 5
    for attack in bodies:
        assert 0.8 * LIMIT_BYTES < len(attack.body) <= LIMIT_BYTES, attack.name
        json.loads(attack.body)
    assert len({attack.body for attack in schemas}) == 100
    assert max(len(attack.body) for attack in schemas) < 1000
    assert 45_000 < len(ordinary_schema("m").body) < 65_536
    [beyond], [fitting] = logprob_requests("m"), fitting_logprob_requests("m", 1024)
    lengths = [len(json.loads(one.body)["prompt"]) for one in (beyond, fitting)]
    assert lengths == [32_768, 1023]
    assert (beyond.may_be_served, fitting.may_be_served) == (False, True)


@pytest.mark.parametrize(
    ("status", "content", "complaint"),
    [
        (400, refusal(), ""),
        (413, refusal(param=None), ""),
        (429, refusal(message="full"), ""),
        (200, "{}", "served"),
        (500, refusal(), "status 500"),
        (0, "ReadTimeout: ", "status 0"),
        (400, "nonsense", "without an error"),
        (400, refusal(param=None), "names no field"),
        (400, refusal(message="prompt: the limit is 10"), "limit and value"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_refusals_must_name_field_limit_and_value(
    status: int, content: str, complaint: str
) -> None:
    found = refusal_complaint(Attack("a", "/", b""), status, content)
    assert complaint in found
    assert bool(complaint) == bool(found)


def test_what_may_be_served_may_be_served() -> None:
    assert refusal_complaint(Attack("a", "/", b"", may_be_served=True), 200, "{}") == ""


def test_the_ratio_is_that_of_medians() -> None:
    gaps = {"quiet": (0.1, 0.2, 0.9), "schemas": (0.9,), "all at once": (0.3, 0.4, 0.2)}
    scene = Scene(terms=Terms(**HOSTILE.terms))
    for kind, several in gaps.items():
        for gap_s in several:
            scene.note("streams", kind, {"longest_gap_s": gap_s})
    [claim] = HOSTILE.claims_of(scene.result.rows, scene.terms)
    assert claim.value == pytest.approx(1.5)
    assert (claim.relation, claim.goal) == ("at most", 1.5)


@pytest.fixture
def refusing_server() -> Iterator[str]:
    """Refuses each even request by name and each odd one without."""
    bodies = itertools.cycle([refusal().encode(), b"no"])
    with scripted_server(lambda handler: answer(next(bodies), 400)(handler)) as server:
        yield server.url


def test_attackers_share_the_attacks_and_note_each_answer(refusing_server: str) -> None:
    attacks = [Attack(name, "/", b"{}") for name in ("one", "two")]
    attackers = Attackers(refusing_server, [Wave(1, attacks)], relentless=True)
    attackers.start()
    block_until(lambda: attackers.answers.total() >= 4)
    attackers.stop()
    assert attackers.answers["one: 400"] - attackers.answers["two: 400"] in (0, 1)
    assert set(attackers.longest_s) == {"one", "two"}
    assert attackers.complaints
    assert all("two: status 400 without" in line for line in attackers.complaints)


def test_each_attack_is_sent_once_unless_relentless(refusing_server: str) -> None:
    attacks = [Attack(str(number), "/", b"{}") for number in range(7)]
    attackers = Attackers(refusing_server, [Wave(3, attacks)])
    attackers.start()
    attackers.stop()
    assert attackers.answers == {f"{number}: 400": 1 for number in range(7)}
