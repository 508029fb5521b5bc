r"""Translates a JSON schema's `pattern` for the compiler, so that every validator agrees with it.

A schema's pattern may match anywhere in the text, as with Python's `re.search`. JSON schema says
that it is ECMA 262's, and most validators take their own language's. The compiler's own parser
reads Rust's, where `[^a&&b]` is everything. Here it is read by `patterns`. A set has the characters
that Python and ECMA 262 both take for its own. So `\d` is 0-9, `\D` no digit of any script, `.` no
line end of either. `$` is the very end. Parts that the two read differently are refused by name and
position. So a text that is served matches for both. The compiler gets the same in code points, from
end to end.

Characters that JSON can only write as `\u` (see `rewrite.py`) are in no set. Knows no compiler.
"""

from __future__ import annotations

from functools import lru_cache

from models.grammar.charsets import Ranges, complement, intersection
from models.grammar.limits import MAX_PATTERN_BYTES, refuse
from models.grammar.patterns.languages import joined
from models.grammar.patterns.lookahead import has_looks, resolved
from models.grammar.patterns.parser import parse_regex
from models.grammar.patterns.tree import (
    EMPTY,
    NOTHING,
    Anchor,
    Chars,
    Choice,
    Node,
    Repeat,
    Sequence,
    choice_of,
)
from models.grammar.regex import check_expanded, simplified, spelt_node
from models.grammar.schema.ecma import at_origin, python_spelling
from models.protocol.errors import UnsupportedGrammar

UNWRITABLE: Ranges = ((0, 7), (11, 11), (14, 31), (127, 127))
_MAX_BYTES_PER_CHAR = 4
_WRITABLE = complement(UNWRITABLE)
_ANYTHING = Repeat(Chars(_WRITABLE), 0, None)
# Different patterns of one schema that become automata: each takes about 0.1 s of CPU time. As
# many are kept as some schemas may have: one that is loosened is translated again and again.
_MAX_AUTOMATA = 32
_MAX_KEPT = 4 * _MAX_AUTOMATA

# The texts of a node, by whether they begin at the start of the text and stop at its end for sure.
_Edges = dict[tuple[bool, bool], Node]


def rust_patterns(text: str, automata: set[Node] | None = None) -> list[str]:
    """Return the pattern in Rust's spelling: one or several, all of which must match.

    Args:
        text: the pattern.
        automata: the patterns of the same schema that became automata; takes this one.

    Raises:
        UnsupportedGrammar: see `parse_regex`; or no text matches, or it is too large with its
            repeats written out, or without its look-ahead.
    """
    spelt, origins = text, list[int]()
    if len(text) <= MAX_PATTERN_BYTES:
        spelt, origins = python_spelling(text)  # which may be longer
    grown = MAX_PATTERN_BYTES + _MAX_BYTES_PER_CHAR * (len(spelt) - len(text))
    try:
        tree = parse_regex(spelt, max_bytes=grown, is_shared=True, allows_looks=True)
    except UnsupportedGrammar as error:
        raise at_origin(error, origins) from None
    return [_checked(part) for part in _parts(tree, set() if automata is None else automata)]


def _parts(tree: Node, automata: set[Node]) -> list[Node]:
    """Return trees without anchors and look-ahead, all of which match the whole text."""
    if not has_looks(tree):
        try:
            options: list[Node] = [
                Sequence((*(() if s else (_ANYTHING,)), node, *(() if e else (_ANYTHING,))))
                for (s, e), node in _edges(tree).items()
            ]
            return [choice_of(options)]
        except _AnchorInside:
            pass
    if tree not in automata and len(automata) >= _MAX_AUTOMATA:
        refuse(
            f"{_MAX_AUTOMATA} other patterns of the schema have look-ahead or anchors inside, "
            "which is the limit"
        )
    automata.add(tree)
    found = _without_looks(tree)
    if isinstance(found, str):
        refuse(found)
    return list(found)


@lru_cache(_MAX_KEPT)
def _without_looks(tree: Node) -> tuple[Node, ...] | str:
    """Return trees all of which match, or why there are none."""
    try:
        return tuple(resolved(tree, _WRITABLE, is_whole=False, is_shared=True))
    except UnsupportedGrammar as error:
        return error.message


def _checked(tree: Node) -> str:
    tree = simplified(tree, at_start=False, at_end=False)
    if tree == NOTHING:
        refuse("no text matches this pattern")
    check_expanded([tree])
    return f"^(?:{spelt_node(tree)})$"


def at_path(text: str, path: str, automata: set[Node]) -> list[str]:
    """Call `rust_patterns`, with refusals that name the place in the schema too."""
    try:
        return rust_patterns(text, automata)
    except UnsupportedGrammar as error:
        refuse(error.message, path=path)


class _AnchorInside(Exception):
    """An anchor is where more is needed than to look at the ends of the pattern."""


def _edges(node: Node) -> _Edges:
    match node:
        case Chars():
            return {(False, False): Chars(intersection(node.ranges, _WRITABLE))}
        case Anchor():
            return {(node.is_start, not node.is_start): EMPTY}
        case Sequence():
            edges: _Edges = {(False, False): EMPTY}
            for part in node.parts:
                edges = _followed(edges, _edges(part))
            return edges
        case Choice():
            return _merged(
                [(edge, inner) for option in node.options for edge, inner in _edges(option).items()]
            )
        case Repeat():
            edges = _edges(node.part)
            for is_start, is_end in edges:
                if is_start or is_end:
                    raise _AnchorInside
            return {(False, False): Repeat(edges[False, False], node.low, node.high)}
        case _:
            raise AssertionError("look-ahead is resolved before")


def _followed(first: _Edges, second: _Edges) -> _Edges:
    """Join patterns one after the other.

    Nothing may precede a start, and nothing may follow an end.
    """
    found: list[tuple[tuple[bool, bool], Node]] = []
    for (start1, end1), node1 in first.items():
        for (start2, end2), node2 in second.items():
            if start2 and node1 != EMPTY:
                raise _AnchorInside
            if end1 and node2 != EMPTY:
                raise _AnchorInside
            found.append(((start1 or start2, end1 or end2), joined(node1, node2)))
    return _merged(found)


def _merged(found: list[tuple[tuple[bool, bool], Node]]) -> _Edges:
    edges: dict[tuple[bool, bool], list[Node]] = {}
    for edge, node in found:
        edges.setdefault(edge, []).append(node)
    return {edge: choice_of(nodes) for edge, nodes in edges.items()}
