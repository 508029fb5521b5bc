"""One answer as it was timed, and the lines that such answers make; knows no engine and no server.

Two servers are compared by the time of a token after the first. The prefill is left out, because an
answer of another length would change its weight. Whole answers are kept next to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Holds one greedy answer. Times in seconds.

    Attributes:
        num_tokens: of the answer, at least 1.
        num_decoded: tokens that came after the first piece of the answer, which is mostly one.
        decode_s: from the first piece to the last.
        whole_s: from the question to the last token.
        token_ids: of the answer; empty where they were not told.
        num_drafted, num_accepted: draft tokens that were verified, and those of them accepted.
    """

    num_tokens: int
    num_decoded: int
    decode_s: float
    whole_s: float
    token_ids: tuple[int, ...] = ()
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(frozen=True)
class Key:
    """Says what a line is: lines that differ in `side` and `way` alone are compared."""

    where: str  # engine: by the server's own clock; http: by the client's
    threads: int
    task: str
    side: str  # "ours", "llama.cpp" or "transformers"
    way: str  # "plain", "ngram k=5", ...


@dataclass
class PeerLine:
    """All runs of a line: every run is one answer to each prompt of its task, in their order."""

    key: Key
    runs: list[list[Timed]] = field(default_factory=list)

    def decode_ms(self, turns: Sequence[int] | None = None) -> list[float]:
        """Milliseconds per token after the first, by run and prompt; `turns` None: of all runs."""
        return [one.decode_s * 1e3 / max(one.num_decoded, 1) for one in self._answers(turns)]

    def whole_ms(self, turns: Sequence[int] | None = None) -> list[float]:
        """Milliseconds per token with the prompt's reading, as `decode_ms`."""
        return [one.whole_s * 1e3 / one.num_tokens for one in self._answers(turns)]

    def _answers(self, turns: Sequence[int] | None) -> list[Timed]:
        runs = self.runs if turns is None else [self.runs[turn] for turn in turns]
        return [one for run in runs for one in run]

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first per second of their time, of all runs together."""
        answers = self._answers(None)
        return sum(one.num_decoded for one in answers) / sum(one.decode_s for one in answers)

    @property
    def acceptance(self) -> float:
        """Accepted / drafted tokens; 0.0 without drafts, or where they are not told."""
        answers = self._answers(None)
        num_drafted = sum(one.num_drafted for one in answers)
        return sum(one.num_accepted for one in answers) / max(num_drafted, 1)

    def record(self) -> dict[str, Any]:
        """Return the line as a dict for the JSON file; `of_record` reads it."""
        return {
            **vars(self.key),
            "tokens_per_s": round(self.tokens_per_s, 2),
            "acceptance": round(self.acceptance, 3),
            **{
                name: [[_rounded(getattr(one, name)) for one in run] for run in self.runs]
                for name in _KEPT
            },
        }

    @classmethod
    def of_record(cls, values: dict[str, Any]) -> PeerLine:
        """Read the line that `record` wrote, without its token ids."""
        key = Key(*(values[name] for name in ("where", "threads", "task", "side", "way")))
        columns = [values[name] for name in _KEPT]
        runs = [
            [Timed(**dict(zip(_KEPT, figures, strict=True))) for figures in zip(*rows, strict=True)]
            for rows in zip(*columns, strict=True)
        ]
        return cls(key, runs)


_KEPT = ("num_tokens", "num_decoded", "decode_s", "whole_s", "num_drafted", "num_accepted")


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else round(value, 5)
