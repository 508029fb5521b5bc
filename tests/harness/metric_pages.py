"""Pages of metrics, read as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families


def samples(page: bytes, fixed: Mapping[str, str]) -> dict[str, float]:
    """Return values by name, with the values of labels that are not `fixed`: all have those."""
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            assert sample.labels.items() >= fixed.items()
            own = [value for key, value in sample.labels.items() if key not in fixed]
            if not sample.name.endswith("_created"):
                found[":".join([sample.name, *own])] = sample.value
    return found
