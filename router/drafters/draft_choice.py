"""Chooses the draft model of a session: the one that promises most tokens a millisecond.

The choice may change with every session under a rule by which no text depends on the draft. The
promise of a draft model follows from its acceptance in the task class, at the best k. It is over
the present times of passes and of its steps. One that is hardly known is tried first, and each is
tried again now and then. One whose answers are replayed (`compare_share`) is known without being
tried. Shares of the sessions may be pinned to draft models, the same sessions whenever they come
again. The others are chosen.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from models.protocol.rules import RULES
from router.planning.acceptance import AcceptancePool
from router.planning.costs import PassCosts
from router.ports import DrafterTraits, TaskClass

_FIRST_SESSIONS = 3  # for each draft model and task class, before any is chosen by its promise
_EXPLORED_ONE_IN = 24  # sessions of a class


class DraftChoice:
    """Chooses, and counts what was chosen.

    Args:
        costs: of passes and of steps of each draft model.
        acceptance: what is known of each draft model, by its name and a task class.
        num_sessions: that are drafted for beside the new one.
        chosen: how often each was, by its name and a task class; it goes on counting there.
    """

    def __init__(
        self,
        costs: PassCosts,
        acceptance: Mapping[tuple[str, TaskClass], AcceptancePool],
        num_sessions: Callable[[], int],
        chosen: Counter[tuple[str, TaskClass]] | None = None,
    ) -> None:
        self._costs = costs
        self._num_sessions = num_sessions
        self._acceptance = acceptance
        self._chosen = Counter() if chosen is None else chosen

    def choose(
        self,
        drafts: Sequence[DrafterTraits],
        task: TaskClass,
        *,
        verification: str,
        shares: Mapping[str, float],
        key: str,
        max_length: int,
    ) -> str:
        """Return the name of a session's draft model.

        Args:
            drafts: of which one is chosen, at least one.
            task: class of the session.
            verification: its rule; where texts depend on the draft, the first is always taken.
            shares: of the sessions that are pinned, by name; at most 1 together.
            key: names the session; equal keys fall into the same share.
            max_length: the highest k.
        """
        names = [draft.name for draft in drafts]
        if RULES[verification].depends_on_draft:
            return names[0]
        pinned = pinned_draft(names, shares, key)
        if pinned is not None:
            return pinned
        name = self._by_earnings(drafts, task, max_length)
        self._chosen[name, task] += 1
        return name

    def _by_earnings(
        self, drafts: Sequence[DrafterTraits], task: TaskClass, max_length: int
    ) -> str:
        counts = {draft.name: self._chosen[draft.name, task] for draft in drafts}
        rarest = min(counts, key=lambda name: counts[name])
        is_known = all(self._costs.is_known(draft) for draft in drafts)
        total = sum(counts.values())
        if counts[rarest] < _FIRST_SESSIONS or not is_known or total % _EXPLORED_ONE_IN == 0:
            return rarest
        rates = {name: self.rate(name, task, max_length) for name in counts}
        return max(rates, key=lambda name: rates[name])

    def rate(self, name: str, task: TaskClass, max_length: int) -> float:
        """Tokens a millisecond of one session at its best k, k = 0 among them."""
        num_sessions = self._num_sessions() + 1
        pool = self._acceptance.get((name, task))
        acceptances = [] if pool is None else pool.acceptances()
        step_ms = self._costs.step_ms(name, num_sessions)
        best, tokens, survival = 0.0, 1.0, 1.0
        for length in range(max_length + 1):
            if length > 0 and acceptances:
                survival *= acceptances[min(length, len(acceptances)) - 1]
                tokens += survival
            took_ms = self._costs.pass_ms(num_sessions * (1 + length)) + length * step_ms
            best = max(best, tokens / took_ms if took_ms > 0.0 else 0.0)
        return best


def pinned_draft(names: Sequence[str], shares: Mapping[str, float], key: str) -> str | None:
    """Return the draft model that the session `key` is pinned to; None if it may be chosen.

    Keys are spread evenly over [0, 1), of which each draft model in turn has its share.
    """
    place = random.Random(key).random()
    for name in names:
        place -= shares.get(name, 0.0)
        if place < 0.0:
            return name
    return None
