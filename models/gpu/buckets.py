"""Chooses the sizes of pass that are captured as CUDA graphs, and each pass's graph. Plain ints.

A captured graph replays one fixed shape, so passes are padded up to the next bucket. A bucket has a
number of rows and a bound on the rows of one session. Kernels choose their tiles by that bound. The
bound is 1 for draft and decode steps, `VERIFY_ROWS` for verify rounds. Their sizes are spaced so
that a pass is never padded by more than a third, or by 7 rows.

A bucket also has a number of sessions. Kernels launch thread blocks for each, with rows or without.
A chunk in 256 sessions of an 8B model has 24,000 idle ones a layer. So rounds and chunks have two
buckets of a size, one of them for few sessions. Padded rows share spare sessions.

Passes with chunks of prompts have buckets of their own, up to `PROMPT_ROWS` rows. These let a
session have all of the rows. Such a pass takes as long as reading the weights, however many of its
rows are padding. Launching it kernel by kernel takes about as long: 5 ms of the host. That is for
32 layers of 9 launches (5 to 30 us each, estimated). An 8B model on an H100 computes for 4.5 ms.
Streams beside the chunk would wait for that. Longer passes compute for longer than they take to
launch, and padding them would cost more than it gains.

If memory exceeds its bound, the largest are missing. Their passes compute the longest, so launches
kernel by kernel cost them the least.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

VERIFY_ROWS = 16  # an anchor and 15 draft tokens; drafts are rarely longer than 8
# 64 sessions with drafts of 15. A pass of more rows computes for longer than it takes to launch: of
# an 8B model on an H100 some 30 ms (counted from its operations) to 10 - 16 ms (launches timed).
MAX_GRAPH_ROWS = 1024
PROMPT_ROWS = 256  # an H100 multiplies some 300 rows while it reads a weight
_PROMPT_STEP = 64
_MEAN_ROWS = 4  # of a session, in buckets for few sessions: rounds have drafts of 3 or more


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """A shape of pass.

    Attributes:
        num_rows: rows, padded ones included.
        session_rows: rows that one session may have.
        num_sessions: sessions, spare ones for padded rows included.
    """

    num_rows: int
    session_rows: int
    num_sessions: int

    def holds(self, session_rows: Sequence[int]) -> bool:
        """Return whether a pass fits, given the rows of each of its sessions."""
        num_padded = self.num_rows - sum(session_rows)
        num_spare = -(-num_padded // self.session_rows)
        return (
            num_padded >= 0
            and max(session_rows) <= self.session_rows
            and len(session_rows) + num_spare <= self.num_sessions
        )


def row_sizes(max_rows: int) -> list[int]:
    """Return the numbers of rows that have a bucket, rising to exactly `max_rows`."""
    sizes = [1, 2, 4]
    step = 8
    while sizes[-1] < max_rows:
        sizes.append(sizes[-1] - sizes[-1] % step + step)
        if sizes[-1] >= 8 * step:
            step *= 2
    return [size for size in sizes if size < max_rows] + [max_rows]


class BucketPlan:
    """The buckets there are: those wanted until capturing is done, then those captured.

    Args:
        max_rows: rows of the largest bucket; at most a pass's own limit is of use.
        session_rows: bounds on one session's rows in steps and rounds, rising.
        prompt_rows: rows of the largest pass with a chunk of a prompt that is replayed.
        max_len: tokens of the longest session, which is all the rows that it can have; None: many.
    """

    def __init__(
        self,
        max_rows: int,
        session_rows: Sequence[int] = (1, VERIFY_ROWS),
        prompt_rows: int = PROMPT_ROWS,
        max_len: int | None = None,
    ) -> None:
        if max_rows < 1 or not session_rows or min(session_rows) < 1:
            raise ValueError(f"no buckets of {max_rows} rows, {list(session_rows)} per session")
        last_prompt = min(max_rows, prompt_rows)
        most = max_rows if max_len is None else max_len
        prompts = range(_PROMPT_STEP, last_prompt + 1, _PROMPT_STEP)
        bounds = {(num_rows, bound) for num_rows in row_sizes(max_rows) for bound in session_rows}
        bounds |= {(num_rows, num_rows) for num_rows in prompts}
        self.buckets = sorted(
            {
                Bucket(num_rows, min(bound, num_rows, most), num_sessions)
                for num_rows, bound in bounds
                for num_sessions in _session_counts(num_rows, bound)
            }
        )

    def keep(self, captured: Iterable[Bucket]) -> None:
        """Forget the buckets that were not captured."""
        kept = set(captured)
        self.buckets = [bucket for bucket in self.buckets if bucket in kept]

    def choose(self, session_rows: Sequence[int]) -> Bucket | None:
        """Return the smallest bucket for a pass; None: it runs without one.

        Args:
            session_rows: rows of each session of the pass.
        """
        return min((one for one in self.buckets if one.holds(session_rows)), default=None)


def _session_counts(num_rows: int, bound: int) -> set[int]:
    """Return the numbers of sessions that have a bucket of `num_rows`."""
    has_few = bound > 1 and num_rows >= _PROMPT_STEP
    return {num_rows // _MEAN_ROWS, num_rows} if has_few else {num_rows}
