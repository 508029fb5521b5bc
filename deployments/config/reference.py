"""Makes the reference page of all keys from their fields, and tells values from their defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_origin

import yaml
from pydantic.fields import FieldInfo

from deployments.config.live_draft import DraftUserConfig
from deployments.config.live_limits import ADMISSION_HEADROOM, LIVE_KEYS
from deployments.config.schema import AppConfig
from deployments.config.sections.models import ModelArgs
from models.config import Section
from router.limits import SessionLimits, SpeculationLimits

COMMAND = "python -m deployments.config --keys --output deployments/docs/config-keys.md"
_HEAD = f"""\
# Keys of a config

`{COMMAND}` writes this page.

A Serve config file says only what differs from what is listed here. The keys stand below `args` of
the application; an unknown key is an error that names it. Keys outside `args` are [Ray Serve's
own](https://docs.ray.io/en/latest/serve/production-guide/config.html). Times are in seconds unless
the name says otherwise.
"""
_COLUMNS = "| key | type | default | limits | meaning |\n|---|---|---|---|---|\n"
_TYPES = {"string": "text", "number": "number", "integer": "integer", "boolean": "truth value"}
_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "gt": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "{} or more characters",
    "maxLength": "at most {} characters",
}


def keys_page() -> str:
    """Return the page as Markdown: name, type, default, limits and meaning of every key."""
    places: dict[type[Section], list[tuple[str, str]]] = {}
    for model, path, description in _sections(AppConfig):
        places.setdefault(model, []).append((path, description))
    parts = [_HEAD]
    for model, found in places.items():
        title = ", ".join(f"`{path}`" for path, _ in found)
        about = "\n".join(f"- `{path}`: {description}" for path, description in found)
        if len(found) == 1:
            text = found[0][1]
            about = f"{text[0].upper()}{text[1:]}."
        parts.append(f"## {title}\n\n{about}\n\n{_table(model)}")
    parts.append(
        "## `applications`\n\nModels may have Serve applications of their own. Beside the sections "
        "`args` of routers may have this key:\n\n"
        + _table(AppConfig)
        + "\nAn application of `deployments.app:build_model` has one model in `target`, `draft` or "
        "`drafts.NAME`, the same `link`, and this key. Where it serves a draft model, `target` "
        "says whose token ids that one has: model_path and revision.\n\n" + _table(ModelArgs)
    )
    parts.append(
        "## `user_config` of Router\n\nA change of it replaces nothing and touches no stream. It "
        f"may have these keys of `router`: {_live_keys()}. A key that it leaves out is as in "
        "`args`. Its `max_sessions` and `max_queued_sessions` together are at most "
        f"{ADMISSION_HEADROOM} times those of `args`.\n"
    )
    parts.append(
        "## `user_config` of a Draft deployment\n\nIt swaps the draft model while it serves.\n\n"
        + _table(DraftUserConfig)
    )
    return "\n".join(parts)


def differing(model: type[Section], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section's values without those that are the defaults, and without empty sections."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        info = model.model_fields.get(key)
        inner = None if info is None else _section_of(info)
        if info is not None and inner is not None and isinstance(value, Mapping):
            if get_origin(info.annotation) is dict:
                value = {name: differing(inner, each) for name, each in value.items()}
            else:
                value = differing(inner, value)
            if not value:
                continue
        elif info is not None and not info.is_required() and value == _default(info):
            continue
        kept[key] = value
    return kept


def _sections(model: type[Section], above: str = "") -> Iterator[tuple[type[Section], str, str]]:
    """Yield every section below a model, with its path and its description."""
    for name, info in model.model_fields.items():
        inner = _section_of(info)
        if inner is None:
            continue
        path = f"{above}{name}"
        if get_origin(info.annotation) is dict:
            path += ".NAME"
        yield inner, path, info.description or ""
        yield from _sections(inner, f"{path}.")


def _section_of(info: FieldInfo) -> type[Section] | None:
    """Return the section that a field holds, itself, by name or as one choice, if any."""
    for part in (info.annotation, *getattr(info.annotation, "__args__", ())):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def _table(model: type[Section]) -> str:
    schemas = model.model_json_schema()["properties"]
    rows = []
    for name, info in model.model_fields.items():
        if _section_of(info) is None:
            schema = schemas[name]
            limits = ", ".join(_limits(schema).values())
            default = "needed" if info.is_required() else f"`{_scalar(_default(info))}`"
            meaning = (info.description or "").replace("|", "\\|")
            rows.append(f"| `{name}` | {_type(schema)} | {default} | {limits} | {meaning} |\n")
    return _COLUMNS + "".join(rows)


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    if schema["type"] == "object":
        return f"mapping of names to {_type(schema['additionalProperties'])}"
    return _TYPES.get(schema["type"], f"`{schema['type']}`")


def _limits(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the bounds of a value, or of each value in it, by the end that they bound."""
    found: dict[str, str] = {}
    inner = [schema[key] for key in ("items", "additionalProperties") if key in schema]
    for part in (*schema.get("anyOf", ()), *inner):
        found |= _limits(part)
    for key, words in _LIMITS.items():
        if key in schema:
            end = "most" if "max" in key.lower() else "least"
            found[end] = words.format(_scalar(schema[key]))
    return found


def _live_keys() -> str:
    names = [f"`{name}`" for name in sorted(LIVE_KEYS[""] - LIVE_KEYS.keys())]
    for name, model in (("speculation", SpeculationLimits), ("timeouts", SessionLimits)):
        fixed = sorted(set(model.model_fields) - LIVE_KEYS[name])
        but = f" but {' and '.join(f'`{key}`' for key in fixed)}" if fixed else ""
        names.append(f"all of `{name}`{but}")
    return ", ".join(names)


def _default(info: FieldInfo) -> Any:
    """Return the value that counts if the key is left out."""
    return info.get_default(call_default_factory=True)


def _scalar(value: Any) -> str:
    """Write a value in one line of YAML, numbers as people write them."""
    if value == "":
        return '""'
    if isinstance(value, float):
        return f"{value:g}"
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.splitlines()[0]  # a plain value is followed by the end of its document
