"""Another name for `python -m loadtest.bench --draft-quantization int8`, with its defaults.

python -m loadtest.quantized --pair models/demo --output loadtest/results/quantized.json
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from loadtest.bench import __main__ as bench
from loadtest.bench.quantized import DEFAULTS, QUANTIZATION


def main(argv: Sequence[str] | None = None) -> None:
    """Say what has replaced this command, and run that with the options given."""
    words = ["--draft-quantization", QUANTIZATION, *DEFAULTS.split()]
    words += sys.argv[1:] if argv is None else argv
    print(f"replaced by: python -m loadtest.bench {' '.join(words)}", file=sys.stderr)
    bench.main(words)


if __name__ == "__main__":
    main()
