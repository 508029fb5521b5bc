"""Clients that exist, unmodified, against this server: who works, and what does not.

    python -m loadtest.clients                       serves configs/demo.yaml and runs all
    python -m loadtest.clients --url http://HOST:PORT --only openai litellm

Each client is installed with pip into a virtual environment of its own, or with npm into a folder.
These are kept. Installing needs a package index; running needs no network but the server's. A
client is skipped where Node and npm, a Chromium or nginx is missing that it needs. The exit status
is 0 when no check failed. Checks that need features that the server lacks are listed apart. The
served config lets in pages of all origins. A client behind nginx has a server of its own, whose
requests wait for each other.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from loadtest.clients.catalog import CLIENTS, Client, Target, let_pages_in
from loadtest.clients.node import ensured_modules
from loadtest.clients.processes import NotHere
from loadtest.clients.results import ClientResult, table
from loadtest.clients.run_client import check_programs, run_client
from loadtest.clients.venvs import NotInstallable, default_folder, ensured_venv
from loadtest.report.machine import ROOT
from loadtest.service.served import served
from loadtest.trial import frame

_MODELS_TIMEOUT_S = 10.0


@dataclass(kw_only=True)
class Report(frame.Report):
    """The results of the clients so far."""

    results: list[ClientResult] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Checks that failed, and that no client was run at all."""
        found = [f"{r.name}: {failure}" for r in self.results for failure in r.failures]
        nothing = [] if self.results else ["no client was run"]
        return [*found, *nothing, *super().problems]

    def content(self) -> dict[str, object]:
        """See `frame.Report`."""
        return {
            "is_clean": self.is_clean,
            "crash": self.crash,
            "clients": [result.to_dict() for result in self.results],
        }

    def lines(self) -> list[str]:
        """Return a table of all clients."""
        return [f"\n{table(self.results)}\n"]


def run(arguments: argparse.Namespace, report: Report) -> None:
    """Install what can be installed, then run it against its server; results as they come."""
    ready = list(_installed(arguments, report))
    shared = [one for one in ready if one[0].change is None]
    _run_all(shared, let_pages_in, arguments, report)
    for one in ready:
        client, change = one[0], one[0].change
        if change is not None and arguments.url:
            why = "skipped: it needs a server of its own, without --url"
            report.results.append(ClientResult(client.name, skipped=why))
        elif change is not None:
            _run_all([one], change, arguments, report)


def _installed(arguments: argparse.Namespace, report: Report) -> Iterator[tuple[Client, Path]]:
    folder = arguments.venvs or default_folder()
    for client in CLIENTS:
        if arguments.only and client.name not in arguments.only:
            continue
        print(f"{client.name}: installing {', '.join(client.requirements)}", flush=True)
        try:
            check_programs(client)
            ensured = ensured_modules if client.is_npm else ensured_venv
            yield client, ensured(folder.absolute(), client.name, client.requirements)
        except NotHere as error:
            report.results.append(ClientResult(client.name, skipped=str(error)))
        except (NotInstallable, OSError) as error:
            report.results.append(ClientResult(client.name, trouble=str(error)))


def _run_all(
    ready: Sequence[tuple[Client, Path]],
    change: Callable[[dict[str, Any]], None],
    arguments: argparse.Namespace,
    report: Report,
) -> None:
    if not ready:
        return
    with _server(arguments, change) as target:
        for client, bin_folder in ready:
            print(f"{client.name}: running", flush=True)
            result = run_client(client, bin_folder, target)
            report.results.append(result)
            print(table([result]), flush=True)


@contextlib.contextmanager
def _server(
    arguments: argparse.Namespace, change: Callable[[dict[str, Any]], None]
) -> Iterator[Target]:
    tokenizer = arguments.tokenizer.absolute()
    if arguments.url:
        yield target_at(arguments.url, tokenizer)
        return
    with served(arguments.config, change=change) as service:
        yield target_at(service.base_url, tokenizer)


def target_at(url: str, tokenizer: Path) -> Target:
    """Return the server at `url`, and the first model that it lists.

    Raises:
        httpx.HTTPError: nobody answers there.
    """
    answer = httpx.get(f"{url.rstrip('/')}/v1/models", timeout=_MODELS_TIMEOUT_S)
    answer.raise_for_status()
    return Target(url.rstrip("/"), answer.json()["data"][0]["id"], tokenizer)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.clients", description="Clients that exist, against this server."
    )
    parser.add_argument("--url", help="of a running server, without /v1; default: serve --config")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "demo.yaml")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        default=ROOT / "models" / "demo" / "target",
        help="folder of the served model's tokenizer, for GuideLLM and AIPerf",
    )
    parser.add_argument(
        "--venvs", type=Path, help="where to keep them; default: ~/.cache/outrider/clients"
    )
    parser.add_argument("--only", nargs="+", choices=[client.name for client in CLIENTS])
    parser.add_argument(
        "--output", type=Path, default=ROOT / "loadtest" / "results" / "clients.json"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the clients; the exit status."""
    return frame.run_trial("loadtest.clients", _parse, run, Report(), argv)


if __name__ == "__main__":
    sys.exit(main())
