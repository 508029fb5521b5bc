"""Makes an API key for a key file (`deployments/api/keys.py`).

python -m deployments.api_keys alice >> keys.txt     # the key itself goes to the terminal
"""

from __future__ import annotations

import argparse
import hashlib
import secrets
import sys
from collections.abc import Sequence

from deployments.api.keys import KEY_LINE


def main(argv: Sequence[str] | None = None) -> None:
    """Make a key: its line for the file on stdout, the key itself on stderr, nowhere else."""
    parser = argparse.ArgumentParser(
        prog="python -m deployments.api_keys",
        description="Make an API key: prints the key file's line to stdout, the key to stderr.",
    )
    parser.add_argument("name", help="whose key it is")
    name = parser.parse_args(argv).name
    key = f"sk-{secrets.token_urlsafe(32)}"
    line = f"{name} {hashlib.sha256(key.encode()).hexdigest()}"
    if KEY_LINE.fullmatch(line) is None:
        parser.error(f"name must be up to 64 letters, digits, '.', '_', '@' or '-', got {name!r}")
    sys.stderr.write(f"the key of {name}, shown this once: {key}\n")
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
