"""vLLM's engine arguments: which key of the config each of them is, or what to use in its place.

The names are those of `vllm.LLM(...)`, and with dashes those of `vllm serve`. A word without a
place here is accepted if its value changes nothing. Otherwise it is refused with a sentence that
names a replacement. No word is dropped in silence: that would run something else than was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["text", "int", "float", "bool", "json"]


@dataclass(frozen=True, slots=True)
class Word:
    """One of vLLM's words.

    Attributes:
        kind: of its value on a command line.
        place: dotted key of the config that means the same; "": there is none.
        values: by vLLM's value: the value here, where they differ.
        nothing: values that ask for nothing beyond what is so anyway; None always does.
        instead: what to use in place of any other value.
        is_shared: a draft model has the target's value, as in vLLM.
    """

    kind: Kind = "text"
    place: str = ""
    values: Mapping[Any, Any] = field(default_factory=dict)
    nothing: tuple[Any, ...] = ()
    instead: str = ""
    is_shared: bool = False


_DTYPES = {"half": "float16", "float": "float32"}
_ONE_NODE = "ranks of one model are its only split here: use tensor_parallel_size"
_NO_CODE = "code of a checkpoint is never run here; models that transformers knows need none"
_ONLY_TEXT = "only text models are served"
_ONE_TEXT = "a text hangs on its request's seed alone: give `seed` in SamplingParams or the request"
_CUT = "is cut into blocks here: give kv_cache_tokens or kv_cache_memory"

WORDS: dict[str, Word] = {
    "model": Word(place="target.model_path"),
    "revision": Word(place="target.revision"),
    "tokenizer": Word(place="router.tokenizer_path"),
    "served_model_name": Word(place="router.model_name"),
    "dtype": Word(place="target.dtype", values=_DTYPES, is_shared=True),
    "device": Word(
        place="target.device",
        instead="name it, cpu or cuda (the default is cpu)",
        is_shared=True,
    ),
    "max_model_len": Word("int", "target.max_model_len"),
    "max_num_seqs": Word("int", "target.max_num_seqs", is_shared=True),
    "max_num_batched_tokens": Word("int", "target.max_num_batched_tokens", is_shared=True),
    "enable_prefix_caching": Word("bool", "target.enable_prefix_caching", is_shared=True),
    "block_size": Word("int", "target.block_size", is_shared=True),
    "tensor_parallel_size": Word("int", "target.tensor_parallel_size", is_shared=True),
    "gpu_memory_utilization": Word("float", "target.gpu_memory_utilization"),
    "kv_cache_memory_bytes": Word("int", "target.kv_cache_memory"),
    "quantization": Word(place="target.quantization"),
    "enforce_eager": Word(
        "bool", "target.graphs", values={True: "off", False: "auto"}, is_shared=True
    ),
    "tool_call_parser": Word(place="router.tool_call_parser"),
    "reasoning_parser": Word(place="router.reasoning_parser"),
    "stream_interval": Word("int", "router.http.stream_interval"),
    "speculative_config": Word("json"),
    # These ask for nothing, or are not here.
    "trust_remote_code": Word("bool", nothing=(False,), instead=_NO_CODE),
    "tokenizer_mode": Word(
        nothing=("auto", "hf"), instead="tokenizer.json is read, the fast one: leave it out"
    ),
    "skip_tokenizer_init": Word(
        "bool", nothing=(False,), instead="prompts may be token ids, with the tokenizer there"
    ),
    "tokenizer_revision": Word(instead="give tokenizer the folder of that revision"),
    "code_revision": Word(instead=_NO_CODE),
    "seed": Word("int", instead=_ONE_TEXT),
    "load_format": Word(
        nothing=("auto", "safetensors", "hf"),
        instead="safetensors are read, and GGUF where model names such a file",
    ),
    "config_format": Word(nothing=("auto", "hf"), instead="only config.json is read"),
    "model_impl": Word(nothing=("auto", "transformers"), instead="models are transformers' own"),
    "runner": Word(nothing=("auto", "generate"), instead="only texts are generated"),
    "task": Word(nothing=("auto", "generate"), instead="only texts are generated"),
    "convert": Word(nothing=("auto", "none"), instead="only texts are generated"),
    "download_dir": Word(instead="set HF_HOME"),
    "hf_token": Word(instead="set HF_TOKEN"),
    "hf_overrides": Word("json", nothing=({},), instead="change config.json in a copy"),
    "rope_scaling": Word("json", nothing=({},), instead="change config.json in a copy"),
    "rope_theta": Word("float", instead="change config.json in a copy"),
    "override_generation_config": Word(
        "json", nothing=({},), instead="say it in SamplingParams or the request"
    ),
    "chat_template": Word(
        instead="put it as chat_template.jinja beside tokenizer.json, and name that folder as "
        "tokenizer"
    ),
    "enable_auto_tool_choice": Word(
        "bool", nothing=(True, False), instead="functions are offered wherever a request has some"
    ),
    "enable_chunked_prefill": Word(
        "bool", nothing=(True,), instead="long prompts always come in chunks"
    ),
    "pipeline_parallel_size": Word("int", nothing=(1,), instead=_ONE_NODE),
    "data_parallel_size": Word(
        "int", nothing=(1,), instead="change the file it writes: Target.num_replicas=N"
    ),
    "enable_expert_parallel": Word("bool", nothing=(False,), instead=_ONE_NODE),
    "distributed_executor_backend": Word(
        nothing=("ray",), instead="Ray starts the ranks: leave it out"
    ),
    "disable_custom_all_reduce": Word("bool", nothing=(True,), instead="there is none"),
    "kv_cache_dtype": Word(nothing=("auto",), instead="keys and values have the model's dtype"),
    "num_gpu_blocks_override": Word("int", instead=f"the cache {_CUT}"),
    "swap_space": Word("float", nothing=(0, 0.0), instead="nothing is swapped to host memory"),
    "cpu_offload_gb": Word("float", nothing=(0, 0.0), instead="use device cpu, or quantization"),
    "max_seq_len_to_capture": Word("int", instead="graphs are bounded by graph_memory_mib"),
    "compilation_config": Word(
        "json", nothing=({},), instead="kernels are compiled as the device wants; see graphs"
    ),
    "max_logprobs": Word("int", instead="use router.max_logprob_entries"),
    "logprobs_mode": Word(
        nothing=("raw_logprobs",), instead="logprobs are the target's own, before any other field"
    ),
    "disable_log_stats": Word("bool", nothing=(True,), instead="use logging_config.log_level"),
    "structured_outputs_config": Word(
        "json",
        nothing=({}, {"backend": "auto"}, {"backend": "guidance"}),
        instead="llguidance compiles all grammars",
    ),
    "guided_decoding_backend": Word(
        nothing=("auto", "guidance"), instead="llguidance compiles all grammars"
    ),
    "scheduling_policy": Word(nothing=("fcfs",), instead="requests come in order"),
    "async_scheduling": Word("bool", nothing=(False,), instead="passes follow one another"),
    "generation_config": Word(
        nothing=("auto",), instead="say what it should be in SamplingParams or the request"
    ),
    "enable_lora": Word(
        "bool",
        nothing=(False,),
        instead="name the adapters as target.lora_modules with target.engine vllm",
    ),
    "limit_mm_per_prompt": Word("json", nothing=({},), instead=_ONLY_TEXT),
    "mm_processor_kwargs": Word("json", nothing=({},), instead=_ONLY_TEXT),
    "allowed_local_media_path": Word(nothing=("",), instead=_ONLY_TEXT),
    "kv_transfer_config": Word("json", instead="prompts are computed where texts go on"),
    "worker_cls": Word(nothing=("auto",), instead="there are no other workers"),
}

# Words of `vllm serve` alone, that are Serve's or a file's here.
SERVER_WORDS: dict[str, Word] = {
    "host": Word(place="http_options.host"),
    "port": Word("int", "http_options.port"),
    "root_path": Word(instead="set route_prefix of the application in the file it writes"),
    "api_key": Word(
        instead="make a key with `python -m deployments.api_keys NAME`, and name its file as "
        "router.api_keys_file"
    ),
    "ssl_keyfile": Word(instead="put a proxy with a certificate in front"),
    "ssl_certfile": Word(instead="put a proxy with a certificate in front"),
    "disable_log_requests": Word("bool", nothing=(True,), instead="prompts are never logged"),
    "enable_log_requests": Word("bool", nothing=(False,), instead="prompts are never logged"),
    "uvicorn_log_level": Word(instead="use logging_config.log_level"),
    "otlp_traces_endpoint": Word(instead="use router.otlp_traces_endpoint, an OTLP/HTTP address"),
}


def asks_for_nothing(word: Word, value: Any) -> bool:
    """Return whether a value changes nothing."""
    return value is None or any(
        value == one and isinstance(value, bool) == isinstance(one, bool) for one in word.nothing
    )


def refusal(key: str, value: Any, instead: str) -> ValueError:
    """Return the error for a word that has no meaning here."""
    return ValueError(f"{key}={value!r}: {instead}")
