"""Measures both sides by turns: which ways there are, who is asked how, and what is kept.

Everything that the command line says is decided here; `__main__` only reads it.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from deployments.config.model_files import resolve_model
from loadtest.bench.references import ReferenceModel, generate_tokens_per_s, load_reference
from loadtest.frame.prompts import read_kinds
from loadtest.peer.claims import LLAMA, OURS, PLAIN, TRANSFORMERS, peer_claims
from loadtest.peer.convert import gguf_of
from loadtest.peer.llama import LOOKUPS, LlamaCpp, draft_options
from loadtest.peer.ours import Checkpoints, Engines, Way, service_of
from loadtest.peer.record import PeerRecord, print_lines
from loadtest.peer.timed import Key, Timed
from loadtest.report.interleaved import interleave
from loadtest.report.record import public_command
from models.config import DtypeName
from models.text.tokenizer import Tokenizer

_WARM_UP = "Name three rivers."
_WARM_UP_TOKENS = 16
_DTYPE: DtypeName = "bfloat16"
_MAX_MODEL_LEN = 1024
_HEURISTIC = 0  # an assistant's k that transformers chooses itself

Prompts = Sequence[Sequence[int]]
Run = Callable[[Prompts, int], list[Timed]]  # answers to prompts of at most so many tokens
Ask = Callable[[Sequence[int], int], Timed]


class PeerBench:
    """One comparison: models, prompts, ways and what was found.

    Raises:
        ValueError: a model, a file or a setting is not as it must be.
    """

    def __init__(self, arguments: argparse.Namespace, words: Sequence[str]) -> None:
        self._arguments = arguments
        target, draft = (
            None if path is None else resolve_model(path, _DTYPE, key)
            for key, path in (("--target", arguments.target), ("--draft", arguments.draft))
        )
        assert target is not None, "--target has a default"
        self._models = Checkpoints(target, draft, _DTYPE, _MAX_MODEL_LEN)
        self._llama, skipped = self._llama_of(target, draft)
        self._tasks, self._warm_up = self._prompts(Tokenizer.load(target))
        self._ways = [
            way for drafter in arguments.drafters or [None] for way in self._drawn(drafter)
        ]
        self._ways.insert(0, Way(PLAIN, 0))
        self._record = PeerRecord(
            arguments.output,
            words,
            {
                "ways": {
                    OURS: [way.name for way in self._ways],
                    LLAMA: {
                        name: public_command("", options)
                        for name, options in self._llama_ways.items()
                    },
                },
                "num_tokens": arguments.tokens,
                "dtype": _DTYPE,
                "repeats": arguments.repeats,
                "prompts": arguments.prompts,
                "max_model_len": _MAX_MODEL_LEN,
            },
            adds=arguments.add,
        )
        self._record.skipped = skipped

    def measure(self, where: str, threads: int) -> None:
        """Measure all tasks in one place with so many threads."""
        with self._ours(where, threads) as ours:
            assisted = self._assisted() if where == "engine" else {}
            for task, prompts in self._tasks.items():
                runs = {
                    **{Key(where, threads, task, OURS, way): run for way, run in ours.items()},
                    **{
                        Key(where, threads, task, LLAMA, way): self._llama_run(where, threads, way)
                        for way in self._llama_ways
                    },
                    **{
                        Key(where, threads, task, TRANSFORMERS, way): run
                        for way, run in assisted.items()
                    },
                }
                self._measure_task(runs, prompts, f"{where}, {threads} threads, {task}")

    def finish(self) -> None:
        """Print and write what was found."""
        self._record.finish()
        print_lines(self._record.lines)
        print("\nclaims", *peer_claims(self._record.lines), sep="\n")
        if self._record.skipped:
            print(f"llama.cpp was not measured: {self._record.skipped}")

    def _measure_task(self, runs: Mapping[Key, Run], prompts: Prompts, name: str) -> None:
        first = self._record.num_runs(next(iter(runs))) % len(runs)  # go on with the turns
        turned = [*list(runs)[first:], *list(runs)[:first]]
        keys = {f"{key.side} {key.way}": key for key in turned}
        num_tokens, repeats = self._arguments.tokens, self._arguments.repeats
        lines = {text: partial(runs[key], prompts, num_tokens) for text, key in keys.items()}
        with tqdm(total=len(lines) * repeats, desc=name, unit="run") as bar:
            values = interleave(lines, repeats, lambda text, value: bar.update())
        self._record.add({keys[text]: found for text, found in values.items()})
        ours, theirs = (keys.get(f"{side} {PLAIN}") for side in (OURS, LLAMA))
        if ours is not None and theirs is not None and ours.where == "engine":
            self._record.note_alike(ours, theirs)

    @contextlib.contextmanager
    def _ours(self, where: str, threads: int) -> Iterator[dict[str, Run]]:
        """Ours by name of the way, ready to be asked."""
        if where == "engine":
            engines = Engines(self._models, threads)
            yield {way.name: partial(self._engine_run, engines, way) for way in self._ways}
            return
        with service_of(self._models, threads, max(self._arguments.k)) as service:
            for way in self._ways:  # the first passes make things, which is not measured
                service.ask(self._warm_up, _WARM_UP_TOKENS, way)
            yield {
                way.name: partial(_one_by_one, partial(service.ask, way=way)) for way in self._ways
            }

    def _engine_run(
        self, engines: Engines, way: Way, prompts: Prompts, num_tokens: int
    ) -> list[Timed]:
        return engines.run(self._warm_up, prompts, num_tokens, way)

    def _llama_run(self, where: str, threads: int, way: str) -> Run:
        def run(prompts: Prompts, num_tokens: int) -> list[Timed]:
            assert self._llama is not None, "there are no ways without it"
            with self._llama.serving(threads, self._llama_ways[way]) as client:
                ask = client.ask if where == "engine" else client.ask_streamed
                ask(self._warm_up, _WARM_UP_TOKENS)
                return _one_by_one(ask, prompts, num_tokens)

        return run

    def _assisted(self) -> dict[str, Run]:
        """transformers with the same draft as assistant."""
        ks: Sequence[int] = self._arguments.assisted
        if not ks or self._models.draft is None:
            return {}
        target, draft = (
            load_reference(path, _DTYPE) for path in (self._models.target, self._models.draft)
        )
        return {
            f"assisted {'heuristic' if k == _HEURISTIC else f'k={k}'}": partial(
                _assisted_run, target, draft, k
            )
            for k in ks
        }

    def _llama_of(self, target: Path, draft: Path | None) -> tuple[LlamaCpp | None, str]:
        """Return the server to start, or the reason for none; set the ways of llama.cpp."""
        arguments = self._arguments
        self._llama_ways: dict[str, Sequence[str]] = {}
        if arguments.llama_server is None or not arguments.llama_server.is_file():
            return None, f"no binary at --llama-server {arguments.llama_server or '(not given)'}"
        folder = arguments.gguf_folder
        gguf = gguf_of(target, folder / "target.gguf", arguments.convert_script)
        ways: dict[str, Sequence[str]] = {PLAIN: ()}
        if draft is not None:
            draft_gguf = gguf_of(draft, folder / "draft.gguf", arguments.convert_script)
            ways |= {f"draft k={k}": draft_options(draft_gguf, k) for k in arguments.k if k > 0}
        lookups = arguments.llama_lookups
        if lookups is None:
            lookups = [] if draft is not None else list(LOOKUPS)
        ways |= {name: LOOKUPS[name] for name in lookups}
        ways |= {name: shlex.split(options) for name, options in arguments.llama_way}
        self._llama_ways = ways
        return LlamaCpp(arguments.llama_server, gguf, _MAX_MODEL_LEN), ""

    def _prompts(self, tokenizer: Tokenizer) -> tuple[dict[str, Prompts], Sequence[int]]:
        def encode(text: str) -> list[int]:
            return tokenizer.encode_chat([{"role": "user", "content": text}])

        arguments = self._arguments
        texts = read_kinds(arguments.task_file)
        missing = [task for task in arguments.tasks or () if task not in texts]
        if missing:
            raise ValueError(f"--tasks: {missing[0]!r} is none of {', '.join(texts)}")
        tasks: dict[str, Prompts] = {
            task: [encode(text) for text in texts[task][: arguments.prompts]]
            for task in arguments.tasks or texts
        }
        return tasks, encode(_WARM_UP)

    def _drawn(self, drafter: str | None) -> list[Way]:
        """Return the ways of one drafter: each k, and adaptive."""
        ahead = "" if drafter is None else f"{drafter} "
        fixed = [Way(f"{ahead}k={k}", k, drafter) for k in self._arguments.k if k > 0]
        return [*fixed, Way(f"{ahead}adaptive", None, drafter)]


def _one_by_one(ask: Ask, prompts: Prompts, num_tokens: int) -> list[Timed]:
    return [ask(prompt, num_tokens) for prompt in prompts]


def _assisted_run(
    target: ReferenceModel, draft: ReferenceModel, k: int, prompts: Prompts, num_tokens: int
) -> list[Timed]:
    """Whole answers of exactly `num_tokens`: of more, transformers tells nothing."""
    found = []
    for prompt in prompts:
        rate = generate_tokens_per_s(
            target,
            [prompt],
            num_tokens,
            assistant=draft,
            num_assistant_tokens=None if k == _HEURISTIC else k,
        )
        whole_s = num_tokens / rate
        found.append(
            Timed(num_tokens=num_tokens, num_decoded=num_tokens, decode_s=whole_s, whole_s=whole_s)
        )
    return found
