"""One client against one server: its script or its loads, in a folder that goes afterwards."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from loadtest.clients.browser import browser_path, browser_version, run_page
from loadtest.clients.catalog import Client, Load, Target
from loadtest.clients.nginx import nginx_before, nginx_version
from loadtest.clients.node import module_version, script_command
from loadtest.clients.processes import Ended, run_bounded
from loadtest.clients.reports import NoReport
from loadtest.clients.results import CheckResult, ClientResult, read_checks
from loadtest.clients.venvs import installed_version
from loadtest.report.machine import ROOT


def check_programs(client: Client) -> None:
    """Check that this machine has the programs that a client needs beside its packages.

    Raises:
        NotHere: one is not installed.
    """
    if client.is_behind_nginx:
        nginx_version()
    if client.is_page:
        browser_path()


def run_client(client: Client, bin_folder: Path, target: Target) -> ClientResult:
    """Run all checks of a client; errors are in the result, never raised."""
    result = ClientResult(client.name)
    since_s = time.monotonic()
    try:
        result.version = _version(client, bin_folder)
        with _before(client, target) as reached:
            if client.script:
                run_script(client, bin_folder, reached, result)
            for load in client.loads:
                result.checks.append(run_load(client, load, bin_folder, reached))
    except (OSError, RuntimeError) as error:
        result.trouble = f"cannot be run: {error}"
    result.seconds = time.monotonic() - since_s
    return result


def _version(client: Client, bin_folder: Path) -> str:
    package = client.name.split()[0]
    version = module_version if client.is_npm else installed_version
    own = version(bin_folder, package)
    if client.is_behind_nginx:
        return f"{own}, nginx {nginx_version()}"
    return f"{own}, Chromium {browser_version()}" if client.is_page else own


@contextlib.contextmanager
def _before(client: Client, target: Target) -> Iterator[Target]:
    """Yield the target that the client asks: the server, or nginx in front of it."""
    if not client.is_behind_nginx:
        yield target
        return
    with (
        tempfile.TemporaryDirectory(prefix="nginx-") as folder,
        nginx_before(target.root_url, Path(folder)) as url,
    ):
        yield replace(target, root_url=url)


def run_script(client: Client, bin_folder: Path, target: Target, result: ClientResult) -> None:
    """Run a client's script and note what its lines say."""
    with tempfile.TemporaryDirectory(prefix="client-") as name:
        ended = _script_ended(client, bin_folder, target, Path(name))
    result.checks = read_checks(ended.output)
    result.trouble = ended.why(client.timeout_s)
    if not result.checks and not result.trouble:
        result.trouble = "the script reported no checks"


def _script_ended(client: Client, bin_folder: Path, target: Target, folder: Path) -> Ended:
    if client.is_page:
        return run_page(
            ROOT / client.script,
            bin_folder / "node_modules",
            {"root_url": target.root_url, "model": target.model},
            folder=folder,
            timeout_s=client.timeout_s,
        )
    if client.is_npm:
        command = script_command(ROOT / client.script, bin_folder, folder)
    else:
        command = [str(bin_folder / "python"), "-m", client.script]
    command += [target.root_url, target.model, str(target.tokenizer)]
    return _run(client, command, bin_folder, folder)


def run_load(client: Client, load: Load, bin_folder: Path, target: Target) -> CheckResult:
    """Run a tool's command; passed: it exits 0, some requests completed and none failed."""
    command = [str(bin_folder / client.name), *load.words(target)]
    with tempfile.TemporaryDirectory(prefix="client-") as name:
        ended = _run(client, command, bin_folder, Path(name))
        is_clean = False
        try:
            counts = load.read(Path(name))
            is_clean, found = counts.is_clean, str(counts)
        except NoReport as error:
            found = f"no report: {error}"
    why = ended.why(client.timeout_s)
    detail = f"{found}; {why}" if why else found
    return CheckResult(load.name, ok=not why and is_clean, detail=detail)


def _run(client: Client, command: list[str], bin_folder: Path, folder: Path) -> Ended:
    return run_bounded(
        command,
        environment=_environment(client, bin_folder, folder),
        folder=folder,
        timeout_s=client.timeout_s,
    )


def _environment(client: Client, bin_folder: Path, home: Path) -> dict[str, str]:
    """Return an environment without the caller's keys, proxies and settings."""
    environment = {"PATH": f"{bin_folder}:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}
    if client.script:
        environment["PYTHONPATH"] = str(ROOT)
    return {**environment, **client.environment}
