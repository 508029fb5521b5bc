"""Budgets of tokens a minute, and what clients used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deployments.api.keys import ANYBODY, Tenant
from deployments.ingress.charges import Charges
from deployments.serve.instruments import Meters
from models.protocol.errors import Overloaded
from router.types import GenerationRequest
from tests.fakes.clock import Clock
from tests.fakes.sessions import asked

ALICE = Tenant(name="alice", tokens_per_minute=600)  # ten a second


def request(num_prompt_tokens: int = 100) -> GenerationRequest:
    return asked(prompt_ids=(1,) * num_prompt_tokens)


def spend(charges: Charges, tenant: Tenant, *, prompt: int, answer: int) -> None:
    for sink in charges.of(tenant, request(prompt)):
        sink.first_tokens(0, 1, 0.1)
        sink.more_tokens(0, answer - 1, 0.1)


def test_a_budget_is_used_up_and_fills_again() -> None:
    clock = Clock()
    charges = Charges(Meters({}), clock)
    charges.refuse_when_empty(ALICE)
    spend(charges, ALICE, prompt=500, answer=99)
    charges.refuse_when_empty(ALICE)  # one token is left
    spend(charges, ALICE, prompt=10, answer=41)
    with pytest.raises(Overloaded, match="alice has used its 600 tokens a minute") as refusal:
        charges.refuse_when_empty(ALICE)
    assert refusal.value.retry_after_s == pytest.approx(5.1)
    clock.now_s += 4.9
    with pytest.raises(Overloaded):
        charges.refuse_when_empty(ALICE)
    clock.now_s += 0.2
    charges.refuse_when_empty(ALICE)


def test_tokens_that_a_client_sends_back_are_charged_like_a_prompt() -> None:
    charges = Charges(Meters({}), Clock())
    for sink in charges.of(ALICE, replace(request(10), known_ids=(1,) * 580)):
        sink.first_tokens(0, 10, 0.1)
    with pytest.raises(Overloaded):
        charges.refuse_when_empty(ALICE)


def test_a_budget_is_never_more_than_a_minute_of_it() -> None:
    clock = Clock()
    charges = Charges(Meters({}), clock)
    charges.refuse_when_empty(ALICE)
    clock.now_s += 3600.0
    spend(charges, ALICE, prompt=550, answer=50)
    with pytest.raises(Overloaded):
        charges.refuse_when_empty(ALICE)


def test_clients_have_budgets_of_their_own_and_some_have_none() -> None:
    charges = Charges(Meters({}), Clock())
    spend(charges, ALICE, prompt=9_000, answer=1)
    charges.refuse_when_empty(Tenant(name="bob", tokens_per_minute=600))
    free = Tenant(name="carol")
    spend(charges, free, prompt=9_000, answer=1)
    charges.refuse_when_empty(free)
    assert charges.of(ANYBODY, request()) == ()


def test_tokens_are_counted_by_client_and_the_label_is_bounded() -> None:
    charges = Charges(meters := Meters({}), Clock())
    spend(charges, ALICE, prompt=500, answer=100)
    for number in range(200):
        spend(charges, Tenant(name=f"c{number}"), prompt=1, answer=1)
    page = meters.text().decode()
    assert 'outrider:client_tokens_total{client="alice"} 600.0' in page
    assert 'outrider:client_tokens_total{client="other"} 202.0' in page
    assert page.count("outrider:client_tokens_total{") == 101
