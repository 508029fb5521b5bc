"""OpenAI's client asks through nginx with its default settings.

The server runs one request at a time, so the last one waits for longer than nginx does.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai

from loadtest.clients.scripts.checks import CheckFailed, Checks, Service, expect
from loadtest.clients.scripts.openai_parts import client

checks = Checks()

PROXY_TIMEOUT_S = 60.0  # nginx's proxy_read_timeout
WAIT_S = 80.0  # that is aimed at
LONG: dict[str, Any] = {"max_tokens": 900, "temperature": 1.0}
MAX_QUEUED = 400


def client_of(service: Service) -> openai.OpenAI:
    return openai.OpenAI(base_url=service.base_url, api_key="none", timeout=600, max_retries=0)


def asked(service: Service, **options: Any) -> dict[str, Any]:
    return client.asked(service, **{"temperature": 0, "max_tokens": 40, **options})


def occupy(service: Service, seed: int) -> float:
    """Keep the server busy; for how long, if nobody else does."""
    began_s = time.monotonic()
    client_of(service).chat.completions.create(
        **asked(service, **LONG, seed=seed), extra_body={"ignore_eos": True}
    )
    return time.monotonic() - began_s


def stream_times(service: Service, **options: Any) -> tuple[str, list[float]]:
    """Return the text, and the time of each chunk in seconds since the request."""
    began_s, text, times = time.monotonic(), "", []
    for chunk in client_of(service).chat.completions.create(
        **asked(service, **options), stream=True
    ):
        times.append(time.monotonic() - began_s)
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    return text, times


def whole_times(service: Service) -> tuple[str, list[float]]:
    """Return the text and the time of its arrival."""
    began_s = time.monotonic()
    answer = client_of(service).chat.completions.create(**asked(service))
    return answer.choices[0].message.content or "", [time.monotonic() - began_s]


@checks.named("chat: tokens are passed on as they come")
def unbuffered(service: Service) -> str:
    text, times = stream_times(service, max_tokens=300)
    expect(text, "no text")
    expect(times[0] < 0.7 * times[-1], f"the first of {len(times)} came after {times[0]:.2f} s")
    return f"{len(times)} chunks, from {times[0]:.2f} to {times[-1]:.2f} s"


@checks.named("chat, streamed and whole: the first token takes longer than nginx waits")
def patient(service: Service) -> str:
    alone, _ = whole_times(service)
    num_before = min(MAX_QUEUED, math.ceil(WAIT_S / occupy(service, 0)))
    with ThreadPoolExecutor(num_before + 2) as pool:
        before = [pool.submit(occupy, service, seed) for seed in range(1, num_before + 1)]
        time.sleep(2.0)
        asking = [pool.submit(stream_times, service), pool.submit(whole_times, service)]
        found = [one.result() for one in asking]
        for one in before:
            one.result()
    for text, times in found:
        expect(text == alone, f"{text!r} instead of {alone!r}")
        if times[0] < PROXY_TIMEOUT_S:
            raise CheckFailed(f"it came after {times[0]:.0f} s already, which shows nothing")
    return f"after {found[0][1][0]:.0f} s streamed, {found[1][1][0]:.0f} s whole"


@checks.named("errors: status, code and request id come through")
def refusals(service: Service) -> str:
    try:
        client_of(service).chat.completions.create(**asked(service, temperature=9))
    except openai.BadRequestError as error:
        expect(error.param == "temperature", f"param {error.param}")
        expect(error.request_id, "no x-request-id")
        return error.message
    raise CheckFailed("it was accepted")


if __name__ == "__main__":
    checks.main()
