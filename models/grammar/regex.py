r"""A regular expression as a grammar: the whole text matches, as in Python's `re.fullmatch`.

The dialect is Python's, read by `patterns`. No part of the text itself reaches llguidance's own
parser, because its dialect differs. Every character and every set is spelt as code points. Sets are
terminals of their own, so that `\w` (734 ranges) is spelt once however often it occurs.

Anchors at the ends of the text change nothing and are left out; elsewhere they are refused.
Look-ahead becomes an intersection (`patterns/lookahead.py`).
Sources: llguidance docs/syntax.md (Lark form).
"""

from __future__ import annotations

from collections.abc import Iterable

from models.grammar.charsets import ALL, Ranges
from models.grammar.choice import literal
from models.grammar.limits import MAX_EXPANDED, refuse
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
    children,
    choice_of,
)

_PART_LEVELS = 8  # levels of parentheses in one terminal: llguidance reads about 30


def regex_grammar(text: str) -> str:
    """Return the Lark text of a pattern.

    Raises:
        UnsupportedGrammar: see `parse_regex`; or an anchor inside, no text or none but the empty
            one matches, or the pattern is too large with its repeats written out.
    """
    if not text:
        refuse("the pattern is empty")
    parsed = parse_regex(text, allows_looks=True)
    trees = [parsed]
    if has_looks(parsed):
        trees = resolved(parsed, ALL, is_whole=True, is_shared=False)
    trees = [simplified(tree, at_start=True, at_end=True) for tree in trees]
    if NOTHING in trees:
        refuse("no text matches this pattern")
    if EMPTY in trees:
        refuse("only the empty text matches this pattern")
    check_expanded(trees)
    writer = LarkWriter()
    bodies = [writer.write(tree) for tree in trees]
    body = bodies[0] if len(bodies) == 1 else " & ".join(f"({one})" for one in bodies)
    return "\n".join(["start: TEXT", f"TEXT: {body}", *writer.terminals(), ""])


def check_expanded(trees: Iterable[Node]) -> None:
    """Refuse the trees of a pattern if they are too large with their repeats written out."""
    size = sum(map(expanded_size, trees))
    if size > MAX_EXPANDED:
        refuse(
            f"the pattern has {size} characters with its repeats written out, "
            f"the limit is {MAX_EXPANDED}"
        )


def simplified(node: Node, *, at_start: bool, at_end: bool) -> Node:
    """Remove anchors, and parts that match nothing or only the empty text."""
    match node:
        case Chars():
            return node
        case Anchor():
            if not (at_start if node.is_start else at_end):
                place = "start" if node.is_start else "end"
                refuse(f"an anchor ({node.sign}) is only supported at the {place} of the text")
            return EMPTY
        case Sequence():
            return _simplified_sequence(node, at_start=at_start, at_end=at_end)
        case Choice():
            options = (
                simplified(option, at_start=at_start, at_end=at_end) for option in node.options
            )
            return choice_of(option for option in options if option != NOTHING)
        case Repeat():
            part = simplified(node.part, at_start=False, at_end=False)
            if node.high == 0 or part == EMPTY or (part == NOTHING and node.low == 0):
                return EMPTY
            return part if part == NOTHING else Repeat(part, node.low, node.high)
        case _:
            raise AssertionError("look-ahead is resolved before")


def _simplified_sequence(node: Sequence, *, at_start: bool, at_end: bool) -> Node:
    solid = [i for i, part in enumerate(node.parts) if not _is_blank(part)]
    first, last = (solid[0], solid[-1]) if solid else (len(node.parts), -1)
    parts: list[Node] = []
    for i, part in enumerate(node.parts):
        simple = simplified(part, at_start=at_start and i <= first, at_end=at_end and i >= last)
        if simple == NOTHING:
            return NOTHING
        parts += simple.parts if isinstance(simple, Sequence) else [simple]
    return parts[0] if len(parts) == 1 else Sequence(tuple(parts))


def _is_blank(node: Node) -> bool:
    """Return whether a part surely takes no character; its neighbours are then at the ends."""
    if isinstance(node, Sequence | Choice):
        return all(map(_is_blank, children(node)))
    return isinstance(node, Anchor)


def expanded_size(node: Node) -> int:
    """Count the characters of a tree with its repeats written out."""
    match node:
        case Sequence() | Choice():
            return sum(map(expanded_size, children(node)))
        case Repeat():
            count = node.low + 1 if node.high is None else node.high
            return expanded_size(node.part) * count
        case _:
            return 1


class LarkWriter:
    """Writes trees for Lark, and the terminals (by another `part`: rules) that they use."""

    def __init__(self, part: str = "PART") -> None:
        self._part = part
        self._sets: dict[Ranges, str] = {}
        self._parts: list[str] = []
        self._level = 0

    def write(self, node: Node) -> str:
        """Return the expression of a node, without anchors and never nothing."""
        match node:
            case Chars():
                return self._chars(node.ranges)
            case Sequence():
                return " ".join(map(self._operand, node.parts)) or '""'
            case Choice():
                return " | ".join(map(self.write, node.options))
            case Repeat():
                return self._operand(node.part) + quantifier(node.low, node.high)
            case _:
                raise AssertionError("anchors and look-ahead are resolved before")

    def terminals(self) -> list[str]:
        """Return the definitions of the terminals."""
        sets = (f"{name}: /{spelt(ranges)}/" for ranges, name in self._sets.items())
        return [*sets, *(f"{self._part}{i}: {text}" for i, text in enumerate(self._parts))]

    def _operand(self, node: Node) -> str:
        if isinstance(node, Chars):
            return self._chars(node.ranges)
        self._level += 1
        text = self.write(node)
        self._level -= 1
        if (self._level + 1) % _PART_LEVELS:
            return f"({text})"
        self._parts.append(text)
        return f"{self._part}{len(self._parts) - 1}"

    def _chars(self, ranges: Ranges) -> str:
        low, high = ranges[0]
        if len(ranges) == 1 and low == high:
            return f"/{literal(chr(low))}/"
        return self._sets.setdefault(ranges, f"SET{len(self._sets)}")


def quantifier(low: int, high: int | None) -> str:
    """Write a repeat for Lark and Rust."""
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
    return short or f"{{{low},{'' if high is None else high}}}"


def spelt(ranges: Ranges) -> str:
    """Write a set for Rust's regular expressions, in code points."""
    return "[" + "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in ranges) + "]"


def spelt_node(node: Node) -> str:
    """Write a tree without anchors for Rust's regular expressions, in code points."""
    match node:
        case Chars():
            return spelt(node.ranges)
        case Sequence():
            return "".join(map(_spelt_operand, node.parts))
        case Choice():
            return "|".join(map(spelt_node, node.options))
        case Repeat():
            return _spelt_operand(node.part) + quantifier(node.low, node.high)
        case _:
            raise AssertionError("anchors and look-ahead are resolved before")


def _spelt_operand(node: Node) -> str:
    return spelt_node(node) if isinstance(node, Chars) else f"(?:{spelt_node(node)})"
