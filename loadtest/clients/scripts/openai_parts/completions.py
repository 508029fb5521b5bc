"""OpenAI's own client: text completions."""

from __future__ import annotations

from loadtest.clients.scripts.checks import Checks, Service, expect
from loadtest.clients.scripts.openai_parts.client import complete

checks = Checks()


@checks.named("completions: text, stream, token ids")
def completions(service: Service) -> str:
    whole = complete(service, max_tokens=20, seed=7)
    stream = complete(service, max_tokens=20, seed=7, stream=True)
    text = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
    expect(text == whole.choices[0].text, f"the stream said {text!r}")
    ids = complete(service, [5, 6, 7], max_tokens=3)
    expect(ids.usage and ids.usage.prompt_tokens == 3, "three ids are not three prompt tokens")
    return repr(text)


@checks.named("completions: a list of prompts")
def prompts(service: Service) -> str:
    texts = ["Once upon a time", "def add(a, b):"]
    answer = complete(service, texts, max_tokens=12, temperature=0)
    alone = [complete(service, text, max_tokens=12, temperature=0) for text in texts]
    expect([choice.index for choice in answer.choices] == [0, 1], "not choices 0 and 1")
    together = [choice.text for choice in answer.choices]
    expect(together == [one.choices[0].text for one in alone], f"together: {together}")
    return repr(together)


@checks.named("completions: logprobs, echo")
def completion_logprobs(service: Service) -> str:
    answer = complete(service, max_tokens=5, logprobs=2, echo=True)
    shape = answer.choices[0].logprobs
    expect(shape and shape.tokens and shape.token_logprobs, "no logprobs")
    tokens = (shape.tokens if shape else None) or []
    expect("".join(tokens) == answer.choices[0].text, "tokens do not join to the text")
    return f"{len(tokens)} tokens"
