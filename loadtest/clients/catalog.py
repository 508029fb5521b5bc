"""The clients: what pip installs for each, and what is run with it.

A script of ours runs a client in its own environment (`scripts/`) or in a page of a browser. A
benchmark tool runs by its own command line with a small bounded load, a check for each load. All
are run against one server that lets pages in. Some want a server of their own (`change`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.clients.reports import Counts, read_aiperf, read_aiperf_speculation, read_guidellm
from loadtest.service.served import section

_NUM_REQUESTS = 12
_CONCURRENCY = 3
_PROMPT_TOKENS = 60
_OUTPUT_TOKENS = 20
_LOAD_TIMEOUT_S = 120.0
_SCRIPT_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Target:
    """The server that is asked, without a slash at the end, and its tokenizer's folder."""

    root_url: str
    model: str
    tokenizer: Path


@dataclass(frozen=True, slots=True)
class Load:
    """A run of a benchmark tool, in an empty folder, and the reader of what it leaves there."""

    name: str
    words: Callable[[Target], list[str]]
    read: Callable[[Path], Counts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client. Its `name` is its package's, and, for a tool, its program's.

    Attributes:
        requirements: for pip, or for npm where `is_npm`.
        script: module; for Node and for a page a file below the repository's root.
        is_page: the script runs in a page of another origin than the server's.
        is_behind_nginx: the client reaches the server through nginx.
        change: of the config of a server of its own.
    """

    name: str
    requirements: tuple[str, ...]
    script: str = ""
    is_npm: bool = False
    is_page: bool = False
    is_behind_nginx: bool = False
    change: Callable[[dict[str, Any]], None] | None = None
    loads: tuple[Load, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = _SCRIPT_TIMEOUT_S  # limit of the script, or of one load


def let_pages_in(config: dict[str, Any]) -> None:
    """Change a Serve config so that pages of all origins may use the API."""
    section(config, "router.http")["allowed_origins"] = ["*"]


def _one_at_a_time(config: dict[str, Any]) -> None:
    """Change a Serve config so that requests wait for each other, minutes if it must be."""
    let_pages_in(config)
    section(config, "router").update(max_sessions=1, max_queued_sessions=512)
    section(config, "router.timeouts")["queue_wait_s"] = 900


def _script(name: str, *requirements: str, **environment: str) -> Client:
    module = name.removesuffix("-slim").removesuffix("-openai").replace("-", "_")
    return Client(
        name=name,
        requirements=requirements,
        script=f"loadtest.clients.scripts.{module}_checks",
        environment=environment,
    )


def _guidellm(*backend: str) -> Callable[[Target], list[str]]:
    def words(target: Target) -> list[str]:
        return [
            *("run", "--disable-console-interactive"),
            *(
                "--backend",
                ",".join(
                    [
                        "kind=openai_http",
                        f"target={target.root_url}",
                        f"model={target.model}",
                        *backend,
                    ]
                ),
            ),
            *("--profile", f"kind=concurrent,streams={_CONCURRENCY}"),
            *("--constraint", f"kind=max_requests,count={_NUM_REQUESTS}"),
            *("--constraint", f"kind=max_duration,seconds={_LOAD_TIMEOUT_S / 2:g}"),
            *("--tokenizer", f"kind=huggingface_auto,model={target.tokenizer}"),
            *(
                "--data",
                f"kind=synthetic_text,prompt_tokens={_PROMPT_TOKENS},output_tokens={_OUTPUT_TOKENS}",
            ),
            *("--output", "kind=json,path=report.json"),
        ]

    return words


def _aiperf(endpoint: str, *options: str) -> Callable[[Target], list[str]]:
    def words(target: Target) -> list[str]:
        return [
            "profile",
            *("--url", target.root_url),
            *("--model", target.model),
            *("--endpoint-type", endpoint),
            *("--tokenizer", str(target.tokenizer)),
            *("--synthetic-input-tokens-mean", str(_PROMPT_TOKENS)),
            *("--output-tokens-mean", str(_OUTPUT_TOKENS)),
            *("--request-count", str(_NUM_REQUESTS)),
            *("--concurrency", str(_CONCURRENCY)),
            *("--random-seed", "1"),
            # An answer that ends with its first token has no text, which this tool takes for none.
            *("--extra-inputs", "ignore_eos:true"),
            *("--ui", "none"),
            *("--artifact-dir", "."),
            *options,
        ]

    return words


CLIENTS: tuple[Client, ...] = (
    _script("openai", "openai>=3.54,<4"),
    Client(
        name="openai (npm)",
        requirements=("openai@>=7.57 <8", "zod@>=4.6 <5"),
        script="loadtest/clients/scripts/openai_npm_checks.mjs",
        is_npm=True,
    ),
    Client(
        name="openai (a page in Chromium)",
        requirements=("openai@>=7.57 <8",),
        script="loadtest/clients/scripts/page_checks.mjs",
        is_npm=True,
        is_page=True,
    ),
    Client(
        name="openai (behind nginx)",
        requirements=("openai>=3.54,<4",),
        script="loadtest.clients.scripts.nginx_checks",
        is_behind_nginx=True,
        change=_one_at_a_time,
        timeout_s=900.0,  # its requests wait longer than nginx's default of 60 s
    ),
    _script("langchain-openai", "langchain-openai>=1.7,<2"),
    # Its newest releases may want a certifi that is days old: the range lets pip go back. The
    # price list it would fetch when imported is in the package too. Tools want mcp.
    _script("litellm", "litellm>=1.100,<2", "mcp", LITELLM_LOCAL_MODEL_COST_MAP="True"),
    _script("instructor", "instructor>=1.16,<2"),
    _script("pydantic-ai-slim", "pydantic-ai-slim[openai]>=2.60,<3"),
    _script("openai-agents", "openai-agents>=0.23,<1"),
    Client(
        name="lm-eval",
        # torch: see guidellm.
        requirements=("lm-eval[api]>=0.4.13,<1", "transformers>=5.17,<6", "torch==2.13.0"),
        script="loadtest.clients.scripts.lm_eval_checks",
        environment={"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
    ),
    Client(
        name="guidellm",
        # torch: the version that is offered as a CPU build, as for the server itself.
        requirements=("guidellm>=0.8,<1", "torch==2.13.0"),
        loads=(
            Load("chat, streamed", _guidellm(), read_guidellm),
            Load("chat, whole", _guidellm("stream=false"), read_guidellm),
            Load("completions", _guidellm("request_format=/v1/completions"), read_guidellm),
        ),
        environment={"HF_HUB_OFFLINE": "1"},
        timeout_s=_LOAD_TIMEOUT_S,
    ),
    Client(
        name="aiperf",
        requirements=("aiperf>=0.12,<1",),
        loads=(
            Load("chat, streamed", _aiperf("chat", "--streaming"), read_aiperf),
            Load("chat, whole", _aiperf("chat"), read_aiperf),
            Load("completions, streamed", _aiperf("completions", "--streaming"), read_aiperf),
            Load(
                "chat, usage on every chunk",
                _aiperf("chat", "--streaming", "--use-server-token-count", "--per-chunk-usage"),
                read_aiperf,
            ),
            Load(
                "chat, its speculation figures",
                _aiperf("chat", "--streaming"),
                read_aiperf_speculation,
            ),
        ),
        # No HF_HUB_OFFLINE: with it this tool takes no folder for a tokenizer.
        timeout_s=_LOAD_TIMEOUT_S,
    ),
)
