"""Writes a grammar with rules for the compiler, in its Lark notation.

A regular part becomes a terminal of its own if the lexer may read it so (`lexemes`). Elsewhere it
becomes rules over single characters, which are slower and read exactly the same texts.
"""

from __future__ import annotations

from models.grammar.choice import literal
from models.grammar.limits import refuse
from models.grammar.patterns.tree import NOTHING, Node
from models.grammar.regex import LarkWriter, quantifier, simplified
from models.grammar.rules.lexemes import is_exact, joined
from models.grammar.rules.tree import (
    Expr,
    Group,
    Json,
    Ref,
    Regular,
    Repeated,
    Rules,
    Special,
    Until,
    Without,
    children,
    walk,
)

_ANY = "/(?s:.*)/"


def written(rules: Rules, start: str) -> str:
    """Return the Lark text of a grammar.

    Args:
        rules: all that are referred to; what `start` does not lead to is left out.
        start: the rule that the whole text obeys.

    Raises:
        UnsupportedGrammar: a rule comes to no end, or is too large with its repeats written out.
    """
    reached = _reached(rules, start)
    _check_ends(reached)
    for merges in (True, False):
        kept = _reached(joined(reached, merges=merges), start)
        if is_exact(kept):
            return _Writer(has_lexemes=True).write(kept, start)
    return _Writer(has_lexemes=False).write(kept, start)


def _reached(rules: Rules, start: str) -> Rules:
    found: Rules = {}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = rules[name]
            waiting += [part.name for part in walk(rules[name]) if isinstance(part, Ref)]
    return {name: rules[name] for name in rules if name in found}


def _check_ends(rules: Rules) -> None:
    """Refuse rules that no text of finite length obeys."""
    ending: set[str] = set()
    num_known = -1
    while num_known < len(ending):
        num_known = len(ending)
        for name in reversed(rules):  # mostly a rule comes before those that it uses
            if name not in ending and _ends(rules[name], ending):
                ending.add(name)
    for name in rules:
        if name not in ending:
            refuse(f"the rule {name[:80]} leads to itself in every way and never ends")


def _ends(expression: Expr, ending: set[str]) -> bool:
    match expression:
        case Ref():
            return expression.name in ending
        case Group() if expression.kind == "choice":
            return any(_ends(part, ending) for part in expression.parts)
        case Repeated() if expression.low == 0:
            return True
        case _:
            return all(_ends(part, ending) for part in children(expression))


class _Writer:
    def __init__(self, *, has_lexemes: bool) -> None:
        self._has_lexemes = has_lexemes
        self._regular = LarkWriter("PART" if has_lexemes else "part_")
        self._terminals: dict[Node, str] = {}
        self._opaque: dict[Until | Without, str] = {}
        self._names: dict[str, str] = {}
        self._lines: list[str] = []

    def write(self, rules: Rules, start: str) -> str:
        others = (name for name in rules if name != start)
        self._names = {start: "start"} | {name: f"rule_{i}" for i, name in enumerate(others)}
        lines = [f"{self._names[name]}: {self._body(one)}" for name, one in rules.items()]
        return "\n".join([*lines, *self._lines, *self._regular.terminals(), ""])

    def _body(self, expression: Expr) -> str:
        match expression:
            case Group() if expression.kind == "choice":
                return " | ".join(self._operand(part) for part in expression.parts)
            case Group():
                return " ".join(self._operand(part) for part in expression.parts)
            case Repeated():
                times = quantifier(expression.low, expression.high)
                return f"({self._body(expression.part)}){times}"
            case Regular():
                return self._text(expression.node)
            case Ref():
                return self._names[expression.name]
            case Json():
                return f"%json {expression.text}"
            case Special():
                return expression.name
            case Until() | Without():
                return self._free(expression)

    def _operand(self, expression: Expr) -> str:
        body = self._body(expression)
        return f"({body})" if isinstance(expression, Group | Regular) else body

    def _text(self, node: Node) -> str:
        if node not in self._terminals:
            tree = simplified(node, at_start=False, at_end=False)
            if tree == NOTHING:
                refuse("a part of it matches no text")
            body = self._regular.write(tree)
            name = body
            if self._has_lexemes and body != '""':
                name = f"TEXT{len(self._terminals)}"
                self._lines.append(f"{name}: {body}")
            self._terminals[node] = name
        return self._terminals[node]

    def _free(self, part: Until | Without) -> str:
        if part not in self._opaque:
            number = len(self._opaque)
            name = f"free_{number}" if isinstance(part, Until) else f"FREE{number}"
            self._opaque[part] = name
            text = _ANY
            if part.excludes:
                text += f" & ~({_ANY} ({_any_of(part.excludes)}) {_ANY})"
            if isinstance(part, Without):
                self._lines.append(f"{name}: {text}")
            else:
                self._lines.append(f"{name}[lazy]: UNTIL{number}")
                self._lines.append(f"UNTIL{number}: ({text}) ({_any_of(part.ends)})")
        return self._opaque[part]


def _any_of(texts: tuple[str, ...]) -> str:
    return " | ".join(f"/{literal(text)}/" for text in texts)
