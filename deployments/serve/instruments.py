"""Instruments that are written once and read in two places: Prometheus' text and Ray's metrics.

`Meters` makes counters, gauges and histograms of one process. Each is kept in a registry of its
own, which GET /metrics prints. It is also written to a mirror if there is one. Ray's metrics leave
each node by its agent. So every replica is scraped, and not only the one a proxy picks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import prometheus_client
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics import MetricWrapperBase

CONTENT_TYPE = CONTENT_TYPE_LATEST

Labels = Mapping[str, str]

LEASES = ("outrider:leases", "Sessions that hold a place on the replica")  # sessions of any kind


@dataclass(frozen=True, slots=True)
class Declaration:
    """The declaration of an instrument, for Prometheus and for a mirror alike.

    Attributes:
        kind: of instrument.
        name: as Prometheus prints it, without the "_total" of counters.
        text: what it measures.
        labels: names of all its labels.
        buckets: upper bounds of a histogram; it has one bucket more, without a bound.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    text: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()

    @property
    def printed(self) -> str:
        """The name of its series; a histogram's have an ending for each of its parts."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


# Makes the instrument's twin, or None. A twin has Ray's methods: `inc` takes values above 0, `set`
# replaces the value, `observe` takes one value; each takes all labels as a dictionary after it.
Mirror = Callable[[Declaration], Any]


class _Instrument:
    """An instrument, its twin in the mirror, and the series of both.

    A series is looked up once for each set of labels. A look-up costs more than the record that it
    is for, and there is one for every token.
    """

    def __init__(self, here: MetricWrapperBase, twin: Any, fixed: Labels) -> None:
        self._here, self._twin, self._fixed = here, twin, fixed
        self._known: dict[tuple[tuple[str, str], ...], tuple[Any, dict[str, str]]] = {}

    def _series(self, labels: Labels) -> tuple[Any, dict[str, str]]:
        """Return the series to record in here, and all labels as the twin takes them."""
        key = tuple(labels.items())
        if (known := self._known.get(key)) is None:
            tags = {**self._fixed, **labels}
            known = self._known[key] = (self._here.labels(**tags), tags)
        return known


class Counter(_Instrument):
    """A value that only ever rises."""

    def add(self, value: float = 1.0, **labels: str) -> None:
        """Add `value`, 0 or more."""
        here, tags = self._series(labels)
        here.inc(value)
        if self._twin is not None and value > 0:
            self._twin.inc(value, tags)


class Gauge(_Instrument):
    """A value that rises and falls. Set it again every second or so, even if it does not change.

    Ray's agent forgets one that was not set within two of its reports.
    """

    def set(self, value: float, **labels: str) -> None:
        """Replace the value."""
        here, tags = self._series(labels)
        here.set(value)
        if self._twin is not None:
            self._twin.set(value, tags)


class Histogram(_Instrument):
    """The number of values within each bucket."""

    def observe(self, value: float, times: int = 1, **labels: str) -> None:
        """Take in `value`, `times` times over."""
        here, tags = self._series(labels)
        for _ in range(times):
            here.observe(value)
            if self._twin is not None:
                self._twin.observe(value, tags)


class Meters:
    """Makes the instruments of one process.

    Args:
        fixed: labels that all instruments carry.
        mirror: where they are written as well.
    """

    def __init__(self, fixed: Labels, mirror: Mirror | None = None) -> None:
        self._fixed = fixed
        self._mirror = mirror
        self._registry = prometheus_client.CollectorRegistry()

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        """Make a counter; `name` is as printed, without the "_total" that is added to it."""
        names = (*self._fixed, *labels)
        here = prometheus_client.Counter(name, text, names, registry=self._registry)
        return Counter(*self._pair(here, Declaration("counter", name, text, names)))

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        """Make a gauge."""
        names = (*self._fixed, *labels)
        here = prometheus_client.Gauge(name, text, names, registry=self._registry)
        return Gauge(*self._pair(here, Declaration("gauge", name, text, names)))

    def histogram(
        self, name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> Histogram:
        """Make a histogram with the upper bounds `buckets`, and one more without a bound."""
        names, bounds = (*self._fixed, *labels), tuple(buckets)
        here = prometheus_client.Histogram(
            name, text, names, buckets=bounds, registry=self._registry
        )
        return Histogram(*self._pair(here, Declaration("histogram", name, text, names, bounds)))

    def text(self) -> bytes:
        """Return all instruments in Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)

    def _pair(
        self, here: MetricWrapperBase, declaration: Declaration
    ) -> tuple[MetricWrapperBase, Any, Labels]:
        """Return the instrument, its twin, and the labels that are fixed."""
        if len(declaration.labels) == len(self._fixed):
            here.labels(**self._fixed)  # printed from the start, at 0
        return here, None if self._mirror is None else self._mirror(declaration), self._fixed
