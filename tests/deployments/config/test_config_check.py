"""`python -m deployments.config`: what it says of configs, and what it refuses."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file, save_file

from deployments.config.__main__ import main
from deployments.config.serve_file import read_serve_file
from loadtest.report.machine import ROOT
from loadtest.service.served import free_port
from tests.cases.models.eagle3 import eagle3_weights, write_eagle3
from tests.harness.local import DEMO

CONFIGS = ROOT / "configs"


Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """A function that checks a file for this machine, a shipped one on a free port."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def checked(config: str | Path, *changes: str) -> tuple[int, str, str]:
        """Return the exit status, what was said, and the one line of refusal."""
        words = [str(config), *changes]
        if isinstance(config, str):
            words = [str(CONFIGS / config), f"http_options.port={free_port()}", *changes]
        capsys.readouterr()  # what reading a checkpoint has said
        status = main(["--check", *words])
        captured = capsys.readouterr()
        assert captured.err.count("\n") == (1 if status else 0)
        return status, captured.out, captured.err

    return checked


@pytest.mark.parametrize("name", ["demo.yaml", "no-draft.yaml"])
def test_a_config_for_this_machine_is_explained(check: Check, name: str) -> None:
    status, said, refusal = check(name)
    assert (status, refusal) == (0, "")
    config = read_serve_file(CONFIGS / name).config
    kv_tokens = config.target.kv_cache_tokens
    assert "7.5 M parameters, 15 MB of weights per rank" in said
    assert f"KV 8.19 KB per token and rank; {kv_tokens} tokens" in said
    assert ("drafted by suffix" if config.draft is None else "drafted by draft_model") in said
    assert f"{config.router.max_sessions} sessions per replica" in said
    assert "adaptive, 0 to 8" in said


def test_changes_are_made_first(check: Check) -> None:
    twice = "target.kv_cache_tokens=8192", "target.kv_cache_memory=64MiB"
    status, said, _ = check("demo.yaml", *twice)
    assert status == 1, "they say the same thing"
    status, said, _ = check(
        "demo.yaml",
        *("target.quantization=q8", "draft.kv_cache_memory=null", "Draft.num_replicas=2"),
        "router.speculation.num_speculative_tokens=3",
        "drafts.tiny.model_path=models/demo/draft",
    )
    assert status == 0
    assert re.search(r"^Draft-tiny .*\n +\S+/draft: 1 rank on cpu.* parameters", said, re.MULTILINE)
    assert "bfloat16, q8; 7.5 M parameters, 8.05 MB of weights per rank (8.6 bits each)" in said
    assert "2 replicas of {CPU: 0.1}" in said
    assert "k          3, drafted by draft_model" in said


def test_heads_are_looked_at(check: Check) -> None:
    status, said, _ = check("heads.yaml")
    assert status == 0
    assert "heads models/demo/mtp draft in its process" in said
    for heads, complaint in (
        ("nowhere", "target.heads: no such folder: 'nowhere'"),
        (
            "models/demo/draft",
            f"target.heads: heads '{DEMO / 'draft'}' is of model_type 'llama'; only",
        ),
    ):
        status, said, error = check("heads.yaml", f"target.heads={heads}")
        assert status == 1
        assert complaint in said + error


def test_an_eagle3_head_is_read(check: Check, tmp_path: Path) -> None:
    """Its memory is counted; what is wrong with it is said by key, before anything is served."""
    weights = eagle3_weights(DEMO / "target")
    folder = write_eagle3(tmp_path, DEMO / "target", weights, eagle_aux_hidden_state_layer_ids=None)
    _, without, _ = check("heads.yaml", "target.heads=null")
    status, said, _ = check("heads.yaml", f"target.heads={folder}")
    assert status == 0
    assert f"heads {folder} draft in its process" in said
    taken = [float(re.findall(r"([0-9.]+) MB of weights", page)[0]) for page in (without, said)]
    num_bytes = 2 * sum(weight.numel() for weight in weights.values())
    assert taken[1] - taken[0] == pytest.approx(num_bytes / 1e6, abs=0.1)  # as few digits are said
    del weights["fc.weight"]
    write_eagle3(tmp_path, DEMO / "target", weights, eagle_aux_hidden_state_layer_ids=None)
    status, said, error = check("heads.yaml", f"target.heads={folder}")
    assert status == 1
    assert f"heads '{folder}' lacks fc.weight" in said + error


def test_a_checkpoint_without_an_mtp_layer_is_told(check: Check) -> None:
    status, said, error = check("heads.yaml", "target.heads=checkpoint")
    assert status == 1
    assert "has no MTP layer: neither model.layers.8.* nor mtp.*" in said + error


def test_an_mtp_layer_in_the_checkpoint_is_told(check: Check, tmp_path: Path) -> None:
    target = copy_of(DEMO / "target", tmp_path / "target")
    stored = load_file(DEMO / "mtp" / "model.safetensors")
    names = {"token_layernorm": "enorm", "hidden_layernorm": "hnorm", "input_proj": "eh_proj"}
    names["final_layernorm"] = "shared_head.norm"
    layer = {}
    for key, value in stored.items():
        part = key.removeprefix("mtp_layers.0.").removesuffix(".weight")
        layer[f"model.layers.8.{names.get(part, part)}.weight"] = value
    save_file(layer, target / "mtp.safetensors")
    changes = f"target.model_path={target}", "target.heads=checkpoint"
    status, said, _ = check("heads.yaml", *changes)
    assert status == 0
    assert "the checkpoint's own MTP layer drafts in its process" in said


def test_first_layers_that_draft_are_fewer_than_all(check: Check) -> None:
    status, said, _ = check("heads.yaml", "target.heads=null", "target.early_exit=4")
    assert status == 0
    assert "its first 4 layers draft" in said
    status, said, error = check("heads.yaml", "target.heads=null", "target.early_exit=8")
    assert status == 1
    assert "target.early_exit: must be below the 8 layers of the model, got 8" in said + error


def in_a_process(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_prod_is_refused_at_once_with_all_that_is_missing() -> None:
    """In a process of its own, which must not load torch for it."""
    code = (
        "import sys; from deployments.config.__main__ import main; "
        "status = main(['--check', 'configs/prod.yaml']); "
        "print('torch' in sys.modules, 'transformers' in sys.modules); sys.exit(status)"
    )
    ended = in_a_process("-c", code)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[-1] == "False False"
    unknown = "sizes unknown: target.model_path: no such folder: 'Qwen/Qwen2.5-72B-Instruct'"
    assert unknown in ended.stdout
    [refusal] = ended.stderr.splitlines()
    assert "it needs 5 GPUs (Target 4, Draft 1), there are 0" in refusal
    for label in ("router", "target", "draft"):
        assert f"outrider/role={label}" in refusal
    assert "draft.model_path: no such folder: 'Qwen/Qwen2.5-0.5B-Instruct'" in refusal
    assert "HF_HUB_OFFLINE is set" in refusal
    assert "use configs/demo.yaml (the shipped pair, or one of your own by its model" in refusal


@pytest.mark.parametrize(
    ("words", "status", "refusal"),
    [
        (["deployments.config", "--check", "nothing.yaml"], 1, "nothing.yaml: cannot be read"),
        (
            ["deployments.config.check", "nothing.yaml"],
            2,
            "the command is `python -m deployments.config --check FILE`",
        ),
    ],
)
def test_the_module_of_the_config_is_the_command(
    words: list[str], status: int, refusal: str
) -> None:
    ended = in_a_process("-m", *words)
    assert ended.returncode == status
    [said] = ended.stderr.splitlines()
    assert said.startswith(f"error: {refusal}")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("target.modle_path=x", "unknown key 'target.modle_path'"),
        ("Target.num_replica=2", "unknown key 'deployments.Target.num_replica'"),
        ("Draft.ray_actor_options.num_cpu=2", "'deployments.Draft.ray_actor_options.num_cpu'"),
        ("logging_config.encodng=JSON", "unknown key 'logging_config.encodng'"),
        ("Draught.num_replicas=2", "there is no 'Draught', only Router, Target, Draft"),
        ("http_options.prt=1", "unknown key 'http_options.prt'"),
        ("http_options.port=x", "http_options.port"),
        ("http_options.port=99999", "http_options.port: must be from 0 to 65535, got 99999"),
        ("http_options.host=no such host", "http_options.host: 'no such host' is no address"),
        (
            "http_options.host=192.0.2.77",
            "http_options: cannot listen on 192.0.2.77, port .*assign",
        ),
        ("Draft=2", "Draft: name an option of this deployment, like Draft.num_replicas=2"),
        ("applications=3", "it has no list of applications"),
        ("applications=[x]", "applications.0: must be a mapping, got 'x'"),
        (
            "Router.user_config={max_sesions: 1}",
            "deployments.Router.user_config: unknown key 'max_sesions'",
        ),
        ("target.tensor_parallel_size=2", "placement_group_bundles has 1 bundles"),
        ("Target.num_replicas=3", "a spare; here it is to have 3 to 3: leave one of both out"),
        ("target.max_model_len", "is not KEY=VALUE"),
        ("router.model_name.x=1", "router.model_name has no keys of its own"),
        ("target.max_model_len=4096", "4096 is more than the checkpoint's max_position"),
        ("target.kv_cache_tokens=100", "target.kv_cache_tokens: 100"),
        (
            'Target.placement_group_bundles=[{"CPU": 1, "GPU": 1}]',
            "it needs 2 GPUs (Target 2), there are 0",
        ),
        ("router.api_keys_file=/no/keys", "router.api_keys_file: /no/keys cannot be read"),
        ("router.api_keys_file=/dev/zero", "/dev/zero cannot be read: it is no regular file"),
        ("router.generation_config=/no/folder", "/no/folder/generation_config.json: .*No such"),
        (
            "constraint.reward_classifiers={polite: /no/folder}",
            "constraint.reward_classifiers.polite: no classifier is in '/no/folder'",
        ),
        ("router.capture.folder=/etc/passwd/x", "folder: '/etc/passwd/x' cannot be written to"),
        ("target.model_path=~nobody-here/x", "target.model_path: no such folder: '~nobody-here/x'"),
        ("target.device=mps", "target.device: "),
        ("target.device=cuda", "bundle 0 has no GPU, and its rank has device cuda: {'CPU': 0.1}"),
        ("target.tensor_parallel_size=5000000", "target.tensor_parallel_size: .* 64"),
        ("link.high_water_mark=2147483648", "link.high_water_mark: .* 2147483647"),
        ("Constraint.user_config={a: 1}", "deployments.Constraint.user_config: only Router and"),
        (
            "Draft.user_config.model_path=/no/draft",
            "deployments.Draft: user_config: model_path: must",
        ),
        ("Target.user_config={a: 1}", "deployments.Target.user_config: only Router and Draft"),
        (
            "Router.autoscaling_config={min_replicas: 3, max_replicas: 2}",
            "deployments.Router: .*min_replicas",
        ),
        ("Router.autoscaling_config={max_replicas: null}", "deployments.Router: .*max_replicas"),
        (
            'Router.autoscaling_config={policy: {policy_function: "nope:nope"}}',
            "deployments.Router.autoscaling_config: No module named 'nope'",
        ),
        (
            'Draft.autoscaling_config={policy: {policy_function: "deployments.scaling:DraftPolicy",'
            " policy_kwargs: {busy: 2}}}",
            "Draft.autoscaling_config.policy.policy_kwargs: busy must be above 0 and at most 1",
        ),
        (
            'Draft.request_router_config={request_router_class: "nope:nope"}',
            "deployments.Draft.request_router_config: No module named 'nope'",
        ),
        ("Router.request_router_config={x: 1}", "'deployments.Router.request_router_config.x'"),
        ("Target.placement_group_bundles=[{CPU: -1}]", "deployments.Target: .*CPU"),
        ('Target.placement_group_bundles=[{"GPU": 1}]', "deployments.Target: .*num_cpus.*0.1"),
        ("Router.placement_group_strategy=PACK", "deployments.Router: .*placement_group_bundles"),
        ("Router.max_replicas_per_node=0", "deployments.Router: .*max_replicas_per_node"),
        ("target.kv_cache_tokens=100000000000", "target: .* of weights and KV do not fit"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(check: Check, change: str, complaint: str) -> None:
    status, _, refusal = check("demo.yaml", change)
    assert status == 1
    assert re.search(complaint if ".*" in complaint else re.escape(complaint), refusal)


@pytest.mark.parametrize(
    ("section", "value", "complaint"),
    [
        ("deployments", None, "applications.0.deployments: must be a list of mappings, got None"),
        ("deployments", ["x"], "applications.0.deployments.0: must be a mapping, got 'x'"),
        ("deployments", [{"name": "Draft"}] * 2, "applications.0.deployments.1: 'Draft' is there"),
        ("name", ["x"], "applications.0.name: must be a string, got ['x']"),
        ("args", {"applications": {"target": ["x"]}}, "target: the file has no application ['x']"),
    ],
)
@pytest.mark.parametrize("changes", [[], ["Draft.num_replicas=2"]])
def test_a_section_of_another_type_is_named(
    check: Check, tmp_path: Path, section: str, value: object, complaint: str, changes: list[str]
) -> None:
    content = yaml.safe_load((CONFIGS / "demo.yaml").read_text())
    content["applications"][0][section] = value
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    status, _, refusal = check(path, *changes)
    assert status == 1
    assert complaint in refusal


def test_an_address_of_another_family_is_not_in_use(check: Check) -> None:
    status, _, refusal = check("demo.yaml", "http_options.host=::1")
    assert status == 0 or "cannot listen on ::1" in refusal


@pytest.mark.parametrize(
    "change",
    [
        "Router.num_replicas=3 router.spare=false",
        "router.max_sessions=96",
        "Router.user_config.max_sessions=96",
    ],
)
def test_notes_are_told_and_the_config_is_served(check: Check, change: str) -> None:
    plain = check("demo.yaml")
    assert "routers let in" not in plain[1]
    status, said, _ = check("demo.yaml", *change.split(), "draft.max_model_len=256")
    assert status == 0
    assert "note: draft.max_model_len 256 is below target.max_model_len" in said
    assert re.search(r"note: routers let in \d x \d\d = 96 sessions .* hold 1 x 72 = 72 ", said)


def test_a_port_in_use_is_named(check: Check) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        status, _, refusal = check("demo.yaml", f"http_options.port={port}")
    assert status == 1
    assert f"http_options.port: {port} is in use on 127.0.0.1" in refusal


def copy_of(source: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).symlink_to(file)
    return folder


def write_anew(file: Path, content: dict[str, Any]) -> None:
    """Put a file of its own where `copy_of` has put a link."""
    file.unlink()
    file.write_text(json.dumps(content))


def test_a_draft_of_other_words_is_refused_with_a_way_out(check: Check, tmp_path: Path) -> None:
    folder = copy_of(DEMO / "draft", tmp_path / "draft")
    content: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    words = list(vocabulary)[300:302]
    vocabulary[words[0]], vocabulary[words[1]] = vocabulary[words[1]], vocabulary[words[0]]
    write_anew(folder / "tokenizer.json", content)
    status, _, refusal = check("demo.yaml", f"draft.model_path={folder}")
    assert status == 1
    assert "draft.model_path: token id 300" in refusal
    assert "use configs/no-draft.yaml" in refusal


def test_an_architecture_that_is_not_served_is_refused_by_name(
    check: Check, tmp_path: Path
) -> None:
    folder = copy_of(DEMO / "target", tmp_path / "target")
    content = json.loads((folder / "config.json").read_text()) | {"model_type": "mamba"}
    write_anew(folder / "config.json", content)
    status, said, refusal = check("no-draft.yaml", f"target.model_path={folder}")
    assert status == 1
    assert "target: model type 'mamba' cannot be served" in refusal
    assert "sizes unknown: the model cannot be served" in said


def test_a_changed_file_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    changes = ["http_options.port=8123", "target.max_num_seqs=7", "Draft.num_replicas=2"]
    assert main([str(CONFIGS / "demo.yaml"), *changes, "--output", str(path)]) == 0
    written = yaml.safe_load(path.read_text())
    [application] = written["applications"]
    assert written["http_options"]["port"] == 8123
    assert application["args"]["target"]["max_num_seqs"] == 7
    [draft] = [one for one in application["deployments"] if one["name"] == "Draft"]
    assert draft["num_replicas"] == 2
    original = yaml.safe_load((CONFIGS / "demo.yaml").read_text())
    assert application["args"]["router"] == original["applications"][0]["args"]["router"]


def test_a_file_of_another_application_is_refused(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("applications: [{name: a, import_path: other:app}]\n")
    _, _, refusal = check(path)
    assert "0 of its applications have import_path deployments.app:build" in refusal
    path.write_text("- 1\n")
    _, _, refusal = check(path)
    assert "no Serve config file" in refusal
