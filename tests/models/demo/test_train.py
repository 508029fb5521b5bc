import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from models.demo import train
from models.demo.data.mixture import CONCEPTS, Mixture
from models.demo.training.training import Shape, new_model, save_checkpoint

TINY = Shape(hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=16)


def plan(folder: Path, num_steps: int, resume: bool = False) -> train.Plan:
    return train.Plan(
        out=folder / "out",
        work=folder / "work",
        num_steps=num_steps,
        num_draft_steps=2,
        num_sampled_tokens=1,
        step_tokens=64,
        resume=resume,
        compile=False,
        target_shape=TINY,
        draft_shape=TINY,
        vocab_size=1024,
        num_tokenizer_texts=400,
    )


@pytest.mark.slow
def test_two_steps_write_loadable_checkpoints_and_resume(tmp_path: Path) -> None:
    mixture = Mixture.load(None)
    train.make_pair(plan(tmp_path, num_steps=2), mixture)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "target")
    for name in ("target", "draft"):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / name)
        assert model.dtype == torch.bfloat16
        assert model.config.vocab_size == len(tokenizer) == 1024
    assert (tmp_path / "out" / "loss.png").stat().st_size > 0
    train.make_pair(plan(tmp_path, num_steps=3, resume=True), mixture)
    assert len(torch.load(tmp_path / "work" / "target.pt")["losses"]) == 3


@pytest.fixture
def start(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    """Write a tiny pair with random weights and the shipped tokenizer."""
    for seed, name in enumerate(("target", "draft")):
        save_checkpoint(new_model(TINY, tokenizer, seed), tokenizer, tmp_path / "start" / name)
    return tmp_path / "start"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return found


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--out {0}/out", "one of the arguments --corpus --generated-only is required"),
        ("--generated-only", "the following arguments are required: --out"),
        ("--corpus {0} --out {0}/out", "--corpus: {0} has none of cc0_word_lists, tinystories"),
    ],
)
def test_text_and_folder_must_be_chosen_before_anything_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    complaint: str,
) -> None:
    monkeypatch.setattr(train, "make_pair", None)
    monkeypatch.setattr(sys, "argv", ["train", *words.format(tmp_path).split()])
    with pytest.raises(SystemExit):
        train.main()
    assert complaint.format(tmp_path) in capsys.readouterr().err


@pytest.mark.slow
def test_training_goes_on_from_the_weights_and_tokens_of_a_pair(tmp_path: Path) -> None:
    mixture = Mixture.load(None)
    first = plan(tmp_path / "first", num_steps=2)
    train.make_pair(first, mixture)
    on = replace(plan(tmp_path / "second", num_steps=0), num_draft_steps=0, start=first.out)
    train.make_pair(on, mixture)
    for name in ("target", "draft"):
        one, other = (weights(folder / name) for folder in (first.out, on.out))
        assert all(torch.equal(one[key], other[key]) for key in one)
        files = [folder / name / "tokenizer.json" for folder in (first.out, on.out)]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("is_new", [True, False])
def test_a_draft_of_another_size_and_family_begins_beside_a_pair(
    tmp_path: Path, start: Path, tokenizer: PreTrainedTokenizerFast, is_new: bool
) -> None:
    """With random weights of a shape, or as another checkpoint; the target stays what it was."""
    wide = replace(TINY, hidden_size=32)
    other = new_model(wide, tokenizer, 3)
    save_checkpoint(other, tokenizer, tmp_path / "other")
    asked = replace(
        plan(tmp_path, num_steps=0),
        num_draft_steps=0,
        start=start,
        draft_shape=wide,
        is_draft_new=is_new,
        draft_start=None if is_new else tmp_path / "other",
        family="qwen2",
        dtype=torch.float32,
    )
    train.make_pair(asked, Mixture.load(None, task=CONCEPTS))
    target, draft = (
        AutoModelForCausalLM.from_pretrained(asked.out / name) for name in ("target", "draft")
    )
    assert (target.config.model_type, draft.config.model_type) == ("qwen2", "qwen2")
    assert (target.config.hidden_size, draft.config.hidden_size) == (16, 32)
    own = other.model.embed_tokens.weight.bfloat16()
    assert torch.equal(draft.model.embed_tokens.weight, own) is not is_new


@pytest.mark.slow
def test_another_task_is_learnt_from_a_pair(
    tmp_path: Path, start: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Both models learn, and what is sampled for the draft is of the task alone."""
    asked = replace(plan(tmp_path, num_steps=1), start=start)
    train.make_pair(asked, Mixture.load(None, task=CONCEPTS))
    samples = [str(tokenizer.decode(ids)) for ids, _ in torch.load(asked.work / "samples.pt")]
    assert samples
    assert all(text.startswith("<|user|>Write one sentence with: ") for text in samples)
    for name in ("target", "draft"):
        one, other = (weights(folder / name) for folder in (start, asked.out))
        assert any(not torch.equal(one[key], other[key]) for key in one)
