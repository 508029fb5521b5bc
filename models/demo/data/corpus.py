"""Reads the stories of a corpus folder. The texts stay outside the repository; only weights are
made from them.
"""

import json
import zlib
from pathlib import Path

from models.demo.data.stories import Story
from models.demo.data.words import HELD_OUT_MODULUS

SIMPLE_STORIES, PICTURE_BOOKS = "tinystories_subset.txt", "asp_pb_stories_ccby.jsonl"


def read_simple_stories(corpus: Path, held_out: bool) -> list[Story]:
    """Return one side of the split of `tinystories_subset.txt`; empty where it is missing."""
    path = corpus / SIMPLE_STORIES
    if not path.exists():
        return []
    pieces = (_tidy(piece) for piece in path.read_text(encoding="utf-8").split("<|endoftext|>"))
    return [Story(text) for text in pieces if len(text) > 100 and _is_held_out(text) == held_out]


def read_picture_books(corpus: Path, held_out: bool) -> list[Story]:
    """Return one side of the split of `asp_pb_stories_ccby.jsonl`; empty where it is missing."""
    path = corpus / PICTURE_BOOKS
    if not path.exists():
        return []
    stories = []
    for line in path.read_text(encoding="utf-8").split("\n"):  # a text may have U+2028
        if not line.strip():
            continue
        entry = json.loads(line)
        text = _tidy(entry["text"])
        if len(text) > 100 and _is_held_out(text) == held_out:
            stories.append(Story(text, entry["title"]))
    return stories


def _is_held_out(text: str) -> bool:
    return zlib.crc32(text[:200].encode()) % HELD_OUT_MODULUS == 0


def _tidy(text: str) -> str:
    for fancy, simple in (
        ("\u2019", "'"),
        ("\u2018", "'"),
        ("\u201c", '"'),
        ("\u201d", '"'),
        ("\u2014", " - "),
    ):
        text = text.replace(fancy, simple)
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())
