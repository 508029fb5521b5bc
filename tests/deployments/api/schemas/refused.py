"""Fields of a chat that are refused: the field, the `param`, and words of the message."""

from __future__ import annotations

from typing import Any

from tests.fakes.http import tiny_tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]
VOCAB_SIZE = tiny_tokenizer().vocab_size
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
Refused = list[tuple[dict[str, Any], str, str]]

# The OpenAPI page says so too, of both routes.
BY_SHAPE: Refused = [
    ({"temperature": 2.5}, "temperature", "less than or equal to 2 (got 2.5)"),
    ({"temperature": -1}, "temperature", "greater than or equal to 0 (got -1)"),
    ({"temperature": "1"}, "temperature", 'got "1"'),
    ({"top_p": 0}, "top_p", "greater than 0 (got 0)"),
    ({"top_p": 1.5}, "top_p", "less than or equal to 1 (got 1.5)"),
    ({"top_k": -2}, "top_k", "greater than or equal to -1 (got -2)"),
    ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0 (got -1)"),
    ({"max_tokens": True}, "max_tokens", "got true"),
    ({"seed": 2**64}, "seed", str(2**64)),
    ({"seed": 1.5}, "seed", "integer"),
    ({"stop": ["a", ""]}, "stop", "must not be empty"),
    ({"stop": 3}, "stop", "string or a list of strings"),
    ({"stream": "yes"}, "stream", 'got "yes"'),
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": "hi"}, "messages", "list"),
    ({"model": None}, "model", "is required"),
    ({"messages": [{"role": "human", "content": "x"}]}, "messages[0].role", '"human"'),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "is required"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "is required"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "must be"),
    ({"messages": [*MESSAGES, {"role": "user", "content": 3}]}, "messages[1].content", "must"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content",
        "part 0: type 'image_url' is not supported",
    ),
    ({"speculation": {"k": -1}}, "speculation.k", "greater than or equal to 0 (got -1)"),
    ({"speculation": {"depth": 1}}, "speculation.depth", "unknown field"),
    ({"speculation": 3}, "speculation", "got 3"),
    ({"response_format": {"type": "xml"}}, "response_format.type", '"xml"'),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
        "is required",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 1}}},
        "response_format.json_schema.schema",
        "got 1",
    ),
    ({"structured_outputs": {"json": True}}, "structured_outputs.json", "got true"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "at least 1 character"),
    ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex", "got 3"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1 item"),
    ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice[1]", "got 1"),
    ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar", "at least 1"),
    ({"structured_outputs": {"grammar": 3}}, "structured_outputs.grammar", "got 3"),
    (
        {"structured_outputs": {"structural_tag": 3}},
        "structured_outputs.structural_tag",
        "got 3",
    ),
    ({"structured_outputs": {"rgx": "x"}}, "structured_outputs.rgx", "unknown field"),
    ({"min_p": 1.5}, "min_p", "less than or equal to 1 (got 1.5)"),
    ({"min_p": -0.1}, "min_p", "greater than or equal to 0 (got -0.1)"),
    ({"presence_penalty": 2.1}, "presence_penalty", "less than or equal to 2 (got 2.1)"),
    ({"frequency_penalty": -3}, "frequency_penalty", "greater than or equal to -2 (got -3)"),
    ({"repetition_penalty": 0}, "repetition_penalty", "greater than or equal to 0.001 (got 0)"),
    ({"repetition_penalty": 1e999}, "repetition_penalty", "less than or equal to 1000"),
    ({"speculation": {"verification": "typical"}}, "speculation.verification", '"typical"'),
    ({"speculation": {"drafter": "Medusa"}}, "speculation.drafter", '(got "Medusa")'),
    ({"n": 0}, "n", "greater than or equal to 1 (got 0)"),
    ({"best_of": 2}, "best_of", "2 is not supported"),
    ({"logit_bias": [5]}, "logit_bias", "must be an object"),
    ({"logit_bias": {"the": 1}}, "logit_bias", "keys must be token ids (got 'the')"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "keys must be token ids (got '-1')"),
    ({"logit_bias": {"5": 100.5}}, "logit_bias", "within -100..100 (got 100.5)"),
    ({"logit_bias": {"5": -101}}, "logit_bias", "within -100..100 (got -101)"),
    ({"logit_bias": {"5": 1e999}}, "logit_bias", "must be a number (got inf)"),
    ({"logit_bias": {"5": True}}, "logit_bias", "must be a number (got True)"),
    (
        {"logit_bias": {str(token): 1 for token in range(301)}},
        "logit_bias",
        "at most 300 entries are allowed (got 301)",
    ),
    ({"min_tokens": -1}, "min_tokens", "greater than or equal to 0 (got -1)"),
    ({"bad_words": "word"}, "bad_words", "must be a list of strings"),
    ({"bad_words": ["a", " "]}, "bad_words", "must not be empty"),
    ({"bad_words": ["a"] * 257}, "bad_words", "at most 256 words are allowed (got 257)"),
    ({"bad_words": ["a" * 300]}, "bad_words", "at most 256 characters each (got 300)"),
    ({"stop_token_ids": [1, "2"]}, "stop_token_ids", "must be a list of token ids"),
    ({"stop_token_ids": [1] * 129}, "stop_token_ids", "at most 128 ids are allowed (got 129)"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
    ({"prompt_logprobs": -1}, "prompt_logprobs", "greater than or equal to 0 (got -1)"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "is required"),
    ({"temprature": 1}, "temprature", "unknown field"),
    ({"max_tokens": 101}, "max_tokens", "at most 100 are allowed (got 101)"),
    ({"stop": ["a"] * 17}, "stop", "at most 16 strings are allowed (got 17)"),
    ({"stop": "a" * 257}, "stop", "at most 256 characters each are allowed (got 257)"),
    ({"speculation": {"k": 9}}, "speculation.k", "at most 8 (got 9)"),
    (
        {"speculation": {"disable_by_batch_size": 0}},
        "speculation.disable_by_batch_size",
        "greater than or equal to 1",
    ),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "token id -1 is outside"),
    ({"model": "other"}, "model", '"other" is not served here'),
    ({"top_k": 2**31}, "top_k", "less than 2147483648 (got 2147483648)"),
    ({"min_tokens": 101}, "min_tokens", "at most max_tokens, 64 (got 101)"),
    ({"n": 9}, "n", "at most 8 choices are allowed (got 9)"),
    ({"n": 1.5}, "n", "integer"),
    ({"stop": ""}, "stop", "must not be empty"),
    ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids", f"token id {VOCAB_SIZE} is outside"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "got 1"),
    ({"stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation", "got 1"),
    ({"speculation": {"drafter": "Medusa heads"}}, "speculation.drafter", '(got "Medusa heads")'),
    ({"speculation": {"details": 1}}, "speculation.details", "got 1"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "less than or equal to 20 (got 21)"),
    ({"cache_salt": ""}, "cache_salt", "at least 1"),
]
# It cannot say so, or not of both.
BY_MEANING: Refused = [
    ({"messages": None}, "messages", "is required"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
    ({"logprobs": 1}, "logprobs", "got 1"),
    ({"echo": True}, "echo", "true is not supported"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "differ"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one of json"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs", "(got none)"),
    (
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "structured_outputs",
        "(got regex and choice)",
    ),
    (
        {"structured_outputs": {"json": {}, "json_object": True}},
        "structured_outputs",
        "(got json and json_object)",
    ),
    *(
        (
            {"response_format": response_format, "structured_outputs": outputs},
            "structured_outputs",
            "send one",
        )
        for response_format in (
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        )
        for outputs in ({"json": SCHEMA}, {"regex": "a"}, {"choice": ["a"]})
    ),
    (
        {"logit_bias": {str(VOCAB_SIZE): 1}},
        "logit_bias",
        f"token id {VOCAB_SIZE} is outside the vocabulary of {VOCAB_SIZE}",
    ),
    (
        {"min_tokens": 6, "max_tokens": 5},
        "min_tokens",
        "at most max_tokens, 5 (got 6)",
    ),
    ({"top_logprobs": 2}, "top_logprobs", "only allowed with logprobs: true (got 2)"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "with stream: false"),
]
