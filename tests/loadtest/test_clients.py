"""The command that runs other people's clients: its reading, its limits, its table. No network."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from deployments.config.schema import AppConfig
from loadtest.__main__ import main
from loadtest.clients import trial
from loadtest.clients.browser import browser_path
from loadtest.clients.catalog import CLIENTS, Client, Load, Target, let_pages_in
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
from loadtest.clients.run_client import check_programs, run_client
from loadtest.clients.venvs import NotInstallable, ensured_venv
from loadtest.report.machine import ROOT
from tests.fakes.scripted_server import answer, scripted_server

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


def guidellm_report(**totals: int) -> dict[str, Any]:
    error = {"info": {"error": "400 Bad Request"}}
    return {
        "benchmarks": [
            {
                "metrics": {"request_totals": totals},
                "requests": {"errored": [error] * totals["errored"]},
            }
        ]
    }


@pytest.mark.parametrize(
    ("totals", "is_clean", "why"),
    [
        ({"successful": 12, "errored": 0, "incomplete": 0}, True, ""),
        ({"successful": 11, "errored": 1, "incomplete": 0}, False, "400 Bad Request"),
        ({"successful": 11, "errored": 0, "incomplete": 1}, False, ""),
        ({"successful": 0, "errored": 0, "incomplete": 0}, False, ""),
    ],
    ids=["clean", "one-error", "one-incomplete", "nothing"],
)
def test_guidellm(tmp_path: Path, totals: dict[str, int], is_clean: bool, why: str) -> None:
    (tmp_path / "report.json").write_text(json.dumps(guidellm_report(**totals)))
    counts = read_guidellm(tmp_path)
    assert (counts.is_clean, counts.why) == (is_clean, why)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"benchmarks": [{"metrics": {}}]}'])
def test_another_shape_is_no_report(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(NoReport, match=r"report\.json"):
        read_guidellm(tmp_path)


def aiperf_folder(folder: Path, errors: list[Any], report: dict[str, Any] | None = None) -> Path:
    records = [{"metrics": {"request_latency": {"value": 1}}, "error": error} for error in errors]
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    (folder / "profile_export.jsonl").write_text(lines)
    if report is not None:
        (folder / "profile_export_aiperf.json").write_text(json.dumps(report))
    return folder


def test_aiperf_counts_its_records(tmp_path: Path) -> None:
    assert read_aiperf(aiperf_folder(tmp_path, [None] * 3)) == Counts(3, 0)
    counts = read_aiperf(aiperf_folder(tmp_path, [None, {"code": 400}]))
    assert (counts.num_completed, counts.num_failed) == (1, 1)
    assert "400" in counts.why
    assert not read_aiperf(aiperf_folder(tmp_path, [])).is_clean


def test_aiperf_without_a_record_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(NoReport, match="profile_export"):
        read_aiperf(tmp_path)
    (tmp_path / "profile_export.jsonl").write_text('{"no": "metrics"}\n')
    with pytest.raises(NoReport, match="metrics"):
        read_aiperf(tmp_path)


def test_requests_without_speculation_figures_have_failed(tmp_path: Path) -> None:
    folder = aiperf_folder(tmp_path, [None] * 3, {"spec_decode_steps": {"count": 2, "avg": 4.0}})
    counts = read_aiperf_speculation(folder)
    assert (counts.num_completed, counts.num_failed) == (2, 1)
    whole = {
        "spec_decode_steps": {"count": 3},
        "spec_decode_token_weighted_acceptance_length": {"avg": 2.5},
    }
    counts = read_aiperf_speculation(aiperf_folder(tmp_path, [None] * 3, whole))
    assert counts.is_clean
    assert str(counts) == "3 completed, 0 failed; acceptance length 2.50"
    assert not read_aiperf_speculation(aiperf_folder(tmp_path, [None] * 3, {})).is_clean


# --- programs, and their limits -------------------------------------------------------------------


def test_a_program_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    child = "import time; time.sleep(600)"
    program = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    since_s = time.monotonic()
    ended = run_bounded(
        [sys.executable, "-c", program], environment=os.environ, folder=tmp_path, timeout_s=3
    )
    assert time.monotonic() - since_s < 60
    assert ended.status is None
    assert ended.why(3) == "ended after the time limit of 3 s"
    assert is_gone(int(ended.output))


def test_what_a_program_leaves_behind_is_ended(tmp_path: Path) -> None:
    child = "import time; time.sleep(600)"
    program = (
        "import subprocess, sys\n"
        f"print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True)\n"
    )
    ended = run_bounded(
        [sys.executable, "-c", program], environment=os.environ, folder=tmp_path, timeout_s=60
    )
    assert ended.why(60) == ""
    assert is_gone(int(ended.output))


def is_gone(pid: int) -> bool:
    for _ in range(200):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


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
    (tmp_path / "fake_script.py").write_text(program)
    client = Client(
        name="pytest",
        requirements=(),
        script="fake_script",
        environment={"PYTHONPATH": str(tmp_path)},
        timeout_s=3 if "sleep" in program else 60,
    )
    result = run_client(client, BIN, TARGET)
    assert [check.ok for check in result.checks] == oks
    assert len(result.failures) == len(failures)
    assert all(part in whole for part, whole in zip(failures, result.failures, strict=True))
    assert result.version == pytest.__version__


@pytest.mark.parametrize(
    ("status", "totals", "ok"),
    [
        (0, {"successful": 2, "errored": 0, "incomplete": 0}, True),
        (0, {"successful": 1, "errored": 1, "incomplete": 0}, False),
        (1, {"successful": 2, "errored": 0, "incomplete": 0}, False),
        (None, {"errored": 0}, False),
    ],
    ids=["clean", "errors", "status", "not there"],
)
def test_a_tool_passes_by_its_status_and_its_report(
    tmp_path: Path, status: int | None, totals: dict[str, int], ok: bool
) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    if status is not None:
        report = json.dumps(guidellm_report(**totals))
        program = f"open('report.json', 'w').write({report!r})\nraise SystemExit({status})"
        (tmp_path / "tool").write_text(f"#!{sys.executable}\n{program}")
        (tmp_path / "tool").chmod(0o755)
    load = Load("chat", lambda target: ["run", target.root_url], read_guidellm)
    result = run_client(Client(name="tool", requirements=(), loads=(load,)), tmp_path, TARGET)
    assert bool(result.checks) == (status is not None)
    assert all(check.ok is ok for check in result.checks)
    assert bool(result.failures) is not ok


# --- environments ---------------------------------------------------------------------------------


def test_what_cannot_be_installed_is_said_and_tried_again(tmp_path: Path) -> None:
    missing = [str(tmp_path / "no-such-package.whl")]
    for _ in range(2):
        with pytest.raises(NotInstallable, match="no-such-package"):
            ensured_venv(tmp_path, "client", missing)
    (place,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (place / "installed.txt").write_text("")
    assert ensured_venv(tmp_path, "client", missing) == place / "bin"
    assert ensured_venv_folder(tmp_path, ["other"]) != place


def ensured_venv_folder(folder: Path, requirements: list[str]) -> Path:
    with pytest.raises(NotInstallable):
        ensured_venv(folder, "client", [*requirements, str(folder / "none.whl")])
    return max(folder.iterdir(), key=lambda path: path.stat().st_ctime)


def test_without_node_a_client_of_npm_is_skipped_and_the_others_are_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(trial, "ensured_venv", lambda *_: tmp_path)
    monkeypatch.setattr(trial, "target_at", lambda url, tokenizer: TARGET)
    passed = [CheckResult("a", ok=True)]
    monkeypatch.setattr(
        trial, "run_client", lambda client, *_: ClientResult(client.name, "1", checks=passed)
    )
    output = tmp_path / "clients.json"
    words = ["clients", "--url", TARGET.root_url, "--set", "only=openai,openai (npm)"]
    assert main([*words, "--output", str(output)]) == 0
    clients = {each["client"]: each for each in json.loads(output.read_text())["events"]}
    assert clients["openai (npm)"]["skipped"] == "skipped: npm is not installed"
    assert clients["openai (npm)"]["failures"] == []
    assert clients["openai"]["skipped"] == ""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_script_for_node_finds_its_packages_and_says_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "place" / "node_modules" / "fake"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"name": "fake", "version": "1.2", "main": "i.js"}')
    (package / "i.js").write_text("module.exports = (x) => x + 1;")
    lines = ["import add from 'fake';", "const say = (x) => console.log(JSON.stringify(x));"]
    lines += [
        "say({checks: ['a']});",
        "say({check: 'a', ok: add(1) === 2, detail: process.argv[3]});",
    ]
    (tmp_path / "fake.mjs").write_text("\n".join(lines))
    monkeypatch.setattr("loadtest.clients.run_client.ROOT", tmp_path)
    client = Client(name="fake (npm)", requirements=(), script="fake.mjs", is_npm=True)
    result = run_client(client, tmp_path / "place", TARGET)
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
    package = tmp_path / "place" / "node_modules" / "openai"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"name": "openai", "version": "1.2"}')
    (package / "index.mjs").write_text(
        "export const read = async (url) => (await fetch(url)).text();"
    )
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
        result = run_client(client, tmp_path / "place", Target(server.url, "tiny", ROOT))
    assert result.version.startswith("1.2, Chromium ")
    assert [check.ok for check in result.checks] == [lets_in]
    assert bool(result.failures) is not lets_in
    if lets_in:
        assert result.checks[0].detail == "tiny"
    else:
        assert "Failed to fetch" in result.failures[0]


def test_a_client_behind_nginx_asks_nginx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        nginx_version()
    except NotHere as missing:
        pytest.skip(str(missing))
    with scripted_server(answer(b"hello")) as server:
        program = (
            "import json, sys, urllib.request\n"
            "answer = urllib.request.urlopen(sys.argv[1])\n"
            "is_nginx = answer.headers['server'].startswith('nginx')\n"
            "print(json.dumps({'check': 'a', 'ok': is_nginx, 'detail': answer.read().decode()}))\n"
        )
        (tmp_path / "fake_script.py").write_text(program)
        client = Client(
            name="pytest",
            requirements=(),
            script="fake_script",
            is_behind_nginx=True,
            environment={"PYTHONPATH": str(tmp_path)},
        )
        result = run_client(client, BIN, Target(server.url, "tiny", ROOT))
    assert result.failures == []
    assert [(check.ok, check.detail) for check in result.checks] == [(True, "hello")]
    assert f"nginx {nginx_version()}" in result.version


def test_what_is_missing_beside_its_packages_skips_a_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loadtest.clients.processes.shutil.which", lambda *_, **__: None)
    for client in CLIENTS:
        if client.is_page or client.is_behind_nginx:
            with pytest.raises(NotHere, match=r"skipped: .*installed"):
                check_programs(client)
        else:
            check_programs(client)


def test_a_client_that_wants_a_server_of_its_own_is_skipped_where_one_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trial, "ensured_venv", lambda *_: tmp_path)
    monkeypatch.setattr(trial, "check_programs", lambda client: None)
    [name] = [client.name for client in CLIENTS if client.change is not None]
    output = tmp_path / "clients.json"
    words = ["clients", "--url", TARGET.root_url, "--set", f"only={name}"]
    assert main([*words, "--output", str(output)]) == 0
    [client] = json.loads(output.read_text())["events"]
    assert "a server of its own" in client["skipped"]


def test_changes_of_a_clients_own_server_are_configs() -> None:
    for client in [*CLIENTS, Client(name="x", requirements=(), change=let_pages_in)]:
        if client.change is None:
            continue
        tree = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
        client.change(tree)
        config = AppConfig.model_validate(tree["applications"][0]["args"])
        assert config.router.http.allowed_origins == ["*"]


# --- the record -----------------------------------------------------------------------------------


def test_what_needs_something_else_is_no_failure() -> None:
    lacking = CheckResult("c", ok=False, needs="tools", detail="400")
    assert ClientResult("x", checks=[lacking]).failures == []
    broken = CheckResult("b", ok=False, detail="\n400: no\nmore")
    assert ClientResult("x", checks=[lacking, broken]).failures == ["b: 400: no"]
    assert ClientResult("x", trouble="not installed: no").failures == ["not installed: no"]


def test_a_client_that_cannot_be_installed_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def installed(folder: Path, name: str, requirements: Any) -> Path:
        if name == "openai":
            raise NotInstallable("not installed: no index")
        return tmp_path

    def run(client: Client, bin_folder: Path, target: Target) -> ClientResult:
        return ClientResult(client.name, "1", checks=[CheckResult("a", ok=True)])

    monkeypatch.setattr(trial, "ensured_venv", installed)
    monkeypatch.setattr(trial, "run_client", run)
    monkeypatch.setattr(trial, "target_at", lambda url, tokenizer: TARGET)
    output = tmp_path / "clients.json"
    words = ["clients", "--url", "http://127.0.0.1:9", "--set", "only=openai,litellm,aiperf"]
    assert main([*words, "--output", str(output)]) == 1
    content = json.loads(output.read_text())
    assert content["command"].startswith("python -m loadtest clients --url ")
    assert [row["runs"]["passed"] for row in content["samples"]] == [[0], [1], [1]]
    assert content["problems"] == ["openai: not installed: no index"]
    assert {client["client"]: client["failures"] for client in content["events"]} == {
        "openai": ["not installed: no index"],
        "litellm": [],
        "aiperf": [],
    }


def test_every_client_is_run_somehow() -> None:
    for client in CLIENTS:
        assert client.requirements, client.name
        assert bool(client.script) != bool(client.loads), client.name
        if client.script:
            name = client.script if client.is_npm else f"{client.script.replace('.', '/')}.py"
            path = ROOT / name
            assert path.exists(), client.name
        for load in client.loads:
            words = " ".join(load.words(TARGET))
            assert TARGET.root_url in words
            assert "count" in words  # bounded
