"""GGUF files: read as the folder they stand for, or refused by name."""

from __future__ import annotations

import threading
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM

from models.gguf.convert import convert, main
from models.gguf.folder import converted_folder, gguf_file, source_of
from models.gguf.header import read_gguf_header
from models.text.tokenizer import Tokenizer
from tests.cases.gguf_files import HARD_TEXTS, SENTENCEPIECE, tokenizer, write_pair
from tests.harness.local import local_service, make_request

PROMPT = [5, 70, 9, 33, 120, 7]


def converted(file: Path, dtype: str = "float32") -> Path:
    folder = file.with_suffix(f".{dtype}")
    folder.mkdir()
    convert(file, folder, dtype)
    return folder


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        *(("llama", kind) for kind in (Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1)),
        *((name, Kind.Q8_0) for name in ("llama", "qwen2", "qwen3")),
    ],
)
def test_weights_and_logits_are_those_of_the_folder(
    tmp_path: Path, architecture: str, kind: Kind
) -> None:
    file, folder = write_pair(tmp_path, architecture=architecture, kind=kind)
    expected = AutoModelForCausalLM.from_pretrained(folder)
    got = AutoModelForCausalLM.from_pretrained(converted(file))
    for name, weight in expected.state_dict().items():
        assert torch.equal(got.state_dict()[name], weight), name
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        assert torch.equal(got(ids).logits, expected(ids).logits)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_frequencies_scaled_as_llama_3_scales_them_are_read(tmp_path: Path, factor: float) -> None:
    file, folder = write_pair(tmp_path, llama3_factor=factor)
    expected = AutoModelForCausalLM.from_pretrained(folder)
    got = AutoModelForCausalLM.from_pretrained(converted(file))
    assert got.config.rope_parameters["factor"] == factor
    ids = torch.arange(200).remainder(300)[None]
    with torch.inference_mode():
        assert torch.equal(got(ids).logits, expected(ids).logits)
        expected.config.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
        unscaled = type(expected)(expected.config)
        unscaled.load_state_dict(expected.state_dict())
        assert not torch.equal(unscaled.eval()(ids).logits, expected(ids).logits)


def test_weights_are_rounded_once_to_the_wanted_type(tmp_path: Path) -> None:
    file, folder = write_pair(tmp_path, kind=Kind.Q4_1, dtype=torch.bfloat16)
    expected = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    got = AutoModelForCausalLM.from_pretrained(converted(file, "bfloat16")).state_dict()
    assert {weight.dtype for weight in got.values()} == {torch.bfloat16}
    assert all(torch.equal(got[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize("cut", ["smollm", "gpt-2"])
def test_the_tokenizer_is_that_of_the_folder(tmp_path: Path, cut: str) -> None:
    file, _ = write_pair(tmp_path, cut=cut)
    read = Tokenizer.load(converted(file))
    expected = tokenizer(cut)
    for text in HARD_TEXTS:
        ids = expected.encode(text).ids
        assert read.encode(text) == ids, text
        assert read.decode(ids) == text.replace("<|im_end|>", "")
    assert read.eos_ids == (2,)
    chat = read.encode_chat([{"role": "user", "content": "Hello 12"}])
    assert (
        chat == expected.encode("<|im_start|>user\nHello 12<|im_end|>\n<|im_start|>assistant\n").ids
    )


@pytest.mark.parametrize("space", ["\u2581", ""])
def test_a_sentencepiece_tokenizer_is_read_too(tmp_path: Path, space: str) -> None:
    extra = {"tokenizer.ggml.add_space_prefix": bool(space)}
    file, _ = write_pair(tmp_path, cut="sentencepiece", extra=extra)
    read = Tokenizer.load(converted(file))
    pieces = {piece: number for number, piece in enumerate(SENTENCEPIECE)}
    ids = [pieces["<s>"], pieces[f"{space}the"], pieces["\u2581cat"]]
    assert read.encode("the cat") == ids
    text = "the cat \u00e9 on 2"
    assert read.decode(read.encode(text)) == text
    assert pieces["<0xC3>"] in read.encode(text)
    assert read.eos_ids == (2,)


def test_cuts_differ_so_the_comparison_would_see_the_wrong_one() -> None:
    text = HARD_TEXTS[0]
    assert tokenizer("smollm").encode(text).ids != tokenizer("gpt-2").encode(text).ids


async def test_it_is_served_with_the_folders_text(tmp_path: Path) -> None:
    file, folder = write_pair(tmp_path, kind=Kind.Q8_0, dtype=torch.bfloat16)
    texts = []
    for path in (folder, converted(file, "bfloat16")):
        async with local_service(path, None, max_model_len=256) as service:
            ids, _, _ = await service.generate(make_request("r", PROMPT, max_tokens=40))
            texts.append(ids)
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 3


@pytest.mark.slow
def test_a_file_is_converted_once_for_all_who_ask_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, _ = write_pair(tmp_path, kind=Kind.Q4_0)
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(converted_folder(file, "bfloat16")))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders[0] == folders[1]
    weights = folders[0] / "model.safetensors"
    made_at = weights.stat().st_mtime_ns
    assert converted_folder(file, "bfloat16") == folders[0]
    assert weights.stat().st_mtime_ns == made_at
    assert source_of(str(folders[0])).startswith(f"dequantised from {file.name}, 0.1 MB of Q4_0")
    left = {path.name for path in folders[0].parent.iterdir() if ".part-" in path.name}
    assert left == set()

    file.write_bytes(b"GGUX" + file.read_bytes()[4:])  # another content is not that folder
    with pytest.raises(ValueError, match="no GGUF file"):
        converted_folder(file, "bfloat16")


# --- what is refused --------------------------------------------------------------------------


def refusal(file: Path, tmp_path: Path) -> str:
    folder = tmp_path / "refused"
    folder.mkdir()
    with pytest.raises(ValueError, match=r".") as caught:
        convert(file, folder, "bfloat16")
    assert not list(folder.iterdir())
    return str(caught.value)


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    file, _ = write_pair(tmp_path)
    whole = file.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 3000, 30, 10):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=rf"cut off.* {length}( bytes)?$"):
            read_gguf_header(file)
    file.write_bytes(b"GG")
    with pytest.raises(ValueError, match="no GGUF file"):
        read_gguf_header(file)


def test_a_tensor_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    file, _ = write_pair(tmp_path)
    name, other = b"blk.0.attn_k.weight", b"blk.0.attn_v.weight"
    file.write_bytes(file.read_bytes().replace(other, name, 1))
    with pytest.raises(ValueError, match=f"it has tensor '{name.decode()}' twice"):
        read_gguf_header(file)


def test_a_damaged_file_is_refused_and_never_an_accident(tmp_path: Path) -> None:
    file, _ = write_pair(tmp_path)
    whole = bytearray(file.read_bytes())
    random = np.random.default_rng(5)
    header_end = whole.index(b"token_embd")
    refused = 0
    for _ in range(300):
        damaged = whole.copy()
        where = int(random.integers(0, header_end)) if random.random() < 0.5 else header_end
        damaged[where + int(random.integers(0, 40))] = int(random.integers(0, 256))
        file.write_bytes(damaged)
        try:
            read_gguf_header(file)
        except ValueError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (97, "tensor 'blk.0.ffn_up.weight' is of type 97"),
        (int(Kind.I32), "'blk.0.ffn_up.weight' is of type I32, which cannot be deq"),
    ],
    ids=["unknown", "not to be dequantised"],
)
def test_other_types_of_tensors_are_refused_by_name(
    tmp_path: Path, kind: int, complaint: str
) -> None:
    file, _ = write_pair(tmp_path)
    content = bytearray(file.read_bytes())
    at = content.index(b"blk.0.ffn_up.weight") + len(b"blk.0.ffn_up.weight") + 4 + 16
    assert int.from_bytes(content[at : at + 4], "little") == Kind.F32
    content[at : at + 4] = kind.to_bytes(4, "little")
    file.write_bytes(content)
    assert complaint in refusal(file, tmp_path)


def test_an_architecture_that_is_not_loaded_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mamba.gguf"
    writer = gguf.GGUFWriter(str(file), "mamba")
    writer.add_tensor("token_embd.weight", np.ones((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    said = refusal(file, tmp_path)
    assert "architecture 'mamba'; from GGUF are loaded: llama, qwen2, qwen3" in said


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"extra": {"llama.rope.scaling.type": "yarn"}}, "scales its rotary positions (yarn)"),
        ({"extra": {"llama.rope.scaling.factor": 4.0}}, "scales its rotary positions (linear)"),
        ({"extra": {"llama.rope.scale_linear": 4.0}}, "scales its rotary positions (linear)"),
        ({"extra": {"split.count": "3"}}, "its split.count '3', by its name they are 0 and 1"),
        (
            {"extra": {"llama.attention.head_count_kv": 0}},
            "llama-F32.gguf cannot be converted: integer division",
        ),
        ({"extra_tensor": "rope_freqs.weight"}, "are not scaled as Llama 3's are"),
        ({"extra_tensor": "blk.0.attn_q.bias"}, "a part of it would be left out"),
        ({"cut": "some-new-model"}, "cuts text by rules called 'some-new-model'"),
    ],
    ids=[
        "scaling",
        "factor",
        "old factor",
        "count",
        "heads",
        "frequencies",
        "left-out",
        "cut of words",
    ],
)
def test_what_is_not_read_is_refused_by_name(
    tmp_path: Path, options: dict[str, object], complaint: str
) -> None:
    file, _ = write_pair(tmp_path, **options)  # type: ignore[arg-type]  # one of its keywords
    assert complaint in refusal(file, tmp_path)


def test_the_command_says_in_one_line_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"something else")
    assert main([str(file), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().out == f"{file} is no GGUF file: it does not begin with GGUF\n"
    assert not (tmp_path / "out").exists()


def test_a_folder_names_its_only_file(tmp_path: Path) -> None:
    assert gguf_file(tmp_path) is None
    (tmp_path / "a.gguf").write_bytes(b"")
    assert gguf_file(tmp_path) == tmp_path / "a.gguf" == gguf_file(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(ValueError, match=r"of several models; name one, like a\.gguf"):
        gguf_file(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert gguf_file(tmp_path) is None


def test_a_file_in_parts_is_the_file(tmp_path: Path) -> None:
    for name, tensors_a_part in (("whole", 0), ("parts", 7)):
        (tmp_path / name).mkdir()
        extra = {} if tensors_a_part else {"split.count": 0}  # as a file joined from parts says
        write_pair(tmp_path / name, kind=Kind.Q4_0, tensors_a_part=tensors_a_part, extra=extra)
    whole, first = gguf_file(tmp_path / "whole"), gguf_file(tmp_path / "parts")
    assert whole is not None
    assert first is not None
    parts = sorted(first.parent.glob("*.gguf"))
    assert len(parts) == 3
    assert [gguf_file(part) for part in parts] == [first] * 3
    stored = [(converted(file) / "model.safetensors").read_bytes() for file in (whole, first)]
    assert stored[0] == stored[1]
    assert read_gguf_header(parts[1]).num_parameters == read_gguf_header(whole).num_parameters
    assert not list(first.with_suffix(".float32").glob("*.gguf"))


def test_a_part_that_is_missing_or_another_is_named(tmp_path: Path) -> None:
    first, _ = write_pair(tmp_path, tensors_a_part=7)
    _, second, third = sorted(tmp_path.glob("*.gguf"))
    kept = third.read_bytes()
    third.write_bytes(second.read_bytes())
    with pytest.raises(ValueError, match=rf"{third} says that its split.no is 1 and"):
        read_gguf_header(first)
    third.write_bytes(kept[:-100])
    with pytest.raises(ValueError, match=rf"{third} is cut off"):
        read_gguf_header(first)
    third.unlink()
    for named in (first, second, tmp_path):
        with pytest.raises(ValueError, match=rf"lacks 1 of the 3 parts of .*, first {third.name}"):
            gguf_file(named)
