"""constraints.txt pins everything that pyproject.toml asks for, within the ranges it allows."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent


def pins() -> dict[str, Requirement]:
    """The lines of constraints.txt by package."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def asked_for() -> list[Requirement]:
    """Every requirement of pyproject.toml, those of extras included, but for the project itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    found = [Requirement(text) for group in groups for text in group]
    return [requirement for requirement in found if requirement.name != project["name"]]


def exact(pin: Requirement) -> Version:
    """The one version that a line allows."""
    (specifier,) = pin.specifier
    assert specifier.operator == "=="
    return Version(specifier.version)


def test_each_dependency_is_pinned_within_its_range() -> None:
    pinned = pins()
    for requirement in asked_for():
        pin = pinned.get(canonicalize_name(requirement.name))
        assert pin is not None, (
            f"{requirement.name} is missing: .ci/constraints writes the file anew"
        )
        assert requirement.specifier.contains(exact(pin)), f"{pin} is not within {requirement}"


def test_each_pin_is_one_public_version() -> None:
    """A local label such as +cpu would tie the file to one index."""
    for pin in pins().values():
        assert exact(pin).local is None, pin
        assert not pin.extras, pin
        assert pin.marker is None, pin
        assert pin.url is None, pin


def test_a_plain_installation_gets_the_pinned_torch() -> None:
    """Without the constraints pip takes the newest of the range: an open one would bring CUDA."""
    (torch,) = (requirement for requirement in asked_for() if requirement.name == "torch")
    newest = exact(pins()["torch"])
    following = Version(f"{newest.major}.{newest.minor}.{newest.micro + 1}")
    assert torch.specifier.contains(newest)
    assert not torch.specifier.contains(following)
