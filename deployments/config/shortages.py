"""What placements ask for and a cluster has not. Counts what nodes announce, not what is in use.

So an application that takes the place of a running one is not refused, and nodes may announce
GPUs that they do not have (as clusters in tests do).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ray._raylet import node_labels_match_selector  # type: ignore[attr-defined]  # not in stubs

from deployments.config.placement import STRICT_PACK, Labels, Placement, Resources

_COUNTED = ("CPU", "GPU")
_FIRST = ("GPU", "CPU")  # the order in which shortages are told


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine, as it is known to Ray."""

    resources: Resources
    labels: Labels

    def has(self, selector: Labels) -> bool:
        """Whether the node's labels fit; the empty selector fits every node."""
        return bool(node_labels_match_selector(dict(self.labels), dict(selector)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What there is now. `may_grow`: somebody adds nodes when they are asked for."""

    nodes: Sequence[Node]
    may_grow: bool = False

    def total(self, kind: str) -> float:
        """All nodes together."""
        return sum(node.resources.get(kind, 0.0) for node in self.nodes)


def shortages(placements: Sequence[Placement], cluster: Cluster) -> list[str]:
    """What is missing for the fewest replicas, GPUs first; empty: nothing, as far as one can see.

    Whether everything fits beside everything else is not computed: Ray's own packing would have to
    be repeated.
    """
    missing = _short_in_all(placements, cluster)
    unlabelled = _labels_of_nobody(placements, cluster)
    if unlabelled:
        missing.append(f"no node has the label {', '.join(unlabelled)}")
    if not missing:
        missing = _too_wide(placements, cluster)
    return missing


def _short_in_all(placements: Sequence[Placement], cluster: Cluster) -> list[str]:
    needs: dict[str, dict[str, float]] = defaultdict(dict)
    for placement in placements:
        for kind, amount in _sum(unit for unit, _ in placement.units).items():
            if amount > 0 and placement.min_replicas > 0:
                needs[kind][placement.name] = amount * placement.min_replicas
    found = []
    for kind in sorted(needs, key=lambda kind: (_rank(kind), kind)):
        needed, have = sum(needs[kind].values()), cluster.total(kind)
        if needed > have + 1e-6:
            who = ", ".join(f"{name} {amount:g}" for name, amount in needs[kind].items())
            found.append(f"it needs {_quantity(kind, needed)} ({who}), there are {have:g}")
    return found


def _labels_of_nobody(placements: Sequence[Placement], cluster: Cluster) -> list[str]:
    askers: dict[str, list[str]] = defaultdict(list)
    for placement in placements:
        for _, labels in placement.units:
            is_new = placement.name not in askers[_shown(labels)]
            if is_new and not any(node.has(labels) for node in cluster.nodes):
                askers[_shown(labels)].append(placement.name)
    return [f"{labels} ({', '.join(names)})" for labels, names in askers.items() if names]


def _too_wide(placements: Sequence[Placement], cluster: Cluster) -> list[str]:
    """Replicas that no single node can hold."""
    found = []
    for placement in placements:
        units = placement.units
        pieces = [(_sum(unit for unit, _ in units), units[0][1])]
        if placement.bundles and placement.strategy != STRICT_PACK:
            pieces = [(dict(unit), labels) for unit, labels in units]
        for resources, labels in pieces:
            if placement.min_replicas > 0 and not _fits(resources, labels, cluster):
                wanted = " and ".join(_quantity(kind, n) for kind, n in resources.items() if n)
                where = f" with {_shown(labels)}" if labels else ""
                found.append(
                    f"{placement.name} needs {wanted} on one node, no node{where} has them"
                )
                break
    return found


def _fits(resources: Resources, labels: Labels, cluster: Cluster) -> bool:
    return any(
        node.has(labels)
        and all(node.resources.get(kind, 0.0) + 1e-6 >= n for kind, n in resources.items())
        for node in cluster.nodes
    )


def _sum(units: Iterable[Resources]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for unit in units:
        for kind, amount in unit.items():
            total[kind] += amount
    return dict(total)


def _rank(kind: str) -> int:
    return _FIRST.index(kind) if kind in _FIRST else len(_FIRST)


def _quantity(kind: str, amount: float) -> str:
    is_plural = kind in _COUNTED and amount != 1
    return f"{amount:g} {kind}{'s' if is_plural else ''}"


def _shown(labels: Labels) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())
