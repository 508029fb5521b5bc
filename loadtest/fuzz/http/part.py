"""Part `http`: no body, header or route brings a 500, a wrong shape, or a request without end."""

from __future__ import annotations

import asyncio
import random
import traceback

from loadtest.fuzz.cases import Outcome, in_world
from loadtest.fuzz.engines.world import left_tasks
from loadtest.fuzz.http.answers import wrong_with
from loadtest.fuzz.http.attacks import Attack, random_attack
from loadtest.fuzz.http.world import HttpWorld, ask, http_world

_NUM_REQUESTS = 8
_LIMIT_S = 60.0  # limit of one request; the longest takes a second


async def _case(seed: int, world: HttpWorld) -> Outcome:
    rng = random.Random(seed)
    attacks = [random_attack(rng) for _ in range(_NUM_REQUESTS)]
    before = asyncio.all_tasks()
    outcome = Outcome()
    outcome.counts["cases"] += 1
    for found in await asyncio.gather(*(_attack(world, attack) for attack in attacks)):
        outcome.add(found)
    outcome.complaints += await world.left() + await left_tasks(before)
    return outcome


open_http = in_world(http_world, _case)


async def _attack(world: HttpWorld, attack: Attack) -> Outcome:
    outcome = Outcome()
    outcome.counts["requests"] += 1
    outcome.counts["valid"] += attack.is_valid
    shown = b"".join(attack.chunks)[:400]
    try:
        async with asyncio.timeout(_LIMIT_S):
            answer = await ask(world.app, attack)
    except TimeoutError:
        complaints = [f"no answer within {_LIMIT_S:g} s"]
    except Exception:  # noqa: BLE001 - an application that raises is a finding
        complaints = [traceback.format_exc(limit=-6)]
    else:
        complaints = wrong_with(attack, answer)
        outcome.counts[f"status {answer.status or 'none, client gone'}"] += 1
    outcome.complaints += [
        f"{attack.method} {attack.path[:60]} {shown!r}: {complaint}" for complaint in complaints
    ]
    return outcome
