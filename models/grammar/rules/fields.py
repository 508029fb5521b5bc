"""Takes the fields of a JSON object one by one; what is missing, wrong or left over is refused.

Places are JSON paths. Standard library only.
"""

from __future__ import annotations

from models.grammar.limits import JsonValue, json_path, refuse

_REQUIRED = object()


class Fields:
    """The fields of one object.

    Raises:
        UnsupportedGrammar: `value` is no object.
    """

    def __init__(self, value: JsonValue, path: str) -> None:
        if not isinstance(value, dict):
            refuse("must be an object", path=path)
        self.path = path
        self._left = dict(value)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, default: object = _REQUIRED) -> JsonValue:
        """Return a field's value.

        Raises:
            UnsupportedGrammar: it is missing and has no default.
        """
        if name not in self._left:
            if default is _REQUIRED:
                refuse("is required", path=self.place(name))
            return default  # type: ignore[return-value]  # defaults are JSON
        return self._left.pop(name)

    def text(self, name: str, default: object = _REQUIRED) -> str:
        """Return a field that is a string."""
        value = self.take(name, default)
        if not isinstance(value, str):
            refuse("must be a string", path=self.place(name))
        return value

    def flag(self, name: str) -> bool:
        """Return a field that is true or false; false if it is missing."""
        value = self.take(name, False)
        if not isinstance(value, bool):
            refuse("must be true or false", path=self.place(name))
        return value

    def number(self, name: str) -> int:
        """Return a field that is a whole number."""
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, int):
            refuse("must be a whole number", path=self.place(name))
        return value

    def items(self, name: str, default: object = _REQUIRED) -> list[JsonValue]:
        """Return a field that is a list."""
        value = self.take(name, default)
        if not isinstance(value, list):
            refuse("must be a list", path=self.place(name))
        return value

    def texts(self, name: str, default: object = _REQUIRED) -> tuple[str, ...]:
        """Return a field that is a list of strings, none of them empty."""
        found = []
        for i, value in enumerate(self.items(name, default)):
            if not isinstance(value, str) or not value:
                refuse("must be a string that is not empty", path=f"{self.place(name)}[{i}]")
            found.append(value)
        return tuple(found)

    def unset(self, name: str, *neutral: JsonValue) -> None:
        """Refuse a field that is not supported, but for values that ask for nothing."""
        if self.take(name, None) not in (None, *neutral):
            refuse("is not supported", path=self.place(name))

    def finish(self) -> None:
        """Refuse fields that nobody took."""
        for name in self._left:
            refuse("unknown field", path=self.place(name))

    def place(self, name: str) -> str:
        """Return a field's JSON path."""
        return f"{self.path}{json_path(name[:80])}"
