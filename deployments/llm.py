"""The Python API without a server: `LLM` has models, grammars and the router's loop in one process.

    from deployments.llm import LLM, SamplingParams

    with LLM() as llm:  # the shipped pair; LLM("folder", "draft folder") for one of your own
        [answer] = llm.generate("Once upon a time", SamplingParams(seed=7, max_tokens=32))
        print(answer.outputs[0].text)

Names and shapes are those of vLLM's offline API. Parameters are checked by the schema of the HTTP
routes. A seed gives the same text as over HTTP. No Ray, no sockets: the models are computed in this
process, one pass after the other, for all prompts together.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, aclosing, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from tqdm.auto import tqdm

from deployments.api.jobs import Job, chat_job, completion_job
from deployments.api.schemas.grammar_fields import naming_field, naming_loosened
from deployments.api.schemas.strict_fields import wrong_field
from deployments.config.vllm.engine_args import engine_tree
from deployments.ingress.service import served_model
from deployments.local.engines import LocalEngines
from deployments.local.loop_thread import LoopThread
from deployments.local.outputs import (
    Answer,
    CompletionOutput,
    Logprob,
    RequestOutput,
    request_output,
)
from deployments.local.pair import LoadedPair, local_config
from deployments.local.room import Room
from deployments.local.sampling_params import SamplingParams
from models.engine.load import EngineLoad
from models.protocol.errors import InvalidRequest
from router.types import GenerationRequest

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams"]

logger = logging.getLogger(__name__)

ModelChoice = str | Path | Mapping[str, Any]  # a model_path, or a section of the config
Prompt = str | Sequence[int] | Mapping[str, Any]
Messages = Sequence[Mapping[str, Any]]
Params = SamplingParams | Sequence[SamplingParams] | None

_SHIPPED = {"target": "models/demo/target", "draft": "models/demo/draft"}
# Nobody else waits here: a long queue is what a batch is, and a slow pass is no death.
_TIMEOUTS = {
    "draft_ms": 60_000,
    "first_token_s": 3600,
    "token_gap_s": 3600,
    "queue_timeout_s": 86_400,
    "failover_s": 0.1,  # there is no other engine
}
_ROUTER = {  # a batch has no streams whose pace counts, and `Room` counts places of roll-outs
    "timeouts": _TIMEOUTS,
    "max_rollouts": 1_000_000,
    "max_rollout_slowdown": 1e6,
}


class LLM:
    """Models in this process that answer prompts. Close it, or use it as a context.

    Calls block until all answers are there. They may come from several threads, and from within a
    running event loop (a notebook), which they block. Ctrl-C ends a call and frees its sessions.

    Args:
        target: the model whose text is wanted: a `model_path`, or the fields of a config's `target`
            section. Left out with `draft`: the shipped demo pair.
        draft: the model that guesses ahead, likewise; None: suffix decoding drafts.
        speculation: fields of `router.speculation`, such as `num_speculative_tokens`.
        router: further fields of the section `router`.
        constraint: fields of the section `constraint`.
        engine: fields of both models (`dtype`, `device`, `num_threads`, `max_model_len`,
            `max_num_seqs`, ...); `num_threads` is torch's own default, and `max_model_len` at most
            the checkpoint's. Or vLLM's words: `model` in place of `target`, `speculative_config` in
            place of `draft` and `speculation`, and its other engine arguments, each with vLLM's
            meaning or refused (`deployments/docs/moving-from-vllm.md`).

    Raises:
        ValueError: a field is unknown or wrong, or a model is missing or cannot be served.
    """

    def __init__(
        self,
        target: ModelChoice | None = None,
        draft: ModelChoice | None = None,
        *,
        speculation: Mapping[str, Any] | None = None,
        router: Mapping[str, Any] | None = None,
        constraint: Mapping[str, Any] | None = None,
        **engine: Any,
    ) -> None:
        tree = _tree(target, draft, engine, speculation)
        tree["router"] = _layered(_layered(_ROUTER, tree["router"]), router or {})
        tree["constraint"] = dict(constraint or {})
        self.config = local_config(tree)
        began_s = time.monotonic()
        pair = LoadedPair(self.config)
        self._engines = pair.engines()
        self._generator = self._engines.router()
        adapters = tuple(self.config.target.lora_modules)
        self._model = served_model(self.config.router, pair.tokenizer, created=0, adapters=adapters)
        self._room = Room(
            self._engines.loads()["target"],
            self.config.target.max_num_seqs,
        )
        self._thread = LoopThread("llm")
        self._end = weakref.finalize(self, _end, self._thread, self._engines)
        logger.info(
            "%s: loaded in %.1f s", self.config.target.model_path, time.monotonic() - began_s
        )

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue raw prompts, all of them together.

        Args:
            prompts: one or a list: a text, its token ids, or a dict with `prompt` or
                `prompt_token_ids`.
            sampling_params: for all, or one for each; None: the defaults.
            use_tqdm: whether to show a progress bar, on stderr.

        Returns:
            An output for each prompt, in their order.

        Raises:
            InvalidRequest: a prompt or a parameter is refused; names prompt and field. Nothing
                was generated.
            ServingError: a generation failed; the others are ended.
            RuntimeError: it was closed.
        """
        listed = _listed(prompts)
        jobs = []
        texts = []
        for index, (given, params) in enumerate(_paired(listed, sampling_params, "prompts")):
            with _naming("prompts", index, len(listed)):
                prompt = _plain(given)
                jobs.append(
                    completion_job(params.completion(self._model.name, prompt), self._model)
                )
            texts.append(prompt if isinstance(prompt, str) else None)
        return self._answered("prompts", jobs, texts, use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        **fields: Any,
    ) -> list[RequestOutput]:
        """Answer conversations, rendered by the model's chat template, all of them together.

        Args:
            messages: a conversation (dicts with `role` and `content`), or a list of them.
            sampling_params: for all, or one for each; None: the defaults.
            use_tqdm: whether to show a progress bar, on stderr.
            fields: further fields of POST /v1/chat/completions.

        Returns:
            An output for each conversation, in their order.

        Raises:
            InvalidRequest, ServingError: see `generate`.
        """
        if not _is_list(messages):
            raise wrong_field(
                "messages", f"a conversation is a list of dicts (got {type(messages).__name__})"
            )
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        listed: Sequence[Any] = [messages] if is_one else messages
        jobs = []
        for index, (one, params) in enumerate(_paired(listed, sampling_params, "messages")):
            with _naming("messages", index, len(listed)):
                jobs.append(chat_job(params.chat(self._model.name, one, fields), self._model))
        decode = self._model.tokenizer.decode
        texts = [decode(job.requests[0].prompt_ids) for job in jobs]
        return self._answered("messages", jobs, texts, use_tqdm)

    def loads(self) -> dict[str, EngineLoad]:
        """Return the load of the engines, by `target` and `draft`."""
        return self._engines.loads()

    def close(self) -> None:
        """Free the models; calls in other threads end with an error. Idempotent."""
        self._end()

    def __enter__(self) -> Self:
        """Return itself; nothing more to do."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free the models."""
        self.close()

    def _answered(
        self, name: str, jobs: Sequence[Job], prompts: Sequence[str | None], use_tqdm: bool
    ) -> list[RequestOutput]:
        if not self._end.alive:
            raise RuntimeError("this LLM is closed")
        total = sum(len(job.requests) for job in jobs)
        with tqdm(total=total, desc="answers", dynamic_ncols=True, disable=not use_tqdm) as bar:
            try:
                answers = self._thread.run(self._all(name, jobs, bar.update))
            except CancelledError:
                raise RuntimeError("this LLM was closed") from None
        return [
            request_output(prompt, of_prompt, self._model.tokenizer)
            for prompt, of_prompt in zip(prompts, answers, strict=True)
        ]

    async def _all(
        self, name: str, jobs: Sequence[Job], count: Callable[[], object]
    ) -> list[list[Answer]]:
        """Answer all jobs, in their order as far as there is room; the first error ends all."""
        answers = [
            [Answer(request, job.writer.head.choice_texts) for request in job.requests]
            for job in jobs
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                for index, job in enumerate(jobs):
                    naming = partial(_naming, name, index, len(jobs))
                    for answer in answers[index]:
                        await self._room.enter(answer.request)
                        task = tasks.create_task(self._one(job, answer, count, naming))
                        task.add_done_callback(partial(self._leave, answer.request))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return answers

    async def _one(
        self,
        job: Job,
        answer: Answer,
        count: Callable[[], object],
        naming: Callable[[], AbstractContextManager[None]],
    ) -> None:
        request = answer.request
        detokenizer = self._model.tokenizer.detokenizer(job.after(request), job.shown_ids)
        items = self._generator.generate(request, detokenizer)
        with naming(), naming_field(*job.grammar_fields):
            async with aclosing(items):
                async for item in items:
                    answer.add(naming_loosened(item, job.grammar_fields))
        count()

    def _leave(self, request: GenerationRequest, _: asyncio.Task[None]) -> None:
        """Give back the room of a task, which may have been cancelled before its first step."""
        self._room.leave(request)


def _end(thread: LoopThread, engines: LocalEngines) -> None:
    thread.close(engines.close())


def _tree(
    target: ModelChoice | None,
    draft: ModelChoice | None,
    words: Mapping[str, Any],
    speculation: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the config: sections `target` and `draft`, and `router` with the given words."""
    words = dict(words)
    for ours, given, theirs in (
        ("target", target, "model"),
        ("draft", draft, "speculative_config"),
        ("speculation", speculation, "speculative_config"),
    ):
        if given is not None and words.get(theirs) is not None:
            raise ValueError(f"{ours} and {theirs} say the same: give one of them")
    target = words.pop("model", None) if target is None else target
    if target is None:
        if draft is not None:
            raise ValueError("draft: needs a target beside it")
        has_draft = words.get("speculative_config") is None
        target, draft = _SHIPPED["target"], _SHIPPED["draft"] if has_draft else None
    own = _section(target)
    tree = engine_tree(
        {"model": own.get("model_path"), "num_threads": torch.get_num_threads()} | words
    )
    if draft is not None:
        shared = {key: value for key, value in tree["target"].items() if key != "model_path"}
        tree["draft"] = shared | _section(draft)
    tree["target"] |= own
    if speculation is not None:
        tree["router"]["speculation"] = dict(speculation)
    return tree


def _section(choice: ModelChoice) -> dict[str, Any]:
    return dict(choice) if isinstance(choice, Mapping) else {"model_path": str(choice)}


def _layered(base: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with further fields; those of a section leave its others as they are."""
    sections = {
        key: _layered(base[key], value)
        for key, value in fields.items()
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
    }
    return {**base, **fields, **sections}


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _listed(prompts: Any) -> list[Any]:
    is_one = not _is_list(prompts) or (
        bool(prompts) and all(isinstance(item, int) for item in prompts)
    )
    return [prompts] if is_one else list(prompts)


def _plain(prompt: Any) -> str | list[int]:
    """Return a text or token ids.

    Raises:
        InvalidRequest: it is neither, nor a dict with one of them and no other keys.
    """
    found = prompt
    if isinstance(prompt, Mapping):
        for key in set(prompt) - {"prompt", "prompt_token_ids"}:
            raise wrong_field(str(key), "is no key of a prompt: prompt and prompt_token_ids are")
        ids = prompt.get("prompt_token_ids")
        found = prompt.get("prompt") if ids is None else ids
    if isinstance(found, str):
        return found
    if not _is_list(found) or not all(isinstance(item, int) for item in found):
        raise wrong_field(
            "prompt",
            "must be a text, a list of token ids, or a dict with prompt or prompt_token_ids "
            f"(got {type(found).__name__})",
        )
    return list(found)


def _paired(
    asked: Sequence[Any], params: Params, name: str
) -> Iterator[tuple[Any, SamplingParams]]:
    if params is None or isinstance(params, SamplingParams):
        params = [params or SamplingParams()] * len(asked)
    if not _is_list(params) or not all(isinstance(one, SamplingParams) for one in params):
        raise wrong_field("sampling_params", f"must be SamplingParams (got {params!r:.80})")
    if len(params) != len(asked):
        raise wrong_field(
            "sampling_params",
            f"one for all or one for each of the {len(asked)} {name} (got {len(params)})",
        )
    return zip(asked, params, strict=True)


@contextmanager
def _naming(name: str, index: int, count: int) -> Iterator[None]:
    """Make refusals within the block name the prompt, where there are several."""
    try:
        yield
    except InvalidRequest as error:
        if count == 1:
            raise
        raise type(error)(
            f"{name}[{index}]: {error.message}", param=error.param, code=error.code
        ) from error
