"""Clients that exist, unmodified, against this server: who works, and what does not.

    python -m loadtest.clients                       serves configs/demo.yaml and runs all
    python -m loadtest.clients --url http://HOST:PORT --only openai litellm

Each client is installed with pip into a virtual environment of its own, or with npm into a folder,
which is kept. Installing needs a package index; running needs no network but the server's. A
client of npm is skipped where Node or npm is missing. The exit status is 0 when no check failed;
checks that need what the server does not have are listed apart.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from loadtest.clients.catalog import CLIENTS, Client, Target
from loadtest.clients.node import NoNode, ensured_modules
from loadtest.clients.results import ClientResult, table
from loadtest.clients.run_client import run_client
from loadtest.clients.venvs import NotInstallable, default_folder, ensured_venv
from loadtest.report.machine import ROOT
from loadtest.service.served import served
from loadtest.trial import frame

_MODELS_TIMEOUT_S = 10.0


@dataclass(kw_only=True)
class Report(frame.Report):
    """What the clients found so far."""

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
        """A table of all clients."""
        return [f"\n{table(self.results)}\n"]


def run(arguments: argparse.Namespace, report: Report) -> None:
    """Install what can be installed, then run it against the server; results as they come."""
    ready: list[tuple[Client, Path]] = []
    folder = arguments.venvs or default_folder()
    for client in CLIENTS:
        if arguments.only and client.name not in arguments.only:
            continue
        print(f"{client.name}: installing {', '.join(client.requirements)}", flush=True)
        try:
            ensured = ensured_modules if client.is_npm else ensured_venv
            installed = ensured(folder.absolute(), client.name, client.requirements)
            ready.append((client, installed))
        except NoNode as error:
            report.results.append(ClientResult(client.name, skipped=str(error)))
        except (NotInstallable, OSError) as error:
            report.results.append(ClientResult(client.name, trouble=str(error)))
    if not ready:
        return
    with _server(arguments) as target:
        for client, bin_folder in ready:
            print(f"{client.name}: running", flush=True)
            result = run_client(client, bin_folder, target)
            report.results.append(result)
            print(table([result]), flush=True)


@contextlib.contextmanager
def _server(arguments: argparse.Namespace) -> Iterator[Target]:
    tokenizer = arguments.tokenizer.absolute()
    if arguments.url:
        yield target_at(arguments.url, tokenizer)
        return
    with served(arguments.config) as service:
        yield target_at(service.base_url, tokenizer)


def target_at(url: str, tokenizer: Path) -> Target:
    """The server at `url`, and the first model it lists.

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
