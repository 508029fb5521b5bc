"""Turns text into token ids: chat template, encoding, the ids that end a text. Back: `detokenizer`.

Light on purpose, it runs in every router: `tokenizers` and jinja2 only. AutoTokenizer would import
torch: 260 MB and 3.5 s instead of 25 MB and 0.1 s. The template (`chat_template.py`) is rendered
like in transformers, so ids equal those of `apply_chat_template`.

Special tokens typed by a client stay text. A mark is put after the first character of each before
rendering. The rendered text is encoded in pieces, cut at the marks. (The idea of transformers'
`sanitize_control_tokens`, with one mark, new for each conversation: 128 random bits that nobody can
have written. A SentencePiece tokenizer may see a space at the cut. Text without special tokens is
encoded in one piece.)

Texts may be long. Encoding releases Python's lock (`encode_batch_fast` does, `encode` does not).
Work that keeps the lock is done a window at a time, so that other threads get on.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from models.files import naming, read_json_if_there
from models.text.chat_template import NO_SETTINGS, ChatTemplates, with_files
from models.text.detokenizer import ByteTable, IncrementalDetokenizer
from models.text.token_bounds import longest_token_bytes
from models.text.tokenizer_files import (
    SPECIAL_NAMES,
    model_eos_ids,
    read_backend,
    template_files,
    tokenizer_settings,
)

_MARKS = 0xF0000  # private-use plane 15: templates leave these characters as they are
_MARK_CHARS = 8  # characters of 16 random bits each
_BATCH = 1024  # pieces encoded together; taking them over keeps Python's lock
_WINDOW_CHARS = 65_536  # looked at in a few milliseconds at the worst


class Tokenizer:
    """The tokenizer of one checkpoint. Safe to use from several threads.

    Attributes:
        vocab_size: one more than the highest token id.
        eos_ids: every id that ends a text, from generation_config.json (else config.json) and
            the tokenizer's own end token.
        generation_config: what the checkpoint's generation_config.json holds.
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
        self._special_names = {
            token.content: token_id
            for token_id, token in added.items()
            if token_id in special or re.fullmatch("<.*>", token.content, re.DOTALL)
        }
        self._literal = _literal_pattern(special.values())
        self._longest_literal = max(map(len, special.values()), default=0)
        self._add_bos: bool | None = settings.get("add_bos_token")
        self._templates = ChatTemplates(settings.get("chat_template"), self._special_texts)
        self._bytes_of = ByteTable(backend, self._special_ids)
        vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        self._longest_token_bytes = longest_token_bytes(backend, vocab)
        self.eos_ids: tuple[int, ...] = self._eos_ids(settings.get("model_eos_ids"))
        self.generation_config: Mapping[str, Any] = settings.get("generation_config") or {}

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Load from a checkpoint folder.

        Raises:
            ValueError: no folder or tokenizer.json, a decoder this module does not know, or a file
                that cannot be used, a chat template that renders no chat among them; names the
                file.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise ValueError(f"no such tokenizer folder: {str(path)!r}")
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ValueError(f"{folder} has no tokenizer.json")
        settings = tokenizer_settings(folder)
        files = template_files(folder)
        template_file = files[-1] if files else folder / "tokenizer_config.json"
        settings["model_eos_ids"] = model_eos_ids(folder)
        settings["generation_config"] = read_json_if_there(folder / "generation_config.json")
        backend = read_backend(file)
        with naming(template_file):
            settings["chat_template"] = with_files(settings.get("chat_template"), files)
            ChatTemplates(settings.get("chat_template"), _special_texts(settings)).check()
        with naming(file):
            return cls(backend, settings)

    @property
    def has_chat_template(self) -> bool:
        """True if `encode_chat` can work."""
        return bool(self._templates.source)

    @property
    def templates(self) -> ChatTemplates:
        """The checkpoint's chat templates."""
        return self._templates

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Tokens that grammars do not take for text, by their names.

        Those are the special ones and, for llguidance, all added ones in angle brackets.
        """
        return self._special_names

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
        """Return the least number of tokens of a text with so many bytes of UTF-8."""
        longest = self._longest_token_bytes
        return 0 if longest is None else -(-num_bytes // longest)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token, maybe a part of a character; its name if it is special.

        Ids beyond the vocabulary have none.
        """
        if token_id in self._special_ids:
            return (self._backend.id_to_token(token_id) or "").encode()
        return self._bytes_of[token_id]

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is outside the text, like those that end it."""
        return token_id in self._special_ids

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        settings: Mapping[str, Any] = NO_SETTINGS,
    ) -> list[int]:
        """Ids of a conversation up to where the assistant's next turn starts.

        Args:
            messages: with `role` and `content`, and what else the template knows. Special tokens
                in any text stay text.
            tools: that the template lists, as OpenAI has them.
            settings: further variables of the template, see `ChatTemplates.render`.

        Raises:
            InvalidRequest: the checkpoint has no chat template, or its template refuses them.
        """
        return self.encode_pieces(self.chat_pieces(messages, tools, settings))

    def chat_pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        settings: Mapping[str, Any] = NO_SETTINGS,
    ) -> list[str]:
        """Return the text that `encode_chat` encodes, in pieces; special tokens count within each.

        Raises:
            InvalidRequest: as `encode_chat`.
        """
        mark = "".join(chr(_MARKS + secrets.randbelow(0xFFFE)) for _ in range(_MARK_CHARS))
        marked = [self._marked_within(message, mark) for message in messages]
        listed = [self._marked_within(tool, mark) for tool in tools]
        others = {name: self._marked_within(value, mark) for name, value in settings.items()}
        return self._templates.render(marked, listed, others).split(mark)

    def encode_pieces(self, pieces: Sequence[str]) -> list[int]:
        """Ids of pieces of text, each encoded on its own."""
        return self._encoded(pieces)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the whole text of some ids, without special tokens."""
        detokenizer = self.detokenizer()
        return detokenizer.push(token_ids) + detokenizer.flush()

    def detokenizer(
        self, after: Sequence[int] = (), shown: Collection[int] = ()
    ) -> IncrementalDetokenizer:
        """Return a detokeniser for text that starts anew or continues the text of `after`.

        Args:
            after: the ids before.
            shown: special tokens whose names are part of the text.
        """
        continues = any(token_id not in self._special_ids for token_id in after)
        bytes_of = self._bytes_of
        if shown:
            bytes_of = ByteTable(self._backend, self._special_ids - set(shown))
        return IncrementalDetokenizer(bytes_of, continues=continues)

    def _encoded(self, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        for start in range(0, len(texts), _BATCH):
            batch = texts[start : start + _BATCH]
            for encoded in self._backend.encode_batch_fast(
                batch, add_special_tokens=add_special_tokens
            ):
                ids.extend(encoded.ids)
        return ids

    def _marked_within(self, value: Any, mark: str) -> Any:
        """Mark all texts of a value.

        The keys of objects are among them.
        """
        if isinstance(value, str):
            return self._marked(value, mark)
        if isinstance(value, Mapping):
            return {
                self._marked(key, mark): self._marked_within(item, mark)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._marked_within(item, mark) for item in value]
        return value

    def _marked(self, text: str, mark: str) -> str:
        """Mark the text after the first character of each special token.

        The tokens may overlap.
        """
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

    def _eos_ids(self, ids: Sequence[int] | None) -> tuple[int, ...]:
        own = self._backend.token_to_id(self._special_texts.get("eos_token", ""))
        return tuple(dict.fromkeys([*(ids or ()), *([] if own is None else [own])]))


def _literal_pattern(literals: Iterable[str]) -> re.Pattern[str] | None:
    """Match the first character of any literal, if the rest of one follows."""
    rests: defaultdict[str, list[str]] = defaultdict(list)
    for literal in literals:
        if len(literal) > 1:
            rests[literal[0]].append(re.escape(literal[1:]))
    starts = [f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items()]
    return re.compile("|".join(starts)) if starts else None


def _special_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its kin as the template sees them; a value may be a text or an object."""
    texts = {}
    for name in SPECIAL_NAMES:
        value = settings.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            texts[name] = value
    return texts
