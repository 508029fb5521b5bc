"""Ids without a token are never drawn, and padding of either model changes no text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Failed, Sampling, Verdict
from models.text.vocabulary import (
    DrawableIds,
    Vocabulary,
    drawable_ids,
    num_shared_ids,
    read_vocabulary,
)
from tests.cases.messages import EPOCH, opening, verifying
from tests.cases.models.architectures import serve, sizes, write
from tests.fakes.engines import text_logits, tiny_config
from tests.harness.distribution_engines import answers

NUM_TOKENS = 256  # ids that prompts of `tests.cases.models.architectures` are made of


def of_columns(number: int) -> LlamaConfig:
    return LlamaConfig(**sizes(16) | {"vocab_size": number})


def tokenizer_json(num_tokens: int, missing: tuple[int, ...] = ()) -> str:
    vocab = {f"t{i}": i for i in range(num_tokens) if i not in missing}
    return json.dumps({"model": {"vocab": vocab}, "added_tokens": []})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, float], Path]:
    """Models that are equal but for their padding and for noise, by (columns, noise).

    The padding columns have the largest logits of all: were they drawn, they would be drawn often.
    """
    made = {}
    plain = tmp_path_factory.mktemp("plain")
    for noise in (0.0, 0.01):
        write(of_columns(320), plain, noise)
        for num_columns in (NUM_TOKENS, 280, 320):
            model = AutoModelForCausalLM.from_pretrained(plain)
            with torch.no_grad():
                model.lm_head.weight[NUM_TOKENS:] *= 20
            folder = tmp_path_factory.mktemp("padded")
            model.resize_token_embeddings(num_columns)
            model.save_pretrained(folder)
            (folder / "tokenizer.json").write_text(tokenizer_json(NUM_TOKENS))
            made[num_columns, noise] = folder
    return made


SAMPLED = [
    Sampling(temperature=0.0),
    Sampling(temperature=1.3, seed=11),
    Sampling(temperature=1.3, top_p=0.9, top_k=40, seed=11),
    Sampling(temperature=1.0, seed=11, verification="rejection"),
    Sampling(temperature=1.0, seed=11, presence_penalty=0.5, repetition_penalty=1.2),
]


@pytest.mark.parametrize("sampling", SAMPLED, ids=["greedy", "plain", "cut", "rejection", "pen"])
def test_padding_of_either_side_changes_no_text(
    folders: dict[tuple[int, float], Path], sampling: Sampling
) -> None:
    unpadded = serve(folders[256, 0.0], folders[256, 0.01], k=4, sampling=sampling)
    assert 0 < unpadded.num_accepted < unpadded.num_drafted
    for target_columns, draft_columns in ((320, 280), (280, 320), (256, 320)):
        served = serve(
            folders[target_columns, 0.0], folders[draft_columns, 0.01], k=4, sampling=sampling
        )
        assert served == unpadded
        assert max(map(max, served.texts)) < NUM_TOKENS


def test_ids_between_others_are_not_drawn_either(tmp_path: Path) -> None:
    write(of_columns(64), tmp_path)
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(50, missing=(7, 31)))
    logits = text_logits(ModelRunner(tiny_config(tmp_path)), [1, 2, 3, 60, 7])
    assert logits.shape == (5, 50)
    assert torch.isneginf(logits[:, [7, 31]]).all()
    assert torch.isfinite(logits[:, :7]).all()
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        expected = model(torch.tensor([[1, 2, 3, 60, 7]])).logits[0, :, :50]
    kept = ~torch.isneginf(logits)
    torch.testing.assert_close(logits[kept], expected[kept], rtol=1e-4, atol=1e-4)


def test_padding_ids_may_be_read_but_not_drafted(
    folders: dict[tuple[int, float], Path],
) -> None:
    loaded = ModelRunner(tiny_config(folders[280, 0.0]))
    engine = TargetEngine(loaded, NoMaskSource(), EPOCH)
    engine.submit(opening("a", Sampling(temperature=0.0), 2), 0)
    engine.submit(verifying("a", 1, [5, 270], []), 0)
    assert isinstance(answers(engine)[0], Verdict)
    engine.submit(verifying("a", 2, [5, 6], [270]), 0)
    engine.submit(verifying("a", 3, [5, 280], []), 1)
    failed = answers(engine)
    assert isinstance(failed[0], Failed)
    assert "within 0..255, got 270..270" in failed[0].message
    assert isinstance(failed[1], Failed)
    assert "within 0..279, got 5..280" in failed[1].message


def test_a_limit_of_the_config_is_kept(folders: dict[tuple[int, float], Path]) -> None:
    loaded = ModelRunner(tiny_config(folders[280, 0.0], vocab_size=200))
    assert (loaded.vocab_size, loaded.num_input_ids) == (200, 280)


# --- the vocabulary itself ------------------------------------------------------------------------


def test_both_layouts_are_read(tmp_path: Path) -> None:
    added = [{"content": "<e>", "id": 0}, {"content": "<x>", "id": 9}]
    layouts = [{"a": 0, "b": 1}, [["a", -1.0], ["b", -2.5]]]
    for layout in layouts:
        file = tmp_path / "tokenizer.json"
        file.write_text(json.dumps({"model": {"vocab": layout}, "added_tokens": added}))
        vocabulary = read_vocabulary(file)
        assert vocabulary.tokens == {0: "<e>", 1: "b", 9: "<x>"}
        assert vocabulary.size == 10


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": {"vocab": {}}}'])
def test_what_is_no_tokenizer_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        read_vocabulary(file)


def test_the_first_id_that_differs_is_named() -> None:
    target = Vocabulary({0: "a", 1: "b", 2: "c", 4: "e"})
    assert num_shared_ids(target, Vocabulary({0: "a", 1: "b"})) == 2
    assert num_shared_ids(target, Vocabulary({**target.tokens, 5: "f"})) == 5
    with pytest.raises(ValueError, match="token id 2 is 'x' in the draft's tokenizer and 'c' in"):
        num_shared_ids(target, Vocabulary({0: "a", 1: "b", 2: "x", 4: "y"}))
    with pytest.raises(ValueError, match=r"token id 3 is 'd' in .* and no token in the target's"):
        num_shared_ids(target, Vocabulary({**target.tokens, 3: "d"}))


def test_drawable_ids() -> None:
    vocabulary = Vocabulary({0: "a", 1: "b", 3: "d"})
    assert drawable_ids(None, 8) == DrawableIds(8)
    assert drawable_ids(vocabulary, 8) == DrawableIds(4, (2,))
    assert drawable_ids(vocabulary, 3) == DrawableIds(3, (2,))
    assert drawable_ids(vocabulary, 8, limit=2) == DrawableIds(2)
    assert drawable_ids(vocabulary, 8, eos_ids=(2, 5)) == DrawableIds(6, (4,))
