"""Makes a bfloat16 GGUF file of a checkpoint folder with llama.cpp's own converter.

    python -m loadtest.frame.gguf CONVERT_HF_TO_GGUF_PY FOLDER FILE

The converter refuses a tokenizer whose pre-tokenizer it does not know, such as the demo's. Prompts
are sent as token ids here, so any name will do: unknown ones get that of GPT-2. The text that the
server makes of tokens is right all the same, for that needs the vocabulary alone. Runs in a process
of its own, since it changes the converter's classes.
"""

from __future__ import annotations

import importlib
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TIMEOUT_S = 1800
_PRE_TOKENIZER = "gpt-2"


def gguf_of(folder: Path, file: Path, script: Path | None) -> Path:
    """Return the GGUF file of a checkpoint; the converter makes it if it is missing.

    Raises:
        ValueError: it is not there and there is no converter, or converting failed.
    """
    if file.is_file():
        return file
    if script is None or not script.is_file():
        raise ValueError(f"there is no {file} and no converter to make it (--convert-script)")
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part.gguf")
    words = [sys.executable, "-m", "loadtest.frame.gguf", str(script), str(folder), str(part)]
    done = subprocess.run(words, check=False, timeout=_TIMEOUT_S, capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(f"converting {folder.name} failed:\n{done.stderr[-2000:]}")
    part.replace(file)
    return file


def main(words: Sequence[str]) -> None:
    """Convert; the arguments are in the module's first lines."""
    script, folder, file = words
    source = Path(script).resolve().parent
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    base: Any = importlib.import_module("conversion.base")
    known = base.TextModel.get_vocab_base_pre

    def pre_tokenizer(model: Any, tokenizer: Any) -> Any:
        try:
            return known(model, tokenizer)
        except NotImplementedError:
            return _PRE_TOKENIZER

    def no_sentencepiece(model: Any) -> None:  # else the converter imports it only to find no file
        if not (Path(model.dir_model) / "tokenizer.model").is_file():
            raise FileNotFoundError("tokenizer.model")
        sentencepiece(model)

    sentencepiece = base.TextModel._set_vocab_sentencepiece
    base.TextModel.get_vocab_base_pre = pre_tokenizer
    base.TextModel._set_vocab_sentencepiece = no_sentencepiece
    sys.argv = [script, folder, "--outfile", file, "--outtype", "bf16"]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
