"""The results of a comparison of two servers, and the conclusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from loadtest.same.counts import (
    Comparison,
    Fate,
    comparisons,
    differs,
    fate_of,
    rises_above,
    share_of,
)
from loadtest.same.difference import Difference, Place, first_difference
from loadtest.same.locate import locate
from loadtest.same.plan import Plan, Question, SideName
from loadtest.same.readings import Readings, read_all
from loadtest.same.sides import Address, Patience, Server, open_server

SAME, DIFFERENT, UNASKED = 0, 1, 2  # exit statuses


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Two texts of one question; `place` is None where it was not looked for or not found."""

    question: Question
    comparison: Comparison
    difference: Difference
    place: Place | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All that came, and where texts part.

    Attributes:
        plan: what was asked.
        models: that each side was asked for.
        readings: by question and way.
        findings: A against B first; each pair of texts of a question once.
    """

    plan: Plan
    models: Mapping[SideName, str]
    readings: Readings
    findings: Sequence[Finding]

    @property
    def fates(self) -> Counter[Fate]:
        """The number of questions by fate; see `fate_of`."""
        return Counter(fate_of(ways.items()) for ways in self.readings.values())

    @property
    def status(self) -> int:
        """The exit status: a difference counts for more than an answer that did not come."""
        if self.fates["differs"] or self.fates["unsteady"]:
            return DIFFERENT
        return UNASKED if self.fates["unanswered"] else SAME

    def verdict(self) -> list[str]:
        """Return what follows, in sentences."""
        fates, num = self.fates, len(self.readings)
        if self.status == SAME:
            return [f"SAME: each of {num} questions got one text in every way it was asked"]
        sentences = []
        if fates["differs"]:
            sentences.append(
                f"DIFFERENT: {fates['differs']} of {num} questions got one text from A and "
                f"another from B{self._how_sure()}"
            )
        for side in self.plan.sides:
            num_own = sum(self._is_unsteady(question, side) for question in self.readings)
            if num_own:
                sentences.append(
                    f"{side} IS NOT ITS OWN MATCH: {num_own} of {num} questions got several texts "
                    "from it, with the same seed"
                )
        if fates["unsteady"] and self.plan.num_runs > 1:
            betweens = [one for one in comparisons(self.plan) if one.kind == "between"]
            sentences += [self._against_floor(one) for one in betweens]
        if fates["unanswered"]:
            sentences.append(f"UNKNOWN: {fates['unanswered']} of {num} questions lack an answer")
        return sentences

    def _how_sure(self) -> str:
        if self.plan.num_runs > 1:
            return ", each the same whenever it was asked"
        return "; each was asked once, so a server that does not keep its seeds looks like this too"

    def _is_unsteady(self, question: Question, side: SideName) -> bool:
        own = [item for item in self.readings[question].items() if item[0].side == side]
        return fate_of(own) == "unsteady"

    def _against_floor(self, between: Comparison) -> str:
        floors = [one for one in comparisons(self.plan) if one.kind == "again"]
        near = [one for one in floors if one.first in (between.first, between.second)]
        share = share_of(self.readings, between)
        counts = f"{between.name}: {share.num_differing} of {share.num_compared} differ, "
        own = ", ".join(f"{one.first.side} {_count(self.readings, one)}" for one in near)
        if rises_above(self.readings, between, near):
            return f"{counts}which is more than each from itself ({own}): B is not A"
        return f"{counts}no more than chance allows beside each from itself ({own})"


async def compare(
    plan: Plan,
    addresses: Mapping[SideName, Address],
    patience: Patience,
    *,
    num_located: int,
    on_read: Callable[[], object] = lambda: None,
) -> Outcome:
    """Ask both sides everything and find where their texts part.

    Args:
        plan: what to ask.
        addresses: of its sides.
        patience: with each answer.
        num_located: of so many differences the token is looked for; each takes two more requests.
        on_read: called after each answer.

    Raises:
        CannotAsk: a server does not answer or refuses what the plan asks.
    """
    async with AsyncExitStack() as stack:
        servers: dict[SideName, Server] = {}
        for side in plan.sides:
            opening = open_server(addresses[side], patience)
            servers[side] = await stack.enter_async_context(opening)
        readings = await read_all(plan, servers, on_read)
        findings = _findings(plan, readings)
        located = [await _located(plan, servers, readings, one) for one in findings[:num_located]]
    return Outcome(
        plan=plan,
        models={side: server.model for side, server in servers.items()},
        readings=readings,
        findings=[*located, *findings[num_located:]],
    )


def _findings(plan: Plan, readings: Readings) -> list[Finding]:
    found: dict[object, Finding] = {}
    for comparison in comparisons(plan):
        for question, ways in readings.items():
            if not differs(comparison, ways):
                continue
            first, second = ways[comparison.first].essence, ways[comparison.second].essence
            difference = first_difference(first, second)
            assert difference is not None, "texts that differ part somewhere"
            finding = Finding(question=question, comparison=comparison, difference=difference)
            found.setdefault((question, first, second), finding)
    return list(found.values())


async def _located(
    plan: Plan, servers: Mapping[SideName, Server], readings: Readings, finding: Finding
) -> Finding:
    ways = readings[finding.question]
    first, second = finding.comparison.first, finding.comparison.second
    place = await locate(
        plan,
        servers,
        finding.question,
        (first, ways[first]),
        (second, ways[second]),
        finding.difference.at,
    )
    return Finding(
        question=finding.question,
        comparison=finding.comparison,
        difference=finding.difference,
        place=place,
    )


def _count(readings: Readings, comparison: Comparison) -> str:
    share = share_of(readings, comparison)
    return f"{share.num_differing} of {share.num_compared}"
