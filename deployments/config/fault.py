"""One thing that keeps a config from being served. Standard library only."""

from __future__ import annotations

from typing import Literal

# The subjects of faults: a model's files; a thing of one node, such as the file of API keys or a
# package; the nodes of the cluster; their memory; or the port. The caller decides by it which
# faults count: see `check.py`.
Kind = Literal["files", "local", "nodes", "memory", "port"]


class Fault(ValueError):
    """A fault of a config: raised where the first one ends a search, listed where all are wanted.

    Attributes:
        key: the config key at fault, by its full path; "": no single one.
        text: what is wrong, with limit and value.
        kind: what it is about.
    """

    def __init__(self, key: str, text: str, kind: Kind = "files") -> None:
        super().__init__(key, text, kind)
        self.key = key
        self.text = text
        self.kind = kind

    def __str__(self) -> str:
        """Return the sentence for people."""
        return f"{self.key}: {self.text}" if self.key else self.text
