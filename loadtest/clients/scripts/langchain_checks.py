"""langchain-openai: ChatOpenAI and OpenAI, as chains use them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

from loadtest.clients.scripts.checks import (
    ORDER,
    STORY,
    TIMEOUT_S,
    Checks,
    Service,
    expect,
    expect_order,
)
from loadtest.clients.scripts.order import Order

checks = Checks()


def of(service: Service) -> dict[str, Any]:
    """Return the arguments that name the server and the model."""
    return {
        "model": service.model,
        "base_url": service.base_url,
        "api_key": "none",
        "timeout": TIMEOUT_S,
        "max_retries": 0,
        "seed": 7,
    }


def chat_of(service: Service, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(**{**of(service), "max_tokens": 60, "temperature": 0.7, **options})


@checks.named("invoke")
def invoke(service: Service) -> str:
    answer = chat_of(service).invoke([SystemMessage("You tell stories."), HumanMessage(STORY)])
    expect(answer.content, "no text")
    usage = answer.usage_metadata or {}
    expect(usage.get("output_tokens", 0) > 0, f"usage {usage}")
    expect(answer.response_metadata.get("finish_reason"), "no finish reason")
    return str(usage)


@checks.named("stream, with usage")
def stream(service: Service) -> str:
    whole = chat_of(service).invoke(STORY)
    chunks = list(chat_of(service, stream_usage=True).stream(STORY))
    text = "".join(str(chunk.content) for chunk in chunks)
    expect(text == whole.content, f"the stream said {text!r}")
    usages = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    expect(len(usages) == 1, f"{len(usages)} chunks with usage")
    return f"{len(chunks)} chunks, {usages[0]}"


@checks.named("a seed gives one text")
def seeds(service: Service) -> str:
    texts = [chat_of(service, seed=seed).invoke(STORY).content for seed in (7, 7, 8)]
    expect(texts[0] == texts[1] != texts[2], f"texts {texts}")
    return repr(texts[0])


@checks.named("logprobs")
def logprobs(service: Service) -> str:
    answer = chat_of(service, logprobs=True, top_logprobs=2, max_tokens=8).invoke(STORY)
    entries = (answer.response_metadata.get("logprobs") or {}).get("content") or []
    joined = "".join(entry["token"] for entry in entries)
    expect(joined == answer.content, f"tokens join to {joined!r}")
    return f"{len(entries)} tokens"


@checks.named("logprobs in a stream")
def stream_logprobs(service: Service) -> str:
    chat = chat_of(service, logprobs=True, top_logprobs=2, max_tokens=8)
    whole: Any = None
    for chunk in chat.stream(STORY):
        whole = chunk if whole is None else whole + chunk
    entries = (whole.response_metadata.get("logprobs") or {}).get("content") or []
    joined = "".join(entry["token"] for entry in entries)
    expect(joined == whole.content, f"tokens join to {joined!r}, the text is {whole.content!r}")
    return f"{len(entries)} tokens"


def structured(service: Service, **options: Any) -> str:
    chat = chat_of(service, temperature=0, max_tokens=100)
    answer = chat.with_structured_output(Order, include_raw=True, **options).invoke(ORDER)
    expect(answer["parsing_error"] is None, f"parsing: {answer['parsing_error']}")
    return expect_order(answer["parsed"].model_dump())


for name, way in (
    ("json_schema", {"method": "json_schema"}),
    ("json_schema, strict", {"method": "json_schema", "strict": True}),
    ("function_calling", {"method": "function_calling"}),
):
    checks.named(f"with_structured_output: {name}")(partial(structured, **way))


@checks.named("with_structured_output: json_mode")
def json_mode(service: Service) -> str:
    chat = chat_of(service, temperature=0, max_tokens=100)
    answer = chat.with_structured_output(method="json_mode").invoke(ORDER)
    expect(isinstance(answer, dict), f"answer {answer!r}")
    return str(answer)


@checks.named("with_structured_output: stream")
def stream_structured(service: Service) -> str:
    chat = chat_of(service, temperature=0, max_tokens=100)
    parts = list(chat.with_structured_output(Order, method="json_schema").stream(ORDER))
    return expect_order(parts[-1].model_dump())


@checks.named("a chain in a batch")
def batch(service: Service) -> str:
    prompt = ChatPromptTemplate.from_messages([("user", "Write a short story about {what}.")])
    chain = prompt | chat_of(service, max_tokens=20) | StrOutputParser()
    texts = chain.batch([{"what": "a dog"}, {"what": "a cat"}, {"what": "a bird"}])
    expect(len(texts) == 3 and all(texts), f"texts {texts}")
    return repr(texts)


@checks.named("a conversation sent back")
def conversation(service: Service) -> str:
    chat = chat_of(service, max_tokens=20)
    first = chat.invoke(STORY)
    second = chat.invoke([HumanMessage(STORY), first, HumanMessage("Go on.")])
    expect(isinstance(second, AIMessage), f"answer {second!r}")
    return repr(second.content)


@checks.named("async: invoke and stream")
def asynchronous(service: Service) -> str:
    async def ask() -> tuple[str, str]:
        chat = chat_of(service)
        answer = await chat.ainvoke(STORY)
        return str(answer.content), "".join([str(c.content) async for c in chat.astream(STORY)])

    whole, streamed = asyncio.run(ask())
    expect(whole == streamed, f"{whole!r} and {streamed!r}")
    return f"{len(whole)} characters"


def text_of(service: Service) -> OpenAI:
    return OpenAI(**of(service), max_tokens=20)


@checks.named("text completion: stream")
def text_stream(service: Service) -> str:
    text = "".join(text_of(service).stream("Once upon a time"))
    expect(text, "no text")
    return repr(text)


@checks.named("text completion: invoke, batch")
def text(service: Service) -> str:
    texts = text_of(service).batch(["Once upon a time", "There was a dog"])
    expect(len(texts) == 2 and all(texts), f"texts {texts}")
    return repr([text_of(service).invoke("Once upon a time"), *texts])


@checks.named("bind_tools: a required call")
def tools(service: Service) -> str:
    chat = chat_of(service, temperature=0).bind_tools([Order], tool_choice="required")
    calls = chat.invoke(ORDER).tool_calls
    expect(len(calls) == 1, f"calls {calls}")
    return expect_order(calls[0]["args"])


@checks.named("bind_tools: a stream, and the result sent back")
def tool_stream(service: Service) -> str:
    chat = chat_of(service, temperature=0)
    chunks = list(chat.bind_tools([Order], tool_choice="Order").stream(ORDER))
    whole = sum(chunks[1:], chunks[0])
    found = expect_order(whole.tool_calls[0]["args"])
    result = ToolMessage("recorded", tool_call_id=whole.tool_calls[0]["id"])
    after = chat.bind_tools([Order]).invoke([HumanMessage(ORDER), whole, result])
    expect(after.response_metadata.get("finish_reason"), "no finish reason")
    return found


if __name__ == "__main__":
    checks.main()
