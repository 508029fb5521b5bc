"""Prints an example as a Serve config file: every key with a comment, made of its description.

A comment stands where a key comes up first; after that only what an example remarks on a value is
said. The text is the same each time, so that a test can compare it with the files.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_origin

import yaml
from pydantic.fields import FieldInfo

from deployments.config.examples.ray_keys import RAY_KEYS
from deployments.config.schema import AppConfig
from models.config import Section

_WIDTH = 100
_COLUMN = 37  # of the comments
_NO_BREAK = "\N{NO-BREAK SPACE}"  # no space to textwrap
_SHIPPED = (
    "A Serve config file, written by `python -m deployments.config.examples`; a test compares "
    "them, so change a copy."
)
_ABOUT = (
    "`args` is checked by deployments/config/schema.py (unknown keys are "
    "errors); everything outside `args` is Ray Serve's own. Times in seconds unless the name says "
    'otherwise; "default" is what counts when the key is left out.'
)

Tree = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Remark:
    """A value and what is to be said of this very value, after what its key means."""

    value: Any
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One shipped file: why it is there, and what it says other than the defaults.

    Attributes:
        name: of the file, without its ending.
        head: its first lines: the reason for the file, and how it is run.
        serve: Serve's own keys above the application.
        args: what differs from the defaults; sections of models list all that is to be shown.
        placement: said above the deployments.
        deployments: options of each, in their order.
        origin: what wrote the file.
    """

    name: str
    head: str
    serve: Tree
    args: Tree
    placement: str
    deployments: Sequence[Tree]
    origin: str = _SHIPPED


def printed(example: Example) -> str:
    """The file's text."""
    page = _Page()
    page.comment(example.head, 0)
    page.lines.append("#")
    page.comment(f"{example.origin} {_ABOUT}", 0)
    for key, value in example.serve.items():
        page.lines.append("")
        page.ray_key(key, value, 0)
    page.lines += [
        "",
        "applications:",
        "  - name: outrider",
        "    route_prefix: /",
        "    import_path: deployments.app:build",
        "    args:",
    ]
    page.section(AppConfig, example.args, 6)
    page.lines.append("")
    page.comment(example.placement, 4)
    page.lines.append("    deployments:")
    for options in example.deployments:
        page.deployment(options)
    return "\n".join(page.lines) + "\n"


@dataclass
class _Page:
    """Lines so far, and the keys that were explained in them."""

    lines: list[str] = field(default_factory=list)
    explained: set[tuple[object, str]] = field(default_factory=set)

    def comment(self, text: str, indent: int) -> None:
        """Whole lines of comment; an indented line of `text` stays as it is."""
        for paragraph in _paragraphs(text):
            for line in paragraph:
                self.lines.append(f"{' ' * indent}# {line}".rstrip())

    def section(self, model: type[Section], values: Tree, indent: int) -> None:
        """Keys of a section of ours: all of them, or for a model that comes again those given."""
        is_again = any(group is model for group, _ in self.explained)
        for name, info in model.model_fields.items():
            given, inner = values.get(name), _section_of(info)
            is_absent = given is None and inner is not None and info.default is None
            if is_absent or (is_again and name not in values):
                continue
            if inner is not None and get_origin(info.annotation) is dict:
                self._named(name, inner, given or {}, indent, info.description or "")
                continue
            if inner is not None:
                self.key(f"{name}:", indent, [info.description or ""])
                self.section(inner, given or {}, indent + 2)
                continue
            value, remark = _parted(given) if name in values else (_given_by(info), "")
            texts = [remark]
            if not self._is_explained(model, name):
                texts = [info.description or "", remark, _default(info)]
            self.key(f"{name}: {_scalar(value)}", indent, texts)

    def _named(self, key: str, model: type[Section], given: Tree, indent: int, text: str) -> None:
        """Sections of a kind under names of their own."""
        self.key(f"{key}:" if given else f"{key}: {{}}", indent, [text])
        for name, values in given.items():
            self.key(f"{name}:", indent + 2, [])
            self.section(model, values, indent + 4)

    def ray_key(self, name: str, given: Any, indent: int) -> None:
        """A key of Serve's own, with all that is below it."""
        value, remark = _parted(given)
        texts = [remark]
        if name in RAY_KEYS and not self._is_explained("ray", name):
            description, default = RAY_KEYS[name]
            texts = [description, remark, default.replace(" ", _NO_BREAK)]
        if isinstance(value, Mapping) and name not in _IN_ONE_LINE:
            self.key(f"{name}:", indent, texts)
            for inner, inner_value in value.items():
                self.ray_key(inner, inner_value, indent + 2)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            self.key(f"{name}:", indent, texts)
            for item in value:
                item_value, item_remark = _parted(item)
                self.key(f"- {_scalar(item_value)}", indent + 2, [item_remark])
        else:
            self.key(f"{name}: {_scalar(value)}", indent, texts)

    def deployment(self, options: Tree) -> None:
        """One deployment's options."""
        start = len(self.lines)
        for name, given in options.items():
            self.ray_key(name, given, 8)
        self.lines[start] = f"      - {self.lines[start].lstrip()}"

    def key(self, text: str, indent: int, texts: Sequence[str]) -> None:
        """A line with its comment, which goes on below at the same column."""
        line = f"{' ' * indent}{text}"
        comment = "; ".join(part for part in texts if part)
        if not comment:
            self.lines.append(line)
            return
        column = max(_COLUMN, len(line) + 2)
        room = _WIDTH - _COLUMN - 2
        wrapped = textwrap.wrap(
            comment,
            room,
            initial_indent="." * min(column - _COLUMN, room - 1),
            break_long_words=False,
            break_on_hyphens=False,
        )
        wrapped = [part.lstrip(".").replace(_NO_BREAK, " ") for part in wrapped]
        self.lines.append(f"{line:<{column}}# {wrapped[0]}")
        self.lines += [f"{'':<{_COLUMN}}# {more}" for more in wrapped[1:]]

    def _is_explained(self, group: object, name: str) -> bool:
        """Whether the key came up before; from now on it has."""
        is_known = (group, name) in self.explained
        self.explained.add((group, name))
        return is_known


_IN_ONE_LINE = ("label_selector", "user_config")


def _paragraphs(text: str) -> Iterator[list[str]]:
    for line in text.strip("\n").splitlines():
        if line.startswith(" ") or not line:
            yield [line]
        else:
            yield textwrap.wrap(line, _WIDTH - 6, break_on_hyphens=False)


def _parted(given: Any) -> tuple[Any, str]:
    return (given.value, given.text) if isinstance(given, Remark) else (given, "")


def _section_of(info: FieldInfo) -> type[Section] | None:
    for part in (info.annotation, *getattr(info.annotation, "__args__", ())):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def _given_by(info: FieldInfo) -> Any:
    """What counts where the key is left out."""
    return info.get_default(call_default_factory=True)


def _default(info: FieldInfo) -> str:
    return "" if info.is_required() else f"default:{_NO_BREAK}{_scalar(_given_by(info))}"


def _scalar(value: Any) -> str:
    """A value in one line of YAML, numbers as people write them."""
    if value == "":
        return '""'
    if isinstance(value, float):
        return f"{value:g}"
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.splitlines()[0]  # a plain value is followed by the end of its document
