"""One part in a process of its own: `python -m loadtest.gpu_day.part NAME TERMS OUTPUT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from loadtest.gpu_day.parts import PARTS
from loadtest.gpu_day.terms import Terms


def main() -> None:
    """Write what the part gives; an error ends the process."""
    name, terms, output = sys.argv[1:]
    answer = PARTS[name].run(Terms.from_json(terms))
    Path(output).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
