"""The applications of a Serve config file that are one service, read as one tree.

A file has one application of `deployments.app:build`. Models may have applications of their own
(`build_model`), which the first one names in `applications`. What two of them say of one model must
be the same. Here they are put together, compared, and changed together. Knows no Ray, no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deployments.config.keys import nested, put
from deployments.config.placement import Placement, deployment_of, placements_of
from deployments.config.schema import AppConfig
from deployments.config.sections.models import TARGET, ModelArgs, ModelConfig

IMPORT_PATH = "deployments.app:build"
MODEL_IMPORT_PATH = "deployments.app:build_model"
# What routers, and what draft models, must know of a target that is another application.
_ROUTERS_KNOW = (
    "model_path",
    "revision",
    "dtype",
    "max_model_len",
    "heads",
    "early_exit",
    "lora_modules",
)
_DRAFTS_KNOW = ("model_path", "revision", "dtype")
_SECTIONS = set(AppConfig.model_fields) - {"applications"}  # a file has a list of that name
Tree = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One application of the service.

    Attributes:
        tree: the entry of the file.
        section: of its model; "" where the routers are.
    """

    tree: Tree
    section: str = ""

    @property
    def args(self) -> Tree:
        """Its `args`, made where there are none."""
        args = self.tree.get("args") or {}
        self.tree["args"] = args
        found: Tree = args
        return found

    @property
    def overrides(self) -> list[Tree]:
        """Its `deployments`; may be empty."""
        return self.tree.get("deployments") or []


@dataclass(frozen=True, kw_only=True)
class Applications:
    """The applications of one service, the routers' first."""

    parts: tuple[Part, ...]

    @property
    def config(self) -> AppConfig:
        """The whole service as one tree, as if it were one application.

        Raises:
            ValueError: a key is wrong, or two applications contradict each other.
        """
        first = AppConfig.model_validate(self.parts[0].args)
        others = {part.section: _model_args(part) for part in self.parts[1:]}
        faults = [fault for section in others for fault in _contradictions(section, first, others)]
        if faults:
            raise ValueError("; ".join(faults))
        tree = nested(self.parts[0].args)
        tree.pop("applications", None)
        for part in self.parts[1:]:
            path = part.section.split(".")
            put(tree, path, _at(nested(part.args), path))
        return AppConfig.model_validate(tree)

    @property
    def placements(self) -> list[Placement]:
        """The placements of all deployments.

        Raises:
            ValueError: see `placements_of`.
        """
        placements_of(AppConfig.model_validate(self.parts[0].args), self.parts[0].overrides)
        for part in self.parts[1:]:  # each may name its own deployments only
            placements_of(_model_args(part), part.overrides)
        return placements_of(self.config, self.overrides)

    @property
    def overrides(self) -> list[Tree]:
        """The `deployments` of all."""
        return [options for part in self.parts for options in part.overrides]

    def section(self, name: str) -> Tree:
        """Return a section of the `args` it is served by, to change in place; made if not there.

        Args:
            name: dotted, like `router.timeouts`.
        """
        path = name.split(".")
        inner = next(part for part in self.parts if _serves(part, path, self.parts)).args
        for word in path:
            inner = inner.setdefault(word, {})
        return inner

    def change(self, key: str, value: Any) -> bool:
        """Put a value wherever the service has this key; return whether it is one of its keys.

        Raises:
            ValueError: the path leads through a value without keys of its own, or names no option.
        """
        path = key.split(".")
        if path[0] in _SECTIONS:
            for part in self.parts:
                if _takes(part, path, self.parts):
                    put(part.tree, ["args", *path], value)
                elif path == ["router", "model_name"]:  # which all metrics have
                    put(part.tree, ["args", "model_name"], value)
            return True
        if not path[0][:1].isupper():
            return False
        if len(path) == 1:
            raise ValueError(f"{key}: name an option of this deployment, like {key}.num_replicas=2")
        put(self.options(path[0]), path[1:], value)
        return True

    def options(self, deployment: str) -> Tree:
        """Return a deployment's options in the file, to change in place; made if not there."""
        for options in self.overrides:
            if options.get("name") == deployment:
                return options
        names = {deployment_of(part.section): part for part in self.parts[1:]}
        options = {"name": deployment}
        names.get(deployment, self.parts[0]).tree.setdefault("deployments", []).append(options)
        return options


def applications_of(tree: object) -> Applications:
    """Find the applications of the service in a parsed Serve config file.

    Raises:
        ValueError: there is none, or one that is named is not there; or a section has another type.
    """
    if not isinstance(tree, dict) or not isinstance(tree.get("applications"), list):
        raise ValueError("this is no Serve config file: it has no list of applications")
    entries = tree["applications"]
    if faults := list(_shape_faults(entries)):
        raise ValueError("; ".join(faults))
    ours = [entry for entry in entries if entry.get("import_path") == IMPORT_PATH]
    if len(ours) != 1:
        raise ValueError(
            f"{len(ours)} of its applications have import_path {IMPORT_PATH}, must be 1"
        )
    models = {
        entry.get("name"): entry
        for entry in entries
        if entry.get("import_path") == MODEL_IMPORT_PATH
    }
    parts = [Part(tree=ours[0])]
    named = nested(parts[0].args).get("applications") or {}
    for section, name in named.items() if isinstance(named, Mapping) else ():
        if not isinstance(name, str) or name not in models:
            raise ValueError(
                f"applications.{section}: the file has no application {name!r} with import_path "
                f"{MODEL_IMPORT_PATH}"
            )
        parts.append(Part(tree=models.pop(name), section=section))
    if models:
        raise ValueError(f"no router asks the application {next(iter(models))!r}: name it in args")
    return Applications(parts=tuple(parts))


def _model_args(part: Part) -> ModelArgs:
    try:
        args = ModelArgs.model_validate(part.args)
    except ValueError as error:
        raise ValueError(f"application {part.tree['name']}: {error}") from None
    if args.section != part.section:
        raise ValueError(
            f"applications.{part.section}: the application {part.tree['name']!r} serves "
            f"{args.section}"
        )
    return args


def _contradictions(
    section: str, first: AppConfig, others: Mapping[str, ModelArgs]
) -> Iterator[str]:
    """Yield the keys that two applications have different values of."""
    args = others[section]
    target = others[TARGET].target if TARGET in others else first.target
    known = _ROUTERS_KNOW if section == TARGET else _DRAFTS_KNOW
    told = first.target if section == TARGET else args.target
    yield from _differing(f"{section}: target", known, told, target)
    if args.link != first.link:
        yield f"{section}: link must be the same in all applications"
    if args.model_name != first.router.model_name:
        yield (
            f"{section}: model_name must be that of router, {first.router.model_name!r}, "
            f"got {args.model_name!r}"
        )


def _differing(
    where: str, keys: tuple[str, ...], told: ModelConfig, real: ModelConfig
) -> Iterator[str]:
    for key in keys:
        mine, theirs = getattr(told, key), getattr(real, key)
        if mine != theirs:
            yield f"{where}.{key} must be as where the target is served, {theirs!r}, got {mine!r}"


def _serves(part: Part, path: list[str], parts: tuple[Part, ...]) -> bool:
    """Return whether an application is the one that a section is for."""
    section = ".".join(path[:2]) if path[0] == "drafts" else path[0]
    is_apart = section in {one.section for one in parts}
    return part.section == section if is_apart else not part.section


def _takes(part: Part, path: list[str], parts: tuple[Part, ...]) -> bool:
    """Return whether the `args` of an application have this key, or must."""
    if path[0] == "link" or _serves(part, path, parts):
        return True
    known = _DRAFTS_KNOW if part.section else _ROUTERS_KNOW
    return path[0] == TARGET and len(path) > 1 and path[1] in known


def _at(tree: Tree, path: list[str]) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def _shape_faults(applications: list[Any]) -> Iterator[str]:
    """Yield values of another type, down to each deployment, and deployments that come twice."""
    for number, application in enumerate(applications):
        path = f"applications.{number}"
        if not isinstance(application, dict):
            yield f"{path}: must be a mapping, got {application!r}"
            continue
        if not isinstance(application.get("name", ""), str):
            yield f"{path}.name: must be a string, got {application['name']!r}"
        if not isinstance(application.get("args") or {}, dict):
            yield f"{path}.args: must be a mapping, got {application['args']!r}"
        deployments = application.get("deployments", [])
        if not isinstance(deployments, list):
            yield f"{path}.deployments: must be a list of mappings, got {deployments!r}"
            continue
        names = []
        for index, options in enumerate(deployments):
            if not isinstance(options, dict):
                yield f"{path}.deployments.{index}: must be a mapping, got {options!r}"
            elif (name := options.get("name")) in names:
                yield f"{path}.deployments.{index}: {name!r} is there twice"
            elif name is not None:  # Serve's schema asks for one
                names.append(name)
