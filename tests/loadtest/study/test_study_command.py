"""The command on the demo pair: parts, pages and pictures; a run that is cut goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from loadtest.study.__main__ import SECTIONS, main, parts_to_measure
from loadtest.study.engines import LOOKUP, Ask, DraftModel, Engines, Models, Way
from loadtest.study.sections.acceptance import rounds_of
from loadtest.study.settings import Settings, model_label
from tests.harness.local import DEMO, demo_tokenizer

QUICK = ["--quick", "--num-prompts", "1", "--tokens", "12", "--k", "2", "--batch", "1", "2"]


@pytest.fixture(scope="module")
def engines():
    models = Models(
        target=DEMO / "target",
        drafts={"demo": DraftModel(path=DEMO / "draft"), LOOKUP: None},
        dtype="float32",
        device="cpu",
        threads=1,
        max_model_len=256,
        max_batch=4,
    )
    with Engines(models) as loaded:
        yield loaded


def asks(**more):
    prompts = ["Repeat: one two three one two three", "Write a short story about a dog."]
    ids = [
        demo_tokenizer().encode_chat([{"role": "user", "content": prompt}]) for prompt in prompts
    ]
    ask = {"temperature": 0.7, "max_tokens": 24} | more
    return [Ask(prompt_ids=tuple(one), seed=n, **ask) for n, one in enumerate(ids)]


@pytest.mark.parametrize("draft", ["demo", LOOKUP])
def test_every_way_gives_plain_decodings_text(engines, draft):
    plain = engines.run(asks(), Way(draft, 0))
    assert [len(answer.token_ids) for answer in plain.answers] == [24, 24]
    assert all(answer.stats.num_draft_tokens == 0 for answer in plain.answers)
    for way, batch in ((Way(draft, 3), 1), (Way(draft, 3), 2), (Way(draft, None), 2)):
        drafted = engines.run(asks(), way, batch)
        assert [one.token_ids for one in drafted.answers] == [
            one.token_ids for one in plain.answers
        ]
    fixed = engines.run(asks(), Way(draft, 3))
    of, right = rounds_of(fixed.answers)
    assert max(map(max, of)) == 3
    assert sum(map(sum, right)) == sum(one.stats.num_accepted_draft_tokens for one in fixed.answers)
    assert fixed.summary().tokens_per_round > 1.0
    assert fixed.decode_tokens_per_s > fixed.tokens_per_s / 2


def test_a_schema_is_obeyed_with_and_without_drafts(engines):
    schema = json.dumps({"type": "object", "properties": {"n": {"enum": [1, 2]}},
                         "required": ["n"], "additionalProperties": False})  # fmt: skip
    held = asks(schema=schema, eos_ids=demo_tokenizer().eos_ids)
    texts = {}
    for k in (0, 3):
        served = engines.run(held, Way("demo", k), 2)
        ids = [one.token_ids for one in served.answers]
        texts[k] = [demo_tokenizer().decode([i for i in one if i > 0]) for one in ids]
    assert texts[0] == texts[3]
    assert all(json.loads(text)["n"] in (1, 2) for text in texts[0])


def test_requests_of_other_groups_share_no_prefix():
    models = Models(
        target=DEMO / "target",
        drafts={},
        dtype="bfloat16",
        device="cpu",
        threads=1,
        max_model_len=512,
        max_batch=2,
        caches_prefixes=True,
    )
    shared = [replace(ask, prompt_ids=ask.prompt_ids * 8) for ask in asks()[:1] * 2]
    apart = [replace(ask, group=str(n)) for n, ask in enumerate(shared)]
    with Engines(models) as loaded:
        way = Way("none", 0)
        loaded.run(shared, way)  # another run: shares nothing with those that follow
        num_hits = [
            sum(loaded.run(some, way).num_cached for _ in range(2)) for some in (shared, apart)
        ]
    assert num_hits[0] >= 2 * 64
    assert num_hits[1] == 0


def test_the_whole_study_and_its_page(tmp_path):
    assert main([*QUICK, "--output", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "study.json").read_text())
    sections = {name.split("/")[0] for name in content["parts"]}
    assert sections == {*SECTIONS, "costs"}
    page = (tmp_path / "report.md").read_text()
    for heading in ("What to set", "Acceptance", "Tokens per round against theory", "Batch",
                    "Length of an answer", "Structure", "Ablation"):  # fmt: skip
        assert f"## {heading}" in page
    assert "Every text is plain decoding's" in page
    assert str(tmp_path) not in page
    pictures = {path.stem for path in tmp_path.glob("*.png")}
    assert pictures == {*SECTIONS, "tokens"}
    assert all(f"({name}.png)" in page for name in pictures)
    ablation = content["parts"]["ablation/demo-draft"]["lines"]
    assert {"all on", "without kernels", "without int8", "all off"} <= {
        line["way"] for line in ablation
    }


def test_a_run_that_is_cut_goes_on_where_it_stopped(tmp_path, capsys):
    words = [*QUICK, "--draft", LOOKUP, "--output", str(tmp_path), "--sections", "acceptance"]
    assert main([*words, "--seconds", "1e-9"]) == 3
    assert not (tmp_path / "study.json").exists()
    assert main(words) == 0
    first = json.loads((tmp_path / "study.json").read_text())
    assert set(first["parts"]) == {
        f"acceptance/{LOOKUP}/{task}" for task in ("code", "json", "text", "creative")
    }
    assert "--sections" not in first["command"]
    capsys.readouterr()
    assert main(words) == 0
    assert "..." not in capsys.readouterr().out  # nothing was measured again
    assert json.loads((tmp_path / "study.json").read_text())["parts"] == first["parts"]
    with pytest.raises(SystemExit):
        main([*words, "--tokens", "13"])
    assert "tokens was 12 when this study was begun, got 13" in capsys.readouterr().err


def settings(**more):
    values: dict[str, Any] = {
        **{"target": "t", "drafts": ["a", "b"], "prompts": "demo", "tasks": None},
        **{
            "temperatures": [0.0],
            "temperature": 0.7,
            "k": [1],
            "batch": [1],
            "lengths": [8],
            "tokens": 8,
        },
        **{"num_prompts": 1, "repeats": 1, "pass_repeats": 1, "device": "cpu"},
        **{"dtype": "bfloat16", "threads": 1, "seed": 0},
    }
    return Settings(**(values | more))


def test_one_draft_is_enough_for_sections_that_study_the_pair():
    names = [name for name, _ in parts_to_measure(SECTIONS, settings(), ["t"], "b")]
    assert names == [
        *("acceptance/a/t", "acceptance/b/t", "costs/a", "costs/b", "speedup/a/t", "speedup/b/t"),
        *("batch/b/1", "lengths/b/8", "structure/b", "ablation/b"),
    ]


@pytest.mark.parametrize(
    ("ks", "few"), [([3], [3]), ([1, 3], [1, 3]), ([1, 2, 3, 5, 8], [1, 2, 5])]
)
def test_few_k_are_some_of_those_that_are_studied(ks, few):
    assert settings(k=ks).few_k == few


def test_labels_are_those_given_or_the_folders(tmp_path):
    assert model_label(str(DEMO / "draft")) == ("demo-draft", DEMO / "draft")
    assert model_label(f"mine={DEMO / 'draft'}") == ("mine", DEMO / "draft")
    assert model_label(LOOKUP) == (LOOKUP, None)
    with pytest.raises(ValueError, match=r"has no config\.json"):
        model_label(str(tmp_path))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "nowhere"], "'nowhere' has no config.json"),
        (["--target", LOOKUP], "target must be a checkpoint folder"),
        (["--draft", "x=models/demo/draft", "--draft", "x=models/demo/draft"], "different labels"),
        (["--k", "65"], "must be at most 64, got 65"),
        (["--temperatures", "2.5"], "must be within 0 to 2, got '2.5'"),
        (["--seconds", "0"], "must be above 0, got '0'"),
    ],
)
def test_the_command_refuses_by_name_and_value(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(DEMO.parents[1])
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--output", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
