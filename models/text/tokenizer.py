"""Turns text into token ids: chat template, encoding, the ids that end a text. Back: `detokenizer`.

Light on purpose, it runs in every router: `tokenizers` and jinja2 only. (AutoTokenizer imports
torch: 260 MB and 3.5 s instead of 25 MB and 0.1 s.) The template is rendered in the sandbox and
with the settings that transformers uses, so ids equal those of `apply_chat_template`.

Special tokens typed by a client stay text: a mark is put after the first character of each before
rendering, and the rendered text is encoded in pieces, cut at the marks. (The idea of transformers'
`sanitize_control_tokens`, with one mark, new for each conversation: 128 random bits that nobody
can have written. A SentencePiece tokenizer may see a space at the cut. Text without special
tokens is encoded in one piece.)

Texts may be long: encoding lets go of Python's lock (`encode_batch_fast` does, `encode` does not),
and work that keeps the lock is done a window at a time, so that other threads get on.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import tokenizers
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.protocol.errors import InvalidRequest
from models.text.detokenizer import ByteTable, IncrementalDetokenizer
from models.text.token_bounds import longest_token_bytes

_MARKS = 0xF0000  # private-use plane 15: templates leave these characters as they are
_MARK_CHARS = 8  # of 16 random bits each
_BATCH = 1024  # pieces encoded together; taking them over keeps Python's lock
_WINDOW_CHARS = 65_536  # looked at in a few milliseconds at the worst
_FILES = ("tokenizer*", "special_tokens_map.json", "chat_template*", "*config.json")
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_SPECIAL_NAMES = tuple(f"{role}_token" for role in _ROLES)


class Tokenizer:
    """The tokenizer of one checkpoint. Safe to use from several threads.

    Attributes:
        vocab_size: one more than the highest token id.
        eos_ids: every id that ends a text, from generation_config.json (else config.json) and
            the tokenizer's own end token.
    """

    def __init__(self, backend: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> None:
        """Wrap a loaded tokenizer; `settings` are the keys of tokenizer_config.json."""
        backend.no_padding()
        backend.no_truncation()
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self._special_texts = _special_texts(settings)
        special = {
            token_id: token.content
            for token_id, token in added.items()
            if token.special or token.content in self._special_texts.values()
        }
        self._special_ids = frozenset(special)
        self._literal = _literal_pattern(special.values())
        self._longest_literal = max(map(len, special.values()), default=0)
        self._add_bos: bool | None = settings.get("add_bos_token")
        self._template_source = _default_template(settings.get("chat_template"))
        self._template = None if not self._template_source else _compile(self._template_source)
        self._bytes_of = ByteTable(backend, self._special_ids)
        vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        self._longest_token_bytes = longest_token_bytes(backend, vocab)
        self.eos_ids: tuple[int, ...] = self._eos_ids(settings.get("model_eos_ids"))

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Load from a checkpoint folder, or by hub id ("org/name") where there is no such folder.

        Raises:
            ValueError: no tokenizer.json, or a decoder this module does not know.
        """
        folder = Path(path)
        if not folder.is_dir():
            folder = _fetch(str(path))
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ValueError(f"{folder} has no tokenizer.json")
        settings = _read_json(folder / "special_tokens_map.json")
        settings.update(_read_json(folder / "tokenizer_config.json"))
        template_file = folder / "chat_template.jinja"
        if template_file.is_file():
            settings["chat_template"] = template_file.read_text(encoding="utf-8")
        settings["model_eos_ids"] = _read_json(folder / "generation_config.json").get(
            "eos_token_id", _read_json(folder / "config.json").get("eos_token_id")
        )
        return cls(tokenizers.Tokenizer.from_file(str(file)), settings)

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can work."""
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt: special tokens in it count, the begin token is put in front.

        This is the route for clients that write their own template.
        """
        if self._add_bos is None:
            return self._encoded([text], add_special_tokens=True)
        ids = self._encoded([text])
        begin = self._backend.token_to_id(self._special_texts.get("bos_token", ""))
        return [begin, *ids] if self._add_bos and begin is not None else ids

    def encode_piece(self, text: str) -> list[int]:
        """Ids of a part of a text: special tokens in it count, none is put in front."""
        return self._encoded([text])

    def encode_answer(self, text: str, after: Sequence[int]) -> list[int] | None:
        """Ids of a text that follows the prompt `after`; special tokens in it stay text.

        They are those the tokenizer itself gives the text, of all sequences that decode to it. None
        where there are none: one that puts a space in front of a text cannot begin without one.
        """
        cuts = [0, *self._cuts(text), len(text)]
        pieces = [text[a:b] for a, b in itertools.pairwise(cuts)]
        for first in dict.fromkeys((pieces[0], pieces[0].removeprefix(" "))):
            ids = self._encoded([first, *pieces[1:]]) if first else []
            detokenizer = self.detokenizer(after)
            if ids and detokenizer.push(ids) + detokenizer.flush() == text:
                return ids
        return None

    def least_tokens(self, num_bytes: int) -> int:
        """How many tokens a text of so many bytes of UTF-8 has at the least."""
        longest = self._longest_token_bytes
        return 0 if longest is None else -(-num_bytes // longest)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token, which may be a part of a character; of a special one its name.

        Ids beyond the vocabulary have none.
        """
        if token_id in self._special_ids:
            return (self._backend.id_to_token(token_id) or "").encode()
        return self._bytes_of[token_id]

    def is_special(self, token_id: int) -> bool:
        """Whether a token is outside the text, like those that end it."""
        return token_id in self._special_ids

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation up to where the assistant's next turn starts.

        Args:
            messages: with `role` and `content`. Special tokens in any content stay text.

        Raises:
            InvalidRequest: the checkpoint has no chat template, or its template refuses them.
        """
        return self.encode_pieces(self.chat_pieces(messages))

    def chat_pieces(self, messages: Sequence[Mapping[str, str]]) -> list[str]:
        """The text that `encode_chat` encodes, in pieces; special tokens count within each.

        Raises:
            InvalidRequest: as `encode_chat`.
        """
        mark = "".join(chr(_MARKS + secrets.randbelow(0xFFFE)) for _ in range(_MARK_CHARS))
        marked = [
            {key: self._marked(value, mark) for key, value in message.items()}
            for message in messages
        ]
        return self._render(marked).split(mark)

    def encode_pieces(self, pieces: Sequence[str]) -> list[int]:
        """Ids of pieces of text, each encoded on its own."""
        return self._encoded(pieces)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The whole text of some ids, without special tokens."""
        detokenizer = self.detokenizer()
        return detokenizer.push(token_ids) + detokenizer.flush()

    def detokenizer(self, after: Sequence[int] = ()) -> IncrementalDetokenizer:
        """A detokeniser for text that starts anew or continues the text of `after`."""
        continues = any(token_id not in self._special_ids for token_id in after)
        return IncrementalDetokenizer(self._bytes_of, continues=continues)

    def _render(self, messages: list[dict[str, str]]) -> str:
        if self._template is None:
            raise InvalidRequest(
                "this model has no chat template; use /v1/completions", param="messages"
            )
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_texts,
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise InvalidRequest(
                f"messages: the model's chat template refuses them: {error}", param="messages"
            ) from error

    def _encoded(self, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        for start in range(0, len(texts), _BATCH):
            batch = texts[start : start + _BATCH]
            for encoded in self._backend.encode_batch_fast(
                batch, add_special_tokens=add_special_tokens
            ):
                ids.extend(encoded.ids)
        return ids

    def _marked(self, text: str, mark: str) -> str:
        """The text, marked after the first character of each special token, overlapping or not."""
        cuts = list(self._cuts(text))
        if not cuts:
            return text
        starts = [0, *cuts]
        return mark.join(text[a:b] for a, b in zip(starts, [*cuts, len(text)], strict=True))

    def _cuts(self, text: str) -> Iterator[int]:
        if self._literal is None:
            return
        for start in range(0, len(text), _WINDOW_CHARS):
            end = start + _WINDOW_CHARS
            for match in self._literal.finditer(text, start, end + self._longest_literal):
                if match.start() < end:
                    yield match.end()

    def _eos_ids(self, model_eos_ids: int | list[int] | None) -> tuple[int, ...]:
        ids = [model_eos_ids] if isinstance(model_eos_ids, int) else list(model_eos_ids or ())
        own = self._backend.token_to_id(self._special_texts.get("eos_token", ""))
        return tuple(dict.fromkeys([*ids, *([] if own is None else [own])]))


def _literal_pattern(literals: Iterable[str]) -> re.Pattern[str] | None:
    """The first character of any literal, where the rest of one follows."""
    rests: defaultdict[str, list[str]] = defaultdict(list)
    for literal in literals:
        if len(literal) > 1:
            rests[literal[0]].append(re.escape(literal[1:]))
    starts = [f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items()]
    return re.compile("|".join(starts)) if starts else None


def _special_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its kin as the template sees them; a value may be a text or an object."""
    texts = {}
    for name in _SPECIAL_NAMES:
        value = settings.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            texts[name] = value
    return texts


def _default_template(template: Any) -> str:
    if isinstance(template, list):
        template = next((item["template"] for item in template if item["name"] == "default"), "")
    return template or ""


def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks replies for training; here its block is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads a plain set

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As in transformers: jinja2's own filter would escape HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def _fetch(hub_id: str) -> Path:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", hub_id):
        raise ValueError(f"no such tokenizer folder: {hub_id!r}")
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(hub_id, allow_patterns=list(_FILES)))
