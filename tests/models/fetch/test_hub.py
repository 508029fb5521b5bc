"""Models of the hub by name: what is fetched, said, kept and refused, from a hub of our own.

Each process is one of its own, because the hub's library reads its settings when it is imported.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.service.served import free_port
from models.cache import sha256_of
from models.fetch.__main__ import main
from models.fetch.hub import is_hub_name, is_whole, snapshot_of
from tests.fakes.hub import COMMIT, hub, hub_environment

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "models" / "demo" / "draft"
NOWHERE = "http://127.0.0.1:9"
FIND = "from models.fetch.hub import *; folder = found_on_hub('tiny/words', {revision!r})"
BRING = "; bring(folder, print); print(folder)"
COMMAND = "`python -m models.fetch tiny/words --revision v1`"


def start(code: str, endpoint: str, home: Path, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=hub_environment(endpoint, home, PYTHONPATH=str(ROOT), **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(code: str, endpoint: str, home: Path, **more: str) -> tuple[list[str], str]:
    """Lines that were printed, and the last line of the errors."""
    with start(code, endpoint, home, **more) as process:
        said, errors = process.communicate(timeout=100)
    lines = [line for line in errors.splitlines() if line.strip()]
    return said.splitlines(), lines[-1] if process.returncode and lines else ""


def check(endpoint: str, home: Path, *changes: str, **more: str) -> tuple[list[str], str]:
    arguments = ["--check", "configs/no-draft.yaml", f"http_options.port={free_port()}", *changes]
    code = f"import sys; from deployments.config.__main__ import main; sys.exit(main({arguments}))"
    return run(code, endpoint, home, **more)


def test_what_may_be_a_name_on_the_hub() -> None:
    names = ["org/name", "meta-llama/Llama-3.1-8B"]
    others = ["name", "a/b/c", "./a", "~/a", "/a/b", "a/b.gguf", "a/.."]
    assert [name for name in [*names, *others] if is_hub_name(name)] == names


def test_a_folder_says_which_commit_of_what_it_is() -> None:
    snapshot = snapshot_of(Path(f"/c/hub/models--my-org--a--b/snapshots/{COMMIT}"))
    assert snapshot is not None
    assert (snapshot.repository, snapshot.commit) == ("my-org/a--b", COMMIT)
    assert snapshot.cache == Path("/c/hub")
    assert snapshot_of(Path("/models/target")) is None


def test_the_size_is_said_then_it_is_fetched_then_the_hub_is_not_asked(tmp_path: Path) -> None:
    asked: list[str] = []
    with hub(DEMO, asked=asked) as endpoint:
        code = f"{FIND.format(revision=None)}{BRING}; import huggingface_hub.constants as library"
        code += "; print(library.HF_HUB_DISABLE_TELEMETRY)"
        [*said, is_silent], error = run(code, endpoint, tmp_path)
    assert (is_silent, error) == ("True", "")
    size = (DEMO / "model.safetensors").stat().st_size / 1e6
    cache = tmp_path / "hub"
    name = f"tiny/words at {COMMIT[:12]}"
    assert said == [
        f"{size:,.1f} MB in 1 file of {name} are to be downloaded into {cache}",
        f"{name} is there",
        str(cache / "models--tiny--words" / "snapshots" / COMMIT),
    ]
    folder = Path(said[-1])
    assert is_whole(folder)
    for file in folder.iterdir():
        assert sha256_of(file) == sha256_of(DEMO / file.name)
    assert "README.md" not in asked
    assert asked[-1] == "model.safetensors"  # after the small files: see `is_whole`
    for revision in (None, COMMIT):  # no hub, and the weights are there
        for more in ({}, {"HF_HUB_OFFLINE": "1"}):
            code = FIND.format(revision=revision) + BRING
            assert run(code, NOWHERE, tmp_path, **more) == ([str(folder)], "")


def test_the_command_fills_a_cache_that_serves_without_a_network(tmp_path: Path) -> None:
    """As the Job fills the volume that pods read."""
    fetch = "import sys; from models.fetch.__main__ import main; sys.exit(main({arguments}))"
    repository = tmp_path / "repository"
    shutil.copytree(DEMO, repository)
    unread = ("consolidated.safetensors", "onnx/config.json", "onnx/model.safetensors")
    for name in (*unread, "additional_chat_templates/tool_use.jinja"):
        (repository / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(DEMO / "config.json", repository / name)
    asked: list[str] = []
    with hub(repository, asked=asked) as endpoint:
        said, error = run(fetch.format(arguments=["tiny/words"]), endpoint, tmp_path)
    assert not error
    folder = Path(said[-1])
    assert not {*unread} & {*asked}
    assert (folder / "additional_chat_templates" / "tool_use.jinja").is_file()
    (repository / "model.safetensors").unlink()
    assert not is_whole(repository)  # the other file there is no weights that are read
    commit = folder.name
    with_commit = fetch.format(arguments=["tiny/words", "--revision", commit])
    again, error = run(with_commit, NOWHERE, tmp_path, HF_HUB_OFFLINE="1")
    assert (again, error) == ([str(folder)], "")
    served, error = run(FIND.format(revision=commit) + BRING, NOWHERE, tmp_path, HF_HUB_OFFLINE="1")
    assert (served, error) == ([str(folder)], "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["words"], "model must be smollm2 or org/name, got 'words'"),
        (["smollm2", "--revision", "v1"], "--revision is for org/name, not for smollm2"),
    ],
)
def test_the_command_says_what_a_model_is(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert complaint in capsys.readouterr().err


def test_two_processes_fetch_one_copy(tmp_path: Path) -> None:
    asked: list[str] = []
    with hub(DEMO, asked=asked) as endpoint:
        code = FIND.format(revision=COMMIT) + BRING
        processes = [start(code, endpoint, tmp_path) for _ in range(2)]
        for process in processes:
            assert process.communicate(timeout=100)[0].splitlines()[-1].endswith(COMMIT)
            assert process.returncode == 0
    assert asked.count("model.safetensors") == 1


@pytest.mark.parametrize(
    ("name", "revision", "reason"),
    [
        ("tiny/words", "v2", "the hub's tiny/words has no revision 'v2'"),
        ("tiny/wrods", None, "the hub has no tiny/wrods, or it is private: then set HF_TOKEN"),
    ],
)
def test_what_the_hub_has_not_is_said(
    tmp_path: Path, name: str, revision: str | None, reason: str
) -> None:
    code = f"from models.fetch.hub import *; found_on_hub({name!r}, {revision!r})"
    with hub(DEMO) as endpoint:
        _, error = run(code, endpoint, tmp_path)
    assert error.startswith(f"ValueError: {reason}")


def test_weights_that_are_not_what_the_hub_says_are_removed(tmp_path: Path) -> None:
    with hub(DEMO, {"model.safetensors": "0" * 64}) as endpoint:
        _, error = run(FIND.format(revision=None) + BRING, endpoint, tmp_path)
    assert "model.safetensors is not the expected file" in error
    assert error.endswith("; it was removed")
    assert not list(tmp_path.rglob("*.safetensors"))


def test_without_a_hub_it_says_which_switch_or_address(tmp_path: Path) -> None:
    _, error = run(FIND.format(revision="v1"), NOWHERE, tmp_path, HF_HUB_OFFLINE="1")
    at = f"ValueError: tiny/words at revision v1 is not whole in {tmp_path / 'hub'}, and "
    assert error == (f"{at}HF_HUB_OFFLINE is set: unset it, or fetch it beforehand with {COMMAND}")
    _, error = run(FIND.format(revision="v1"), NOWHERE, tmp_path)
    why = "cannot be reached ([Errno 111] Connection refused)"
    assert error == f"{at}{NOWHERE} {why}; where it can, {COMMAND} fetches it"


def test_the_check_says_what_will_be_downloaded_and_how_to_pin_it(tmp_path: Path) -> None:
    changes = ("target.model_path=tiny/words", "target.max_model_len=200")
    with hub(DEMO) as endpoint:
        said, error = check(endpoint, tmp_path, *changes)
        assert not error
        pinned, error = check(endpoint, tmp_path, *changes, f"target.revision={COMMIT}")
    size = f"{(DEMO / 'model.safetensors').stat().st_size / 1e6:,.1f} MB in 1 file of tiny/words"
    note = f"note: target: main of tiny/words may move; target.revision={COMMIT} keeps what it is"
    assert not error
    assert any(f"sizes unknown: {size}" in line for line in said)
    assert any(line.startswith(note) for line in said)
    assert any(f"sizes unknown: {size}" in line for line in pinned)
    assert not any("may move" in line for line in pinned)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_the_check_names_the_key_where_it_cannot_be_had(tmp_path: Path) -> None:
    _, error = check(NOWHERE, tmp_path, "target.model_path=tiny/words", HF_HUB_OFFLINE="1")
    assert "target.model_path: no such folder: 'tiny/words'; as a model of the hub: " in error
    assert "HF_HUB_OFFLINE is set" in error
    _, error = check(NOWHERE, tmp_path, "target.revision=v1", "target.model_path=models/demo/draft")
    assert "target.revision: is for models of the hub, models/demo/draft is a folder here" in error


def test_the_python_api_takes_a_name(tmp_path: Path) -> None:
    code = (
        "from deployments.llm import LLM, SamplingParams\n"
        "params = SamplingParams(seed=1, max_tokens=12)\n"
        "for name in ('tiny/words', 'models/demo/draft'):\n"
        "    with LLM(name) as llm:\n"
        "        print(llm.generate('The cat', params, use_tqdm=False)[0].outputs[0].text)\n"
    )
    with hub(DEMO) as endpoint:
        said, error = run(code, endpoint, tmp_path)
    assert not error
    by_name, by_folder = said
    assert by_name == by_folder


def test_without_a_network_each_model_is_refused_at_once_in_one_sentence(tmp_path: Path) -> None:
    """A closed port, and no HF_HUB_OFFLINE: nothing is asked again, and no library says a word."""
    changes = ("target.model_path=tiny/words", f"target.revision={COMMIT}")
    arguments = ["--check", "configs/no-draft.yaml", f"http_options.port={free_port()}", *changes]
    code = (
        "import sys, time; real = time.sleep\n"
        "def paused(s): sys.stderr.write(f'paused {s}\\n'); real(0)\n"
        "time.sleep = paused\n"
        f"from deployments.config.__main__ import main; sys.exit(main({arguments}))"
    )
    with start(code, NOWHERE, tmp_path) as process:
        _, errors = process.communicate(timeout=100)
    [refusal] = errors.splitlines()
    assert f"tiny/words at revision {COMMIT} is not whole" in refusal
    assert f"{NOWHERE} cannot be reached ([Errno 111] Connection refused)" in refusal
