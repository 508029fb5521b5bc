"""Instruments that are written once and read in two places: Prometheus' text and Ray's metrics.

`Meters` makes counters, gauges and histograms of one process. Each is kept in a registry of its
own, which GET /metrics prints, and handed on to a mirror where there is one: Ray's metrics leave
each node by its agent, so that every replica is scraped and not only the one a proxy picks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import prometheus_client
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics import MetricWrapperBase

CONTENT_TYPE = CONTENT_TYPE_LATEST

Labels = Mapping[str, str]
Here = TypeVar("Here", bound=MetricWrapperBase)  # one of Prometheus' own instruments

LEASES = ("outrider:leases", "Sessions that hold a place on the replica")  # of any kind


class Mirror(Protocol):
    """A second place for the same instruments; names are Prometheus' own."""

    def counter(self, name: str, text: str, labels: tuple[str, ...]) -> MirroredCounter:
        """A counter that goes by `name`."""
        ...

    def gauge(self, name: str, text: str, labels: tuple[str, ...]) -> MirroredGauge:
        """A gauge that goes by `name`."""
        ...

    def histogram(
        self, name: str, text: str, labels: tuple[str, ...], buckets: Sequence[float]
    ) -> MirroredHistogram:
        """A histogram that goes by `name`."""
        ...


class MirroredCounter(Protocol):
    """Ray's `Counter`, as far as it is used."""

    def inc(self, value: float, tags: dict[str, str]) -> None:
        """Add a value above 0."""
        ...


class MirroredGauge(Protocol):
    """Ray's `Gauge`, as far as it is used."""

    def set(self, value: float, tags: dict[str, str]) -> None:
        """Replace the value."""
        ...


class MirroredHistogram(Protocol):
    """Ray's `Histogram`, as far as it is used."""

    def observe(self, value: float, tags: dict[str, str]) -> None:
        """Take in one value above 0."""
        ...


class _Series(Generic[Here]):
    """The series of one instrument, looked up once for each set of labels: a look-up costs more
    than the record that it is for, and there is one for every token."""

    def __init__(self, here: Here, fixed: Labels) -> None:
        self._here, self._fixed = here, fixed
        self._known: dict[tuple[tuple[str, str], ...], tuple[Here, dict[str, str]]] = {}

    def __call__(self, labels: Labels) -> tuple[Here, dict[str, str]]:
        """What to record in here, and all labels as a mirror takes them."""
        key = tuple(labels.items())
        if (known := self._known.get(key)) is None:
            tags = {**self._fixed, **labels}
            known = self._known[key] = (self._here.labels(**tags), tags)
        return known


class Counter:
    """Only ever rises."""

    def __init__(
        self, here: prometheus_client.Counter, mirrored: MirroredCounter | None, fixed: Labels
    ) -> None:
        self._series, self._mirrored = _Series(here, fixed), mirrored

    def add(self, value: float = 1.0, **labels: str) -> None:
        """Add `value`, 0 or more."""
        here, tags = self._series(labels)
        here.inc(value)
        if self._mirrored is not None and value > 0:
            self._mirrored.inc(value, tags)


class Gauge:
    """Has a value now. Set it again every second or so, also where it stays: Ray's agent forgets
    one that was not set within two of its reports."""

    def __init__(
        self, here: prometheus_client.Gauge, mirrored: MirroredGauge | None, fixed: Labels
    ) -> None:
        self._series, self._mirrored = _Series(here, fixed), mirrored

    def set(self, value: float, **labels: str) -> None:
        """Replace the value."""
        here, tags = self._series(labels)
        here.set(value)
        if self._mirrored is not None:
            self._mirrored.set(value, tags)


class Histogram:
    """Counts values by buckets."""

    def __init__(
        self, here: prometheus_client.Histogram, mirrored: MirroredHistogram | None, fixed: Labels
    ) -> None:
        self._series, self._mirrored = _Series(here, fixed), mirrored

    def observe(self, value: float, times: int = 1, **labels: str) -> None:
        """Take in `value`, `times` times over."""
        here, tags = self._series(labels)
        for _ in range(times):
            here.observe(value)
            if self._mirrored is not None:
                self._mirrored.observe(value, tags)


class Totals:
    """Counters that follow totals which somebody else keeps, by the same keys."""

    def __init__(self, counters: Mapping[str, tuple[Counter, Labels]]) -> None:
        self._counters = counters
        self._last = dict.fromkeys(counters, 0.0)

    def follow(self, totals: Mapping[str, float]) -> None:
        """Add what each total has grown by. A total never falls: it lives as long as we do."""
        for key, (counter, labels) in self._counters.items():
            counter.add(max(0.0, totals[key] - self._last[key]), **labels)
            self._last[key] = max(totals[key], self._last[key])


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
        """A counter; `name` as printed, without the "_total" that is added to it."""
        names = (*self._fixed, *labels)
        here = prometheus_client.Counter(name, text, names, registry=self._registry)
        self._start(here, len(labels))
        mirrored = None if self._mirror is None else self._mirror.counter(name, text, names)
        return Counter(here, mirrored, self._fixed)

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        """A gauge."""
        names = (*self._fixed, *labels)
        here = prometheus_client.Gauge(name, text, names, registry=self._registry)
        self._start(here, len(labels))
        mirrored = None if self._mirror is None else self._mirror.gauge(name, text, names)
        return Gauge(here, mirrored, self._fixed)

    def histogram(
        self, name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> Histogram:
        """A histogram with the upper bounds `buckets`, and one more without a bound."""
        names = (*self._fixed, *labels)
        here = prometheus_client.Histogram(
            name, text, names, buckets=tuple(buckets), registry=self._registry
        )
        self._start(here, len(labels))
        mirrored = None
        if self._mirror is not None:
            mirrored = self._mirror.histogram(name, text, names, buckets)
        return Histogram(here, mirrored, self._fixed)

    def text(self) -> bytes:
        """All instruments in Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)

    def _start(self, instrument: MetricWrapperBase, labels: int) -> None:
        """Print an instrument without labels of its own from the start, at 0."""
        if labels == 0:
            instrument.labels(**self._fixed)
