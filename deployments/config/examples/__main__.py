"""`python -m deployments.config.examples`: writes `configs/` and what the manifests take of it.

With a name (`demo`) it prints that file instead and writes nothing. Descriptions come from the
fields of the config's sections, values and remarks from `shipped` and `production`.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from deployments.config.examples.page import Example, printed
from deployments.config.examples.production import PROD
from deployments.config.examples.shipped import (
    CONCEPTS,
    DEMO,
    HEADS,
    NO_DRAFT,
    ONE_NODE,
    SINGLE_GPU,
    SMOLLM2,
    merged,
)
from deployments.config.model_files import REPO_ROOT

EXAMPLES = {
    example.name: example
    for example in (DEMO, CONCEPTS, NO_DRAFT, HEADS, SMOLLM2, SINGLE_GPU, ONE_NODE, PROD)
}
_IN_MANIFEST = re.compile(r"(?<=  serveConfigV2: \|\n)(?: {4}.*\n|\n)+")


def manifests() -> dict[str, Example]:
    """By path: what `serveConfigV2` of a manifest is.

    In a pod HTTP listens at every address, and a cluster asks for API keys, which are a secret.
    """
    everywhere = {"http_options": {"host": "0.0.0.0"}}
    with_keys = {"router": {"api_keys_file": "/secrets/api-keys/keys"}}
    return {
        "k8s/base/rayservice.yaml": replace(PROD, args=merged(PROD.args, with_keys)),
        "k8s/overlays/one-gpu/rayservice.yaml": replace(
            SINGLE_GPU,
            serve=merged(SINGLE_GPU.serve, everywhere),
            args=merged(SINGLE_GPU.args, with_keys),
        ),
    }


def files() -> dict[Path, str]:
    """Every file that is generated, wholly or in part, and its whole text.

    Raises:
        ValueError: a manifest has no serveConfigV2.
    """
    texts = {
        REPO_ROOT / "configs" / f"{name}.yaml": printed(example)
        for name, example in EXAMPLES.items()
    }
    for name, example in manifests().items():
        path = REPO_ROOT / name
        manifest = path.read_text(encoding="utf-8")
        block = textwrap.indent(printed(example), " " * 4).replace("\\", "\\\\")
        texts[path], num_blocks = _IN_MANIFEST.subn(block, manifest)
        if num_blocks != 1:
            raise ValueError(f"{path}: {num_blocks} blocks of serveConfigV2, must be 1")
    return texts


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m deployments.config.examples", description=__doc__
    )
    parser.add_argument("name", nargs="?", choices=sorted(EXAMPLES), help="print this one only")
    name = parser.parse_args(argv).name
    if name is not None:
        sys.stdout.write(printed(EXAMPLES[name]))
        return
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
