"""Shared by the sessions of a router: recent answers, and the quality of matches.

Answers are kept by `cache_salt`, like prefixes in the engines. A session never drafts from text of
another salt. The speed of an answer would show that the text was there. Beyond the limits the
answers of the salt that was used longest ago go first, of one salt the oldest.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.protocol.messages import Sampling
from models.protocol.rules import RULES
from router.drafters.repeats.match_odds import OddsPool
from router.drafters.repeats.suffix_index import SuffixIndex
from router.ports import TaskClass


class TextMemory:
    """Recent answers of a router and the odds of their matches."""

    def __init__(self) -> None:
        self._recent: dict[str, SuffixIndex] = {}  # by salt, the last to be used at the end
        self._odds: dict[TaskClass, OddsPool] = {}
        self._predicted_odds: dict[TaskClass, OddsPool] = {}

    def odds(self, task_class: TaskClass) -> OddsPool:
        """Return the odds of matches in texts of that class."""
        return self._odds.setdefault(task_class, OddsPool())

    def predicted_odds(self, task_class: TaskClass) -> OddsPool:
        """Return the odds of matches with clients' predictions of such texts."""
        return self._predicted_odds.setdefault(task_class, OddsPool())

    def recent(self, cache_salt: str) -> SuffixIndex | None:
        """Return the answers of a salt; None if there are none."""
        index = self._recent.pop(cache_salt, None)
        if index is not None:
            self._recent[cache_salt] = index
        return index

    @property
    def num_answers(self) -> int:
        """Answers that are held, of all salts."""
        return sum(index.num_texts for index in self._recent.values())

    @property
    def num_tokens(self) -> int:
        """Tokens that they have."""
        return sum(len(index) for index in self._recent.values())

    def add(
        self, cache_salt: str, answer: Sequence[int], *, max_answers: int, max_tokens: int
    ) -> None:
        """Keep an answer, or the end of one that is too long, within the limits."""
        kept = answer[-max_tokens + 1 :] if max_tokens > 1 else ()  # a mark goes with it
        if not kept or max_answers == 0:
            return
        index = self.recent(cache_salt)
        if index is None:
            index = self._recent[cache_salt] = SuffixIndex()
        index.extend(kept)
        index.end_text()
        while self.num_answers > max_answers or self.num_tokens > max_tokens:
            self._drop_one()

    def _drop_one(self) -> None:
        salt, index = next(iter(self._recent.items()))
        index.drop_oldest()
        if index.num_texts == 0:
            del self._recent[salt]


def may_draft_from_answers(sampling: Sampling) -> bool:
    """Return whether text of another answer may be drafted.

    A rule by which the text depends on the draft must not be given one that an equal seed sampled.
    Its noise would decide on its own choice.
    """
    return sampling.temperature == 0 or not RULES[sampling.verification].depends_on_draft
