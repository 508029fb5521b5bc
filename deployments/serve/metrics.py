"""Metrics declared as rows of a table: a name, a sentence, and how the value is read.

A table belongs to the statistics that its rows are read from. Its instruments are made once, and
each look at the statistics writes them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from deployments.serve.instruments import Counter, Gauge, Meters

Source = TypeVar("Source")

# One value, or several by the values of the metric's labels.
Values = float | Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Metric(Generic[Source]):
    """A row: a metric and its value.

    Attributes:
        kind: a counter only rises.
        name: as Prometheus prints it, without the "_total" of counters.
        text: what it measures.
        read: gives the value, or values by labels; labels that are left out are not written.
        labels: names of its own labels.
    """

    kind: Literal["counter", "gauge"]
    name: str
    text: str
    read: Callable[[Source], Values]
    labels: tuple[str, ...]


def counter(name: str, text: str, read: Callable[[Source], Values], *labels: str) -> Metric[Source]:
    """Declare a counter; `read` gives totals, or what one more source adds."""
    return Metric("counter", name, text, read, labels)


def gauge(name: str, text: str, read: Callable[[Source], Values], *labels: str) -> Metric[Source]:
    """Declare a gauge."""
    return Metric("gauge", name, text, read, labels)


class Table(Generic[Source]):
    """The instruments of some rows.

    Args:
        meters: makes them.
        metrics: the rows, in the order in which they are written.
    """

    def __init__(self, meters: Meters, metrics: Sequence[Metric[Source]]) -> None:
        self._rows = [(metric, _instrument(meters, metric)) for metric in metrics]
        self._last: dict[tuple[str, tuple[str, ...]], float] = {}

    def follow(self, source: Source) -> None:
        """Set all gauges, and add what the totals of `source` have grown by since the last call.

        A total never falls until it begins anew.
        """
        for metric, instrument in self._rows:
            values = metric.read(source)
            for key, value in (values if isinstance(values, Mapping) else {(): values}).items():
                labels = dict(zip(metric.labels, key, strict=True))
                if isinstance(instrument, Gauge):
                    instrument.set(value, **labels)
                else:
                    instrument.add(self._grown(metric.name, key, value), **labels)

    def begin_anew(self) -> None:
        """Begin the totals at 0 again; the counters go on."""
        self._last.clear()

    def add(self, source: Source) -> None:
        """Write a source that is no later look at the one before, like a finished request."""
        self.begin_anew()
        self.follow(source)

    def _grown(self, name: str, key: tuple[str, ...], total: float) -> float:
        last = self._last.get((name, key), 0.0)
        self._last[name, key] = max(total, last)
        return max(0.0, total - last)


def _instrument(meters: Meters, metric: Metric[Source]) -> Counter | Gauge:
    make = meters.counter if metric.kind == "counter" else meters.gauge
    return make(metric.name, metric.text, metric.labels)
