"""Results of a stretch of arrivals, and the limits for an overloaded service. Pure.

A request is good if its answer is whole and right and its first text came in time. Goodput is the
number of good answers per second that ended in the measured time. A rate of arrivals is sustained
if nearly all arrivals of the measured time became good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.client.client import Reply

SUSTAINED = 0.95  # share of arrivals that must become good


@dataclass(frozen=True, slots=True)
class Sent:
    """One arrival: when it was due, and how it went. Times by `time.perf_counter`."""

    due_s: float
    reply: Reply

    @property
    def late_s(self) -> float:
        """The delay of the load generator itself."""
        return self.reply.began_s - self.due_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One rate of arrivals, measured. Seconds and requests per second; None: there were none.

    Attributes:
        rate_per_s: of arrivals, as asked for.
        arrived_per_s: as they came in the measured time.
        goodput_per_s: good answers that ended in the measured time.
        good_tokens_per_s: their completion tokens.
        good_share: of the arrivals in the measured time.
        late_answers: whole answers whose first text came too late, in all the time.
        turned_away: answers 429, in all the time.
        failed: neither, in all the time; `complaints` has the first ones.
        first_text_s: p50 and p99 of good and late answers.
        refusal_s: p50, p99 and longest time to a 429.
        retry_after_s: least and greatest Retry-After.
        load_late_s: p99 by which the load sent later than due.
        load_cpu_share: of one core that the load took.
        peak_running, peak_waiting: sessions of the router, once a second.
    """

    rate_per_s: float
    arrived_per_s: float
    goodput_per_s: float
    good_tokens_per_s: float
    good_share: float
    late_answers: int
    turned_away: int
    failed: int
    complaints: tuple[str, ...]
    first_text_s: tuple[float, float] | None
    refusal_s: tuple[float, float, float] | None
    retry_after_s: tuple[float, float] | None
    load_late_s: float
    load_cpu_share: float
    peak_running: float
    peak_waiting: float

    @property
    def is_sustained(self) -> bool:
        """True if the service kept up."""
        return self.good_share >= SUSTAINED and not self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Holds what was seen of load and router in a stretch; see `Stretch`."""

    load_cpu_share: float
    peak_running: float
    peak_waiting: float


def is_good(reply: Reply, first_text_limit_s: float) -> bool:
    """Return whether an answer is whole, right and in time."""
    if not reply.is_whole or reply.first_text_s is None:
        return False
    return reply.first_text_s - reply.began_s <= first_text_limit_s


def measure(
    sent: Sequence[Sent],
    *,
    rate_per_s: float,
    from_s: float,
    to_s: float,
    first_text_limit_s: float,
    observed: Observed,
) -> Stretch:
    """Sum up a stretch whose measured time is [from_s, to_s).

    Raises:
        ValueError: nothing arrived in the measured time.
    """
    arrived = [one for one in sent if from_s <= one.due_s < to_s]
    if not arrived:
        raise ValueError(f"no arrival within {to_s - from_s:g} s at {rate_per_s:g} per second")
    replies = [one.reply for one in sent]
    good = [reply for reply in replies if is_good(reply, first_text_limit_s)]
    ended = [reply for reply in good if from_s <= reply.ended_s < to_s]
    whole = [reply for reply in replies if reply.is_whole and reply.first_text_s is not None]
    turned_away = [reply for reply in replies if reply.is_turned_away]
    failed = [reply for reply in replies if reply.complaint]
    first_texts = [r.first_text_s - r.began_s for r in whole if r.first_text_s is not None]
    refusals = [reply.ended_s - reply.began_s for reply in turned_away]
    after = [reply.retry_after_s for reply in turned_away if reply.retry_after_s is not None]
    length_s = to_s - from_s
    return Stretch(
        rate_per_s=rate_per_s,
        arrived_per_s=len(arrived) / length_s,
        goodput_per_s=len(ended) / length_s,
        good_tokens_per_s=sum(reply.num_tokens for reply in ended) / length_s,
        good_share=sum(is_good(a.reply, first_text_limit_s) for a in arrived) / len(arrived),
        late_answers=len(whole) - len(good),
        turned_away=len(turned_away),
        failed=len(failed),
        complaints=tuple(f"{reply.name}: {reply.complaint}" for reply in failed[:5]),
        first_text_s=(_at(first_texts, 0.5), _at(first_texts, 0.99)) if first_texts else None,
        refusal_s=((_at(refusals, 0.5), _at(refusals, 0.99), max(refusals)) if refusals else None),
        retry_after_s=(min(after), max(after)) if after else None,
        load_late_s=_at([one.late_s for one in sent], 0.99),
        load_cpu_share=observed.load_cpu_share,
        peak_running=observed.peak_running,
        peak_waiting=observed.peak_waiting,
    )


def violations(
    search: Sequence[Stretch],
    overload: Sequence[Stretch],
    *,
    goodput_loss: float,
    refusal_limit_s: float,
    late_limit_s: float,
) -> list[str]:
    """Return one line for each limit that was broken.

    Args:
        search: rising rates, the last of which was not sustained.
        overload: multiples of the sustained rate, the greatest last.
        goodput_loss: share of the peak that may be missing at the greatest multiple.
        refusal_limit_s: for p99 of the time to a 429.
        late_limit_s: beyond it the load was not what it says.
    """
    found = []
    stretches = [*search, *overload]
    peak = max(stretch.goodput_per_s for stretch in stretches)
    last = overload[-1]
    if last.goodput_per_s < (1 - goodput_loss) * peak:
        found.append(
            f"goodput at {last.rate_per_s:.2f} arrivals/s is {last.goodput_per_s:.2f}/s, "
            f"{1 - last.goodput_per_s / peak:.0%} below its peak of {peak:.2f}/s, the limit is "
            f"{goodput_loss:.0%}"
        )
    if not last.turned_away:
        found.append(f"nobody was turned away at {last.rate_per_s:.2f} arrivals/s: no overload")
    for stretch in stretches:
        where = f"at {stretch.rate_per_s:.2f} arrivals/s"
        if stretch.failed:
            found.append(
                f"{where}: {stretch.failed} requests failed, at first {stretch.complaints[0]}"
            )
        if stretch.refusal_s is not None and stretch.refusal_s[1] > refusal_limit_s:
            found.append(
                f"{where}: p99 of the time to a 429 is {stretch.refusal_s[1]:.2f} s, "
                f"the limit is {refusal_limit_s:g} s"
            )
        if stretch.load_late_s > late_limit_s:
            found.append(
                f"{where}: the load sent {stretch.load_late_s:.2f} s late (p99), "
                f"the limit is {late_limit_s:g} s: it was not the load it says"
            )
    return found


def _at(values: Sequence[float], quantile: float) -> float:
    return float(np.quantile(values, quantile))
