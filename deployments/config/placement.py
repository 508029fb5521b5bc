"""Computes each deployment's request to the cluster: defaults of `build` under a file's overrides.

A Serve config file overrides options by deployment name. A `Placement` holds how many replicas
there are at least and at most, and what one of them reserves. Knows neither Ray nor torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deployments.config.schema import AppConfig
from deployments.config.sections.models import ModelConfig, Models

COORDINATOR_CPUS = 0.1  # share of a process that holds no model
STRICT_PACK = "STRICT_PACK"
NUM_WITH_SPARE = 2  # replicas
_CPUS_OF_SERVE = 1.0  # where options are given without num_cpus: they replace those of `build`
_MAX_REPLICAS_OF_AUTO = 100  # Serve's, for `num_replicas: auto`

Resources = Mapping[str, float]  # "CPU", "GPU", "memory" (bytes) and custom ones
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One deployment's replicas.

    Attributes:
        name: of the deployment.
        own: what the replica's own process reserves; of the first bundle, where there are bundles.
        bundles: what a replica reserves instead, one for each rank.
        labels: selector of the node of each bundle, or of the replica's; one may count for all.
        strategy: of the bundles; STRICT_PACK: all on one node.
        has_spare: one of its replicas is a spare.
    """

    name: str
    own: Resources
    bundles: tuple[Resources, ...] = ()
    labels: tuple[Labels, ...] = ()
    strategy: str = STRICT_PACK
    min_replicas: int = 1
    max_replicas: int = 1
    has_spare: bool = False

    @property
    def units(self) -> list[tuple[Resources, Labels]]:
        """The reservations of one replica, piece by piece, with their labels."""
        pieces = self.bundles or (self.own,)
        labels = self.labels or ({},)
        if len(labels) == 1:
            labels = labels * len(pieces)
        return list(zip(pieces, labels, strict=True))


def engine_placement(name: str, model: ModelConfig) -> Placement:
    """Return the placement of Target or Draft.

    It has a bundle per rank; the coordinator shares the first.
    """
    bundle: dict[str, float] = {"CPU": 1}
    if model.device.startswith("cuda"):
        bundle["GPU"] = 1
    placement = Placement(
        name=name,
        own={"CPU": COORDINATOR_CPUS},
        bundles=tuple(dict(bundle) for _ in range(model.tensor_parallel_size)),
    )
    return _with_spare(model.spare, placement)


def default_placements(config: Models) -> list[Placement]:
    """Return the placements of `build`, or `build_model`, if the file has no overrides."""
    models = [
        engine_placement(deployment_of(section), model)
        for section, model in config.models_here.items()
    ]
    if not isinstance(config, AppConfig):
        return models
    router, constraint = (
        Placement(name=name, own={"CPU": COORDINATOR_CPUS}) for name in ("Router", "Constraint")
    )
    return [
        _with_spare(config.router.spare, router),
        *models,
        _with_spare(config.constraint.spare, constraint),
    ]


def _with_spare(has_spare: bool, placement: Placement) -> Placement:
    number = NUM_WITH_SPARE if has_spare else 1
    return replace(placement, has_spare=has_spare, min_replicas=number, max_replicas=number)


def deployment_of(section: str) -> str:
    """Return the deployment of a model, by its section of the config: Target, Draft, Draft-NAME."""
    kind, _, name = section.partition(".")
    return f"Draft-{name}" if name else kind.capitalize()


def placements_of(config: Models, overrides: Iterable[Mapping[str, Any]]) -> list[Placement]:
    """Lay the `deployments:` section of a Serve config file over the placements.

    Raises:
        ValueError: the section names a deployment that there is not, or too few bundles.
    """
    by_name = {str(options["name"]): options for options in overrides}
    placements = [
        _overridden(placement, by_name.pop(placement.name, {}))
        for placement in default_placements(config)
    ]
    if by_name:
        known = ", ".join(placement.name for placement in placements)
        raise ValueError(f"deployments: there is no {sorted(by_name)[0]!r}, only {known}")
    for section, model in config.models_here.items():
        [placement] = [one for one in placements if one.name == deployment_of(section)]
        _check_bundles(model, placement)
        _check_share(model, placement)
    for placement in placements:
        _check_spare(placement)
    return placements


def _check_spare(placement: Placement) -> None:
    name, fewest, most = placement.name, placement.min_replicas, placement.max_replicas
    if placement.has_spare and (fewest, most) != (NUM_WITH_SPARE, NUM_WITH_SPARE):
        raise ValueError(
            f"deployments: {name}: {name.lower()}.spare makes two replicas, of which one is a "
            f"spare; here it is to have {fewest} to {most}: leave one of both out"
        )


def _check_share(model: ModelConfig, placement: Placement) -> None:
    name = placement.name
    share = min((bundle.get("GPU", 1.0) for bundle in placement.bundles), default=1.0)
    if model.spare and (model.gpu_memory_utilization or 0.0) > share > 0.0:
        raise ValueError(
            f"deployments: {name}: gpu_memory_utilization is {model.gpu_memory_utilization}, at "
            f"most {share:g} of a GPU is the replica's (placement_group_bundles)"
        )


def _check_bundles(model: ModelConfig, placement: Placement) -> None:
    if len(placement.bundles) < model.tensor_parallel_size:
        raise ValueError(
            f"deployments: {placement.name}: placement_group_bundles has "
            f"{len(placement.bundles)} bundles, "
            f"tensor_parallel_size {model.tensor_parallel_size} needs one per rank"
        )
    for number, bundle in enumerate(placement.bundles[: model.tensor_parallel_size]):
        if model.device.startswith("cuda") and not bundle.get("GPU"):
            raise ValueError(
                f"deployments: {placement.name}: placement_group_bundles: bundle {number} has no "
                f"GPU, and its rank has device {model.device}: {dict(bundle)}"
            )


def _overridden(placement: Placement, options: Mapping[str, Any]) -> Placement:
    actor = options.get("ray_actor_options")
    own = dict(placement.own) if actor is None else {"CPU": _CPUS_OF_SERVE}
    actor = actor or {}
    own |= {
        kind: float(actor[key])
        for key, kind in (("num_cpus", "CPU"), ("num_gpus", "GPU"), ("memory", "memory"))
        if actor.get(key) is not None
    }
    own |= {kind: float(amount) for kind, amount in (actor.get("resources") or {}).items()}
    bundles = options.get("placement_group_bundles") or placement.bundles
    labels = options.get("placement_group_bundle_label_selector") or placement.labels
    if not bundles and actor.get("label_selector"):
        labels = (actor["label_selector"],)
    fewest, most = _num_replicas(options) or (placement.min_replicas, placement.max_replicas)
    return replace(
        placement,
        own=own,
        bundles=tuple(bundles),
        labels=tuple(labels),
        strategy=options.get("placement_group_strategy") or placement.strategy,
        min_replicas=fewest,
        max_replicas=most,
    )


def _num_replicas(options: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the least and the highest number of replicas; None where nothing is said of it."""
    scaling = options.get("autoscaling_config")
    fixed = options.get("num_replicas")
    if scaling:
        fewest = int(scaling.get("min_replicas", 1))
        return fewest, int(scaling.get("max_replicas", max(1, fewest)))
    if fixed == "auto":
        return 1, _MAX_REPLICAS_OF_AUTO
    return None if fixed is None else (int(fixed), int(fixed))
