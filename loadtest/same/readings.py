"""Asks both servers everything, so many requests at a time, and keeps what came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from loadtest.same.plan import ROUTES, Plan, Question, SideName, Way, merged
from loadtest.same.sides import CannotAsk, Reading, Server

Readings = Mapping[Question, Mapping[Way, Reading]]


async def read_all(
    plan: Plan,
    servers: Mapping[SideName, Server],
    on_read: Callable[[], object] = lambda: None,
) -> Readings:
    """Ask every question in every way; `on_read` is called after each answer.

    Raises:
        CannotAsk: a server refuses the first question, and so would refuse every other.
    """
    questions = plan.questions()
    readings: dict[Question, dict[Way, Reading]] = {question: {} for question in questions}
    for name, server in servers.items():
        await _probe(plan, name, server)
    for way in plan.ways():
        server = servers[way.side]
        gate = asyncio.Semaphore(way.concurrency)
        ordered = plan.in_order_of(way, questions)
        found = await asyncio.gather(
            *(_read(gate, plan, server, question, way, on_read) for question in ordered)
        )
        for question, reading in zip(ordered, found, strict=True):
            readings[question][way] = reading
    return readings


async def _read(
    gate: asyncio.Semaphore,
    plan: Plan,
    server: Server,
    question: Question,
    way: Way,
    on_read: Callable[[], object],
) -> Reading:
    async with gate:
        body = merged(plan.body(question, way.delivery, server.model), server.address.fields)
        reading = await server.read(ROUTES[question.route], body)
    on_read()
    return reading


async def _probe(plan: Plan, name: SideName, server: Server) -> None:
    for question in _first_of_each_route(plan.questions()):
        body = plan.body(question, plan.deliveries[0], server.model)
        reading = await server.read(ROUTES[question.route], merged(body, server.address.fields))
        if reading.problem:
            where = f"{name}, {server.address.url}, {ROUTES[question.route]}"
            raise CannotAsk(f"{where}: {reading.problem}")


def _first_of_each_route(questions: Sequence[Question]) -> list[Question]:
    return list({question.route: question for question in reversed(questions)}.values())
