import json
from pathlib import Path

from models.demo.data.corpus import read_picture_books, read_simple_stories
from models.demo.data.mixture import Mixture


def test_stories_are_read_tidied_and_split(tmp_path: Path) -> None:
    texts = [
        f"Story {number}. \u201cHello,\u201d said Tom.  \n\n" + "x" * 100 for number in range(60)
    ]
    (tmp_path / "tinystories_subset.txt").write_text("<|endoftext|>\n".join(texts))
    trained = read_simple_stories(tmp_path, held_out=False)
    kept = read_simple_stories(tmp_path, held_out=True)
    assert len(trained) + len(kept) == 60
    assert len(trained) > len(kept) > 0
    assert all('"Hello," said Tom.\nx' in story.text for story in trained)


def test_titles_are_read(tmp_path: Path) -> None:
    stories = [{"title": f"T{i}", "text": f"{i}\u2028{'y' * 120}"} for i in range(40)]
    lines = [json.dumps(story, ensure_ascii=False) for story in stories]
    (tmp_path / "asp_pb_stories_ccby.jsonl").write_text("\n".join(lines) + "\n\n")
    trained = read_picture_books(tmp_path, held_out=False)
    assert {story.title for story in trained} <= {f"T{i}" for i in range(40)}
    assert Mixture.load(tmp_path).harder == trained


def test_missing_files_mean_no_stories(tmp_path: Path) -> None:
    assert read_simple_stories(tmp_path, held_out=False) == []
    assert read_picture_books(tmp_path, held_out=False) == []
