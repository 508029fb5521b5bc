"""One client against one server: its script or its loads, in a folder that goes afterwards."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from loadtest.clients.catalog import Client, Load, Target
from loadtest.clients.node import module_version, script_command
from loadtest.clients.processes import Ended, run_bounded
from loadtest.clients.reports import NoReport
from loadtest.clients.results import CheckResult, ClientResult, read_checks
from loadtest.clients.venvs import installed_version
from loadtest.report.machine import ROOT


def run_client(client: Client, bin_folder: Path, target: Target) -> ClientResult:
    """All checks of a client; what goes wrong with it is in the result, never raised."""
    result = ClientResult(client.name)
    since_s = time.monotonic()
    try:
        version = module_version if client.is_npm else installed_version
        result.version = version(bin_folder, client.name.split()[0])
        if client.script:
            run_script(client, bin_folder, target, result)
        for load in client.loads:
            result.checks.append(run_load(client, load, bin_folder, target))
    except OSError as error:
        result.trouble = f"cannot be run: {error}"
    result.seconds = time.monotonic() - since_s
    return result


def run_script(client: Client, bin_folder: Path, target: Target, result: ClientResult) -> None:
    """Run a client's script and note what its lines say."""
    with tempfile.TemporaryDirectory(prefix="client-") as name:
        if client.is_npm:
            command = script_command(ROOT / client.script, bin_folder, Path(name))
        else:
            command = [str(bin_folder / "python"), "-m", client.script]
        command += [target.root_url, target.model]
        ended = _run(client, command, bin_folder, Path(name))
    result.checks = read_checks(ended.output)
    result.trouble = ended.why(client.timeout_s)
    if not result.checks and not result.trouble:
        result.trouble = "the script reported no checks"


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
    """Nothing of the caller's: no keys, no proxies, no settings of the clients' own."""
    environment = {"PATH": f"{bin_folder}:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}
    if client.script:
        environment["PYTHONPATH"] = str(ROOT)
    return {**environment, **client.environment}
