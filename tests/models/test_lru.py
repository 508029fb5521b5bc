from models.lru import LruDict


def filled(max_len: int, keys: str) -> LruDict[str, int]:
    entries: LruDict[str, int] = LruDict(max_len)
    for number, key in enumerate(keys):
        entries[key] = number
    return entries


def test_drops_the_entry_that_was_set_first() -> None:
    assert dict(filled(3, "abcde")) == {"c": 2, "d": 3, "e": 4}


def test_setting_an_entry_again_is_use() -> None:
    assert dict(filled(3, "abcad")) == {"c": 2, "a": 3, "d": 4}


def test_use_keeps_an_entry_and_reading_does_not() -> None:
    entries = filled(3, "abc")
    assert entries.use("a") == 0
    assert "b" in entries
    assert entries.get("b") == entries["b"] == 1
    entries["d"] = 3
    assert list(entries) == ["c", "a", "d"]  # the least recently used first


def test_what_is_not_there_cannot_be_used() -> None:
    entries = filled(2, "ab")
    assert entries.use("x") is None
    assert list(entries) == ["a", "b"]
