"""A trial of clients that exist, unmodified, against this server: who works, and what does not.

Each client is installed with pip into a virtual environment of its own, or with npm into a folder.
These are kept. Installing needs a package index; running needs no network but the server's. A
client is skipped where Node and npm, a Chromium or nginx is missing that it needs. Checks that need
features that the server lacks are counted apart. The served config lets in pages of all origins. A
client behind nginx has a server of its own, whose requests wait for each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from loadtest.clients.catalog import CLIENTS, Client, Target, let_pages_in
from loadtest.clients.node import ensured_modules
from loadtest.clients.processes import NotHere
from loadtest.clients.results import ClientResult
from loadtest.clients.run_client import check_programs, run_client
from loadtest.clients.venvs import NotInstallable, default_folder, ensured_venv
from loadtest.report.machine import ROOT
from loadtest.service.served import served
from loadtest.trial.scene import Event, Scene
from loadtest.trial.trial import Place, Trial

_MODELS_TIMEOUT_S = 10.0
_BY_NAME = {client.name: client for client in CLIENTS}


@dataclass(frozen=True, kw_only=True)
class Tried(Event):
    """All checks of one client."""

    client: Client
    workload: str = "clients"
    first: str = "passed"

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`."""
        result = self._result(scene)
        scene.problems += result.failures
        scene.notes |= result.to_dict()
        lacking = (f"not served yet: {name}" for name in result.lacking)
        for note in filter(None, (result.skipped, *lacking)):
            print(f"{result.name}: {note}", flush=True)
        return {
            "passed": sum(check.ok for check in result.checks),
            "checks": len(result.checks),
            "lacking": sum(check.is_lacking for check in result.checks),
            "failures": len(result.failures),
            "skipped": bool(result.skipped),
        }

    def _result(self, scene: Scene) -> ClientResult:
        client = self.client
        try:
            if client.change is not None and scene.urls:
                raise NotHere("skipped: it needs a server of its own, without --url")
            check_programs(client)
            ensured = ensured_modules if client.is_npm else ensured_venv
            folder = Path(scene.terms.venvs) if scene.terms.venvs else default_folder()
            bin_folder = ensured(folder.absolute(), client.name, client.requirements)
        except NotHere as error:
            return ClientResult(client.name, skipped=str(error))
        except (NotInstallable, OSError) as error:
            return ClientResult(client.name, trouble=str(error))
        with self._url(scene) as url:
            return run_client(client, bin_folder, target_at(url, Path(scene.terms.tokenizer)))

    @contextlib.contextmanager
    def _url(self, scene: Scene) -> Iterator[str]:
        if self.client.change is None:
            yield scene.base_url
            return
        with served(ROOT / "configs" / "demo.yaml", change=self.client.change) as service:
            yield service.base_url


def target_at(url: str, tokenizer: Path) -> Target:
    """Return the server at `url`, and the first model that it lists.

    Raises:
        httpx.HTTPError: nobody answers there.
    """
    answer = httpx.get(f"{url.rstrip('/')}/v1/models", timeout=_MODELS_TIMEOUT_S)
    answer.raise_for_status()
    return Target(url.rstrip("/"), answer.json()["data"][0]["id"], tokenizer.absolute())


def _clients(scene: Scene) -> Iterator[Tried]:
    for name in scene.terms.only:
        yield Tried(way=name, client=_BY_NAME[name])


CLIENT_CHECKS = Trial(
    question="do existing clients run unmodified",
    terms={
        "only": tuple(_BY_NAME),
        "tokenizer": "models/demo/target",  # folder of the served model's, for GuideLLM and AIPerf
        "venvs": "",  # where environments are kept; "": ~/.cache/outrider/clients
    },
    choices={"only": _BY_NAME},
    quick={"only": ("openai",)},
    place=Place(change=lambda config, terms: let_pages_in(config), is_watched=False, num_urls=1),
    events=_clients,
)
