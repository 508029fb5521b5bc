"""The stage `llama`: llama.cpp's `llama-server` as a child process, asked greedily by token ids.

The binary is the user's, and so are GGUF files that are there already. A server lives for one run.
Its n-gram kinds lose their knowledge of earlier answers with it, so no run knows those of the last.
It is timed by the server's own clock, beside our engines.
Sources: tools/server/README.md and docs/speculative.md of github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from loadtest.client.http import READ_TIMEOUT_S
from loadtest.frame.experiment import Experiment
from loadtest.frame.gguf import gguf_of
from loadtest.frame.runs import Answer, Ask, Run
from loadtest.frame.stages import Closing, Models, Opener
from loadtest.frame.ways import Way
from loadtest.frame.workloads import tokenizer_of
from loadtest.service.served import ended_in_order, free_port
from loadtest.service.sessions import let_others_go_first
from router.drafters.draft_model import POOL
from router.stats import SpeculationStats

READY_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 20.0
_WARM_UP = "Name three rivers."
_WARM_UP_TOKENS = 16

# n-gram kinds, by what they are called in tables. The defaults of the server wait for 12 equal
# tokens and draft 48, which short answers seldom have, so these are shorter.
LOOKUPS: Mapping[str, Sequence[str]] = {
    **{
        f"ngram-simple {size}/{length}": (
            *("--spec-type", "ngram-simple"),
            *("--spec-ngram-simple-size-n", str(size)),
            *("--spec-ngram-simple-size-m", str(length)),
        )
        for size, length in ((2, 8), (3, 4), (3, 8))
    },
    "ngram-mod 4": (
        *("--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", "4"),
        *("--spec-ngram-mod-n-min", "1", "--spec-ngram-mod-n-max", "16"),
    ),
}


def draft_options(draft: Path, k: int) -> tuple[str, ...]:
    """Return the options with which a draft model drafts `k` tokens a round."""
    return (
        *("--spec-type", "draft-simple", "--spec-draft-model", str(draft)),
        *("--spec-draft-n-max", str(k), "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"),
    )


@dataclass(frozen=True)
class LlamaCpp:
    """A llama.cpp server: the binary, the target and the options that every way shares."""

    binary: Path
    target: Path  # GGUF
    max_model_len: int

    def command(self, port: int, threads: int, options: Sequence[str]) -> list[str]:
        """Return the command line of a server with one place."""
        return [
            *(str(self.binary), "--model", str(self.target)),
            *("--host", "127.0.0.1", "--port", str(port), "--parallel", "1"),
            *("--ctx-size", str(self.max_model_len), "--cache-ram", "0"),
            *("--threads", str(threads), "--threads-batch", str(threads), *options),
        ]

    @contextlib.contextmanager
    def serving(self, threads: int, options: Sequence[str]) -> Iterator[LlamaClient]:
        """Run a server until the block ends; ready when the block begins.

        Raises:
            RuntimeError: it ended, or was not ready within READY_TIMEOUT_S; with the log's end.
        """
        port = free_port()
        with TemporaryDirectory(prefix="or-") as folder, ended_in_order():
            log_path = Path(folder) / "llama.log"
            with log_path.open("wb") as log:
                process = subprocess.Popen(
                    self.command(port, threads, options),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C comes to us, and we end it
                )
            let_others_go_first(process.pid)
            base_url = f"http://127.0.0.1:{port}"
            try:
                with httpx.Client(base_url=base_url, timeout=READ_TIMEOUT_S) as client:
                    _wait_ready(client, process, log_path)
                    yield LlamaClient(client)
            finally:
                _end(process)


class LlamaClient:
    """Asks a running server, one prompt after another. Made by `LlamaCpp.serving`."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def ask(self, ask: Ask) -> Answer:
        """Return one answer, timed by the server's own clock from 0 on.

        Raises:
            RuntimeError: the server refused, or its answer has no timings.
        """
        answer = self._client.post("/completion", json=_body(ask))
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"llama-server: HTTP {answer.status_code}: {answer.text[:500]}")
        return timed_by_server(answer.json())


def timed_by_server(content: Mapping[str, Any]) -> Answer:
    """Read a whole answer of `/completion`.

    The server counts its time of generation from the first token on, which it counts as well.

    Raises:
        RuntimeError: it has no timings.
    """
    timings = content.get("timings")
    if not timings or not timings.get("predicted_n"):
        raise RuntimeError(f"llama-server: an answer without timings: {str(content)[:500]}")
    first_s = float(timings["prompt_ms"]) / 1e3
    return Answer(
        content=tuple(content.get("tokens") or ()),
        num_tokens=int(timings["predicted_n"]),
        num_first=1,
        began_s=0.0,
        first_s=first_s,
        ended_s=first_s + float(timings["predicted_ms"]) / 1e3,
        stats=SpeculationStats(  # sums of all rounds, whose number is not told
            num_rounds=1,
            per_step_drafted=(int(timings.get("draft_n", 0)),),
            per_step_accepted=(int(timings.get("draft_n_accepted", 0)),),
        ),
    )


def _body(ask: Ask) -> dict[str, Any]:
    return {
        "prompt": list(ask.prompt_ids),
        "n_predict": ask.max_tokens,
        "ignore_eos": ask.ignores_eos(is_constrained=False),
        "temperature": 0.0,
        "samplers": ["top_k"],  # the least work: nothing but the best token is looked for
        "top_k": 1,
        "cache_prompt": False,
        "return_tokens": True,
        "stream": False,
    }


def _wait_ready(client: httpx.Client, process: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(httpx.HTTPError):
            if client.get("/health").status_code == httpx.codes.OK:
                return
        time.sleep(0.05)
    log = log_path.read_text(errors="replace")
    raise RuntimeError(f"llama-server did not become ready:\n{log[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_TIMEOUT_S)


class LlamaStage(Closing):
    """Implements `Stage` with a server of its own for each run, one request at a time.

    A way without a drafter drafts its `k` with the draft model. A drafter is a name of `LOOKUPS`,
    or options of the server. A way's own `model_path` is a GGUF file in place of the target's.

    Args:
        binary: the server.
        folder: of `target.gguf` and `draft.gguf`; empty: `gguf/` and the pair's label.
        script: llama.cpp's converter, which makes the files that are missing.
        models: of the pair.

    Raises:
        ValueError: a file is not there, and no converter makes it; or the server is no program.
    """

    def __init__(
        self,
        binary: Path,
        folder: Path | None,
        script: Path | None,
        models: Models,
    ) -> None:
        self._models = models
        self._files = folder or Path("gguf") / models.label
        self._script = script
        program = binary.absolute() if binary.is_file() else shutil.which(binary)
        if program is None:
            raise ValueError(f"--llama-server: must be a program, got {str(binary)!r}")
        target = gguf_of(models.target, self._files / "target.gguf", script)
        self._server = LlamaCpp(Path(program), target, int(models.engine["max_model_len"]))

    def run(self, asks: Sequence[Ask], way: Way, batch: int) -> Run:
        """See `Stage.run`."""
        if batch != 1 or any(ask.temperature or ask.schema for ask in asks):
            raise ValueError("llama.cpp is asked greedily, without grammars, one at a time")
        tokenizer = tokenizer_of(self._models.target)
        prompt = tokenizer.encode_chat([{"role": "user", "content": _WARM_UP}])
        warm_up = Ask(prompt_ids=tuple(prompt), max_tokens=_WARM_UP_TOKENS)
        threads = int(self._models.engine["num_threads"])
        own = way.target.get("model_path")
        server = self._server if own is None else replace(self._server, target=Path(own))
        with server.serving(threads, self._options(way)) as client:
            client.ask(warm_up)
            answers = [client.ask(ask) for ask in asks]
        return Run(answers=in_turn(answers), batch=batch)

    def _options(self, way: Way) -> Sequence[str]:
        if way.drafter is not None:
            return LOOKUPS.get(way.drafter) or shlex.split(way.drafter)
        if way.k == 0:
            return ()
        if way.k is None:
            raise ValueError("k: llama.cpp's draft model has a fixed one")
        draft = gguf_of(self._models.drafts[POOL], self._files / "draft.gguf", self._script)
        return draft_options(draft, way.k)


def in_turn(answers: Sequence[Answer]) -> list[Answer]:
    """Return answers that were each timed from 0 on, one after another by one clock."""
    found, now_s = [], 0.0
    for one in answers:
        times = {name: now_s + getattr(one, name) for name in ("began_s", "first_s", "ended_s")}
        found.append(replace(one, **times))
        now_s = times["ended_s"]
    return found


# --- of the command -------------------------------------------------------------------------------


def add_options(add: Callable[..., object]) -> None:
    """Add the options of this stage to the command's."""
    add("--llama-server", type=Path, help="llama.cpp's server; without it ours is measured alone")
    add("--gguf-folder", type=Path, help="of target.gguf and draft.gguf; default: gguf/PAIR")
    add("--convert-script", type=Path, help="llama.cpp's convert_hf_to_gguf.py, to make them")
    add(
        "--llama-way",
        action="append",
        default=[],
        metavar="NAME=OPTIONS",
        help="a further way of llama-server by its own options; may be given again",
    )


def openers(arguments: Namespace) -> dict[str, Opener]:
    """Return what opens the stage; nothing without a binary."""
    binary: Path | None = arguments.llama_server
    if binary is None:
        return {}
    return {"llama": partial(LlamaStage, binary, arguments.gguf_folder, arguments.convert_script)}


def with_ways(experiment: Experiment, words: Sequence[str]) -> Experiment:
    """Return the experiment with further ways of llama-server, each NAME=OPTIONS.

    Raises:
        ValueError: one is written otherwise, or the experiment has no llama.cpp.
    """
    if not words:
        return experiment
    ways = dict(experiment.ways)
    has_llama = any(way.at == "llama" for way in ways.values())
    for text in words:
        name, equals, options = text.partition("=")
        if not (name and equals and has_llama):
            raise ValueError(
                f"--llama-way: must be NAME=OPTIONS for an experiment with llama.cpp, got {text!r}"
            )
        if options not in LOOKUPS and not options.startswith("-"):
            raise ValueError(
                f"--llama-way {name}: must be options of llama-server or one of "
                f"{', '.join(LOOKUPS)}, got {options!r}"
            )
        ways[f"llama {name}"] = Way(k=0, at="llama", drafter=options, texts="")
    return replace(experiment, ways=ways)
