"""Part `folders`: a damaged checkpoint is refused with its file's name, or it serves.

The checks of `python -m deployments.config --check` run on a copy of the shipped draft model. The
copy was damaged at random. If the check refuses, its sentence names a damaged file and `LLM`
refuses too. If it finds nothing, `LLM` answers a prompt and chats.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deployments.config.fit import measured
from deployments.config.model_files import file_faults
from deployments.config.model_paths import REPO_ROOT
from deployments.config.schema import AppConfig
from deployments.llm import LLM, SamplingParams
from loadtest.fuzz.cases import Outcome, in_thread
from loadtest.fuzz.folders.damage import damage
from models.protocol.errors import InvalidRequest

_MODEL = REPO_ROOT / "models" / "demo" / "draft"
_SIZES: dict[str, Any] = {"max_model_len": 256, "kv_cache_tokens": 512, "num_threads": 1}
_TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}
_CHATS: Sequence[tuple[Any, Mapping[str, Any]]] = (
    ([{"role": "user", "content": "Hi"}], {}),
    ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], {}),
    ([{"role": "user", "content": "Hi"}], {"tools": [_TOOL], "tool_choice": "auto"}),
)


def _case(seed: int) -> Outcome:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="fuzz-folder-") as root:
        folder = Path(shutil.copytree(_MODEL, Path(root) / "model"))
        named = damage(rng, folder)
        return _held(folder, named)


open_folders = in_thread(_case)


def _held(folder: Path, named: Sequence[str]) -> Outcome:
    counts = Counter(cases=1)
    refusal = check(folder)
    complaints: list[str] = []
    try:
        _serve(folder)
        served = ""
    except ValueError as error:
        served = str(error) or type(error).__name__
        if "\n" in served:
            complaints.append(f"{named}: refused over several lines: {served[:300]!r}")
    if not refusal:
        counts["served"] += 1
        if served:
            complaints.append(f"{named}: the check found nothing, then: {served[:300]}")
        return Outcome(counts, complaints)
    counts["refused"] += 1
    if not served:
        complaints.append(f"{named}: it serves, and the check says: {refusal[:300]}")
    if not any(name in refusal for name in named):
        complaints.append(f"{named}: the refusal names none of them: {refusal[:300]}")
    return Outcome(counts, complaints)


def check(folder: Path) -> str:
    """Return the complaints about a folder; "" if it can be served."""
    target = {"model_path": str(folder), **_SIZES}
    config = AppConfig.model_validate({"target": target})
    try:
        if faults := file_faults(config):
            return "; ".join(map(str, faults))
        measured(config.target, ())
    except ValueError as error:
        return str(error)
    return ""


def _serve(folder: Path) -> None:
    """Load the model and have it answer.

    Raises:
        ValueError: it cannot be.
    """
    params = SamplingParams(max_tokens=3, temperature=0)
    with LLM(folder, **_SIZES) as llm:
        llm.generate("The cat", params, use_tqdm=False)
        for messages, fields in _CHATS:
            try:
                llm.chat(messages, params, use_tqdm=False, **fields)
            except InvalidRequest as refusal:  # a template may know no system turn, or be absent
                if "chat template" not in refusal.message:
                    raise ValueError(f"chat: {refusal.message}") from None
