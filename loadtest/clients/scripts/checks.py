"""Shared by the clients' scripts: named checks, run one after another, one JSON line each.

A script runs in its client's own virtual environment, so this file needs the standard library only.
The first line lists the names of all checks. So a reader knows which are missing if the script
dies. Then each check has a line: `ok`, a `detail` (the finding or the error), and maybe `needs`.
`needs` names a feature that this server is known to lack.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

TIMEOUT_S = 60.0  # limit of one request, for every client
STORY = "Write a short story about a dog and a ball."
ORDER = "Turn this order into JSON.\nImogen from Delhi wants 6 blue lamps at $62.29 each."
ORDERED = {"customer": "Imogen", "quantity": 6, "price": 62.29, "city": "Delhi"}

_MAX_DETAIL = 2000  # characters


@dataclass(frozen=True)
class Service:
    """The server's address, the model that it serves, and the folder of its tokenizer."""

    root_url: str
    model: str
    tokenizer: str = ""

    @property
    def base_url(self) -> str:
        """The URL that OpenAI's clients call `base_url`."""
        return f"{self.root_url}/v1"


Check = Callable[[Service], str]


class CheckFailed(Exception):
    """The answer is not what the check wants."""


def expect(condition: object, what: str) -> None:
    """Fail the check unless `condition`.

    Raises:
        CheckFailed: with `what` the check wanted and what came.
    """
    if not condition:
        raise CheckFailed(what)


def expect_order(found: dict[str, object]) -> str:
    """Fail unless this is the record of ORDER; the item's wording is the model's own."""
    wrong = {key: found.get(key) for key, value in ORDERED.items() if found.get(key) != value}
    expect(not wrong and "lamp" in str(found.get("item")), f"{ORDER!r} became {found!r}")
    return json.dumps(found)


class Checks:
    """The checks of one script, in the order in which they are written."""

    def __init__(self) -> None:
        self._checks: list[tuple[str, str, Check]] = []

    def named(self, name: str, *, needs: str = "") -> Callable[[Check], Check]:
        """Add a check; its function returns what it found. `needs`: what the server lacks."""

        def add(check: Check) -> Check:
            self._checks.append((name, needs, check))
            return check

        return add

    def include(self, others: Checks) -> None:
        """Add the checks of another file."""
        self._checks += others._checks

    def main(self, words: Sequence[str] | None = None) -> None:
        """Run all checks against the server that the command line names."""
        parser = argparse.ArgumentParser()
        parser.add_argument("root_url", help="of the server, without /v1")
        parser.add_argument("model")
        parser.add_argument("tokenizer", nargs="?", default="")
        arguments = parser.parse_args(words)
        root_url = arguments.root_url.rstrip("/")
        service = Service(root_url, arguments.model, arguments.tokenizer)
        _say({"checks": [name for name, _, _ in self._checks]})
        for name, needs, check in self._checks:
            _say(_line(name, needs, check, service))


def _line(name: str, needs: str, check: Check, service: Service) -> dict[str, object]:
    try:
        detail, ok = check(service), True
    except Exception as error:  # noqa: BLE001 - whatever a client raises is a finding
        traceback.print_exc(file=sys.stderr)
        reason = str(error)
        detail = reason if isinstance(error, CheckFailed) else f"{type(error).__name__}: {reason}"
        ok = False
    return {"check": name, "ok": ok, "needs": needs, "detail": detail[:_MAX_DETAIL]}


def _say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)
