"""SmolLM2-135M-Instruct over HTTP, by `serve run configs/smollm2.yaml`.

Skipped where it has not been fetched.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from models.fetch.known import SMOLLM2
from tests.harness.served_demo import ServedDemo, served_demo

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not SMOLLM2.folder.is_dir(),
        reason=f"{SMOLLM2.name} is not fetched: python -m models.fetch {SMOLLM2.command}",
    ),
]


@pytest.fixture(scope="module")
def served() -> Iterator[ServedDemo]:
    with served_demo("smollm2.yaml") as service:
        yield service


def test_it_answers_over_http(served: ServedDemo) -> None:
    # Every token of the answer is likelier than the next by more than bfloat16 rounds.
    question = "What is the capital of Japan?"
    for speculation in ({"enabled": False}, {"k": 5}, {}):
        answer = httpx.post(
            f"{served.base_url}/v1/chat/completions",
            json={
                "model": "smollm2-135m-instruct",
                "messages": [{"role": "user", "content": question}],
                "temperature": 0,
                "max_tokens": 32,
                "speculation": speculation,
            },
            timeout=60,
        ).json()
        [choice] = answer["choices"]
        assert choice["message"]["content"] == "The capital of Japan is Tokyo."
        assert choice["finish_reason"] == "stop"
    log = served.log()
    assert f"ready at {served.base_url} - try: curl" in log
    assert "batch_invariant True" in log
