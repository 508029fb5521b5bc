"""The command that runs other people's clients: its reading, its limits, its table. No network."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadtest.__main__ import main
from loadtest.clients import trial
from loadtest.clients.browser import browser_path
from loadtest.clients.catalog import CLIENTS, Client, Load, Target
from loadtest.clients.nginx import nginx_version
from loadtest.clients.processes import NotHere, run_bounded
from loadtest.clients.reports import (
    Counts,
    NoReport,
    read_aiperf,
    read_aiperf_speculation,
    read_guidellm,
)
from loadtest.clients.results import CheckResult, ClientResult, read_checks
from loadtest.clients.run_client import run_client
from loadtest.clients.venvs import NotInstallable
from loadtest.report.machine import ROOT
from tests.fakes.scripted_server import answer, scripted_server
from tests.harness.waiting import block_until

TARGET = Target("http://127.0.0.1:9", "tiny", ROOT)
BIN = Path(sys.executable).parent

ANNOUNCE = 'import json, time\nprint(json.dumps({"checks": ["a", "b"]}), flush=True)\n'
PASS_A = 'print(json.dumps({"check": "a", "ok": True, "needs": "", "detail": "x"}), flush=True)\n'


# --- what a script says -------------------------------------------------------------------------


def test_lines_of_a_script_are_read_among_others() -> None:
    lines = [
        "a library's own words",
        json.dumps({"checks": ["a", "b", "c"]}),
        json.dumps({"check": "a", "ok": True, "needs": "", "detail": "fine"}),
        '{"broken',
        json.dumps({"check": "d", "ok": "false"}),
        json.dumps({"check": "b", "ok": False, "needs": "tools", "detail": "400"}),
    ]
    found = read_checks("\n".join(lines))
    assert [(check.name, check.ok, check.needs) for check in found] == [
        ("a", True, ""),
        ("d", False, ""),  # it must be true itself
        ("b", False, "tools"),
        ("c", False, ""),
    ]
    assert found[-1].detail == "not reached"
    assert [check.failed for check in found] == [False, True, False, True]
    assert ClientResult("x", checks=found[:1] + found[2:3]).failures == [], "it lacks its tools"
    broken = CheckResult("b", ok=False, detail="\n400: no\nmore")
    assert ClientResult("x", checks=[broken]).failures == ["b: 400: no"]


def test_the_checks_run_on_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    from loadtest.clients.scripts.checks import Checks, Service, expect

    checks = Checks()

    @checks.named("falls")
    def falls(service: Service) -> str:
        expect(service.model == "other", f"model {service.model}")
        return ""

    @checks.named("raises", needs="tools")
    def raises(service: Service) -> str:
        raise ValueError(service.base_url)

    @checks.named("stands")
    def stands(service: Service) -> str:
        return "found"

    checks.main(["http://h:1/", "tiny"])
    found = read_checks(capsys.readouterr().out)
    assert [(check.ok, check.needs, check.detail) for check in found] == [
        (False, "", "model tiny"),
        (False, "tools", "ValueError: http://h:1/v1"),
        (True, "", "found"),
    ]


# --- what the tools write -----------------------------------------------------------------------


def guidellm_report(**totals: int) -> str:
    error = {"info": {"error": "400 Bad Request"}}
    requests = {"errored": [error] * totals["errored"]}
    return json.dumps(
        {"benchmarks": [{"metrics": {"request_totals": totals}, "requests": requests}]}
    )


def guidellm_files(successful: int, errored: int, incomplete: int) -> dict[str, str]:
    report = guidellm_report(successful=successful, errored=errored, incomplete=incomplete)
    return {"report.json": report}


def aiperf_files(*errors: Any, report: dict[str, Any] | None = None) -> dict[str, str]:
    records = [{"metrics": {"request_latency": {"value": 1}}, "error": error} for error in errors]
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    summary = {} if report is None else {"profile_export_aiperf.json": json.dumps(report)}
    return {"profile_export.jsonl": lines, **summary}


STEPS, LENGTH = "spec_decode_steps", "spec_decode_token_weighted_acceptance_length"
NONE = (None,) * 3


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("read", "files", "counts", "is_clean"),
    [
        (read_guidellm, guidellm_files(12, 0, 0), Counts(12, 0), True),
        (read_guidellm, guidellm_files(11, 1, 0), Counts(11, 1, "400 Bad Request"), False),
        (read_guidellm, guidellm_files(11, 0, 1), Counts(11, 1), False),
        (read_guidellm, guidellm_files(0, 0, 0), Counts(0, 0), False),
        (read_aiperf, aiperf_files(*NONE), Counts(3, 0), True),
        (read_aiperf, aiperf_files(None, "400"), Counts(1, 1, "400"), False),
        (read_aiperf, aiperf_files(), Counts(0, 0), False),
        (
            read_aiperf_speculation,
            aiperf_files(*NONE, report={STEPS: {"count": 3}, LENGTH: {"avg": 2.5}}),
            Counts(3, 0, figures="acceptance length 2.50"),
            True,
        ),
        (
            read_aiperf_speculation,
            aiperf_files(*NONE, report={STEPS: {"count": 2, "avg": 4.0}}),
            Counts(2, 1, "1 requests without its speculation figures"),
            False,
        ),
        (
            read_aiperf_speculation,
            aiperf_files(*NONE, report={}),
            Counts(0, 3, "3 requests without its speculation figures"),
            False,
        ),
    ],
)
def test_requests_are_counted(
    tmp_path: Path,
    read: Callable[[Path], Counts],
    files: dict[str, str],
    counts: Counts,
    is_clean: bool,
) -> None:
    found = read(written(tmp_path, files))
    assert found == counts
    assert found.is_clean is is_clean


@pytest.mark.parametrize(
    ("read", "files", "complaint"),
    [
        *(
            (read_guidellm, {"report.json": text}, r"report\.json")
            for text in ("", "[]", "{}", '{"benchmarks": [{"metrics": {}}]}')
        ),
        (read_aiperf, {}, "profile_export"),
        (read_aiperf, {"profile_export.jsonl": '{"no": "metrics"}\n'}, "metrics"),
    ],
)
def test_another_shape_is_no_report(
    tmp_path: Path, read: Callable[[Path], Counts], files: dict[str, str], complaint: str
) -> None:
    with pytest.raises(NoReport, match=complaint):
        read(written(tmp_path, files))


# --- programs, and their limits -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "timeout_s", "why"),
    [("time.sleep(600)", 3, "ended after the time limit of 3 s"), ("", 60, "")],
    ids=["hangs", "ends"],
)
def test_what_a_program_started_is_ended_with_it(
    tmp_path: Path, then: str, timeout_s: float, why: str
) -> None:
    child = "import time; time.sleep(600)"
    program = (
        "import subprocess, sys, time\n"
        f"print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True)\n{then}\n"
    )
    since_s = time.monotonic()
    ended = run_bounded(
        [sys.executable, "-c", program],
        environment=os.environ,
        folder=tmp_path,
        timeout_s=timeout_s,
    )
    assert time.monotonic() - since_s < 60
    assert ended.why(timeout_s) == why
    block_until(lambda: is_gone(int(ended.output)))


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def client_of(folder: Path, program: str, **fields: Any) -> Client:
    """Return a client with the version of pytest's, whose script is the program."""
    (folder / "fake_script.py").write_text(program)
    environment = {"PYTHONPATH": str(folder)}
    return Client(
        name="pytest",
        requirements=(),
        script="fake_script",
        environment=environment,
        **fields,
    )


@pytest.mark.parametrize(
    ("program", "oks", "failures"),
    [
        (ANNOUNCE + PASS_A + PASS_A.replace('"a"', '"b"'), [True, True], []),
        (
            ANNOUNCE + PASS_A + "time.sleep(600)\n",
            [True, False],
            ["ended after the time limit of 3 s", "b: not reached"],
        ),
        ("import no_such_module\n", [], ["No module named 'no_such_module'"]),
        ("", [], ["the script reported no checks"]),
        (
            "import os\nraise SystemExit('OPENAI_BASE_URL' in os.environ)",
            [],
            ["reported no checks"],
        ),
    ],
    ids=["passes", "hangs", "dies", "says nothing", "sees nothing of the caller's keys"],
)
def test_a_script_passes_or_says_why_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    oks: list[bool],
    failures: list[str],
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere")
    client = client_of(tmp_path, program, timeout_s=3 if "sleep" in program else 60)
    result = run_client(client, BIN, TARGET)
    assert [check.ok for check in result.checks] == oks
    assert len(result.failures) == len(failures)
    assert all(part in whole for part, whole in zip(failures, result.failures, strict=True))
    assert result.version == pytest.__version__


@pytest.mark.parametrize(
    ("status", "errored", "ok"),
    [(0, 0, True), (0, 1, False), (1, 0, False), (None, 0, False)],
    ids=["clean", "errors", "status", "not there"],
)
def test_a_tool_passes_by_its_status_and_its_report(
    tmp_path: Path, status: int | None, errored: int, ok: bool
) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    if status is not None:
        report = guidellm_report(successful=2, errored=errored, incomplete=0)
        program = f"open('report.json', 'w').write({report!r})\nraise SystemExit({status})"
        (tmp_path / "tool").write_text(f"#!{sys.executable}\n{program}")
        (tmp_path / "tool").chmod(0o755)
    load = Load("chat", lambda target: ["run", target.root_url], read_guidellm)
    result = run_client(Client(name="tool", requirements=(), loads=(load,)), tmp_path, TARGET)
    assert bool(result.checks) == (status is not None)
    assert all(check.ok is ok for check in result.checks)
    assert bool(result.failures) is not ok


def place_of(folder: Path, package: str, module: str, code: str) -> Path:
    """Write a package into a client's folder, and return the folder."""
    place = folder / "place" / "node_modules" / package
    place.mkdir(parents=True)
    (place / "package.json").write_text(f'{{"name": "{package}", "version": "1.2"}}')
    (place / module).write_text(code)
    return folder / "place"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_script_for_node_finds_its_packages_and_says_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = place_of(tmp_path, "fake", "index.js", "module.exports = (x) => x + 1;")
    (tmp_path / "fake.mjs").write_text(
        """
        import add from "fake";
        const say = (x) => console.log(JSON.stringify(x));
        say({ check: "a", ok: add(1) === 2, detail: process.argv[3] });
        """
    )
    monkeypatch.setattr("loadtest.clients.run_client.ROOT", tmp_path)
    client = Client(name="fake (npm)", requirements=(), script="fake.mjs", is_npm=True)
    result = run_client(client, place, TARGET)
    assert result.failures == []
    assert [(check.ok, check.detail) for check in result.checks] == [(True, TARGET.model)]
    assert result.version == "1.2"


@pytest.mark.parametrize("lets_in", [True, False])
def test_a_page_is_of_another_origin_and_says_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lets_in: bool
) -> None:
    try:
        browser_path()
    except NotHere as missing:
        pytest.skip(str(missing))
    read = "export const read = async (url) => (await fetch(url)).text();"
    place = place_of(tmp_path, "openai", "index.mjs", read)
    (tmp_path / "page.mjs").write_text(
        """
        import { read } from "openai";
        export async function run({ root_url: root, model }, say) {
          await say({ checks: ["a"] });
          const detail = await read(`${root}/`);
          await say({ check: "a", ok: detail === "hello", detail: model });
        }
        """
    )
    monkeypatch.setattr("loadtest.clients.run_client.ROOT", tmp_path)
    client = Client(
        name="openai (page)", requirements=(), script="page.mjs", is_npm=True, is_page=True
    )
    headers = {"access-control-allow-origin": "*"} if lets_in else {}
    with scripted_server(answer(b"hello", headers=headers)) as server:
        target = Target(server.url, "tiny", ROOT)
        result = run_client(client, place, target)
    assert result.version.startswith("1.2, Chromium ")
    assert [check.ok for check in result.checks] == [lets_in]
    if lets_in:
        assert (result.failures, result.checks[0].detail) == ([], "tiny")
    else:
        assert "Failed to fetch" in result.failures[0]


def test_a_client_behind_nginx_asks_nginx(tmp_path: Path) -> None:
    try:
        nginx_version()
    except NotHere as missing:
        pytest.skip(str(missing))
    program = (
        "import json, sys, urllib.request\n"
        "answer = urllib.request.urlopen(sys.argv[1])\n"
        "is_nginx = answer.headers['server'].startswith('nginx')\n"
        "print(json.dumps({'check': 'a', 'ok': is_nginx, 'detail': answer.read().decode()}))\n"
    )
    client = client_of(tmp_path, program, is_behind_nginx=True)
    with scripted_server(answer(b"hello")) as server:
        result = run_client(client, BIN, Target(server.url, "tiny", ROOT))
    assert result.failures == []
    assert [(check.ok, check.detail) for check in result.checks] == [(True, "hello")]
    assert f"nginx {nginx_version()}" in result.version


# --- who is run, and the record -------------------------------------------------------------------


def test_a_client_that_is_not_installed_or_skipped_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def installed(folder: Path, name: str, requirements: Any) -> Path:
        if name == "litellm":
            raise NotInstallable("not installed: no index")
        return tmp_path

    def run(client: Client, bin_folder: Path, target: Target) -> ClientResult:
        return ClientResult(client.name, "1", checks=[CheckResult("a", ok=True)])

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(trial, "ensured_venv", installed)
    monkeypatch.setattr(trial, "check_programs", lambda client: None)
    monkeypatch.setattr(trial, "run_client", run)
    monkeypatch.setattr(trial, "target_at", lambda url, tokenizer: TARGET)
    [own] = [client.name for client in CLIENTS if client.change is not None]
    names = ["openai", "litellm", "openai (npm)", own]
    output = tmp_path / "clients.json"
    words = ["clients", "--url", TARGET.root_url, "--set", f"only={','.join(names)}"]
    assert main([*words, "--output", str(output)]) == 1
    content = json.loads(output.read_text())
    assert content["command"].startswith("python -m loadtest clients --url ")
    assert [row["runs"]["passed"] for row in content["samples"]] == [[1], [0], [0], [0]]
    assert content["problems"] == ["litellm: not installed: no index"]
    clients = {each["client"]: each for each in content["events"]}
    assert {name: clients[name]["failures"] for name in names} == {
        **{"openai": [], "litellm": ["not installed: no index"]},
        **{"openai (npm)": [], own: []},
    }
    assert [clients[name]["skipped"] for name in names] == [
        *("", "", "skipped: npm is not installed"),
        "skipped: it needs a server of its own, without --url",
    ]
