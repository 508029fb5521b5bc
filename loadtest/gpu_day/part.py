"""One part in a process of its own: `python -m loadtest.gpu_day.part NAME TERMS OUTPUT`."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from loadtest.gpu_day.parts import PARTS
from loadtest.gpu_day.terms import Terms


def main() -> None:
    """Write what the part gives; an error ends the process."""
    # Processes that a part has started in sessions of their own end with it, also at its limit.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    name, terms, output = sys.argv[1:]
    answer = PARTS[name].run(Terms.from_json(terms))
    Path(output).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
