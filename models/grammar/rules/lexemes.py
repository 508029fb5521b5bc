"""Joins what is regular in a grammar with rules, and says whether a lexer may read it so.

The compiler reads lexemes longest first and never goes back. A complete lexeme that could be longer
may also be followed by something else. A grammar with such a lexeme would change its meaning. `abx`
is a word of `[a-z]+ "x"`, but the lexer would take all of it for letters. `is_exact` looks for a
text that is a whole lexeme, and with one character more the beginning of a lexeme. That character
may also follow the lexeme. Where there is one, the grammar is written character by character
(`write`).

Repeats count as endless here, which may find a text too many and never one too few. An opaque
lexeme (JSON, free text) is not compared. Standard library only.
"""

from __future__ import annotations

from models.grammar.charsets import LAST, Ranges, union
from models.grammar.limits import MAX_EXPANDED, refuse
from models.grammar.patterns.tree import Node
from models.grammar.rules.positions import Positions, TooManyEdges, may_go_on, positions_of
from models.grammar.rules.tree import (
    EMPTY,
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
    choice,
    rebuilt,
    repeated,
    sequence,
    walk,
)

_ANY: Ranges = ((0, LAST),)
_JSON_START: Ranges = union((ord(char), ord(char)) for char in '"-0123456789[{tfn')
_MAX_PAIRS = 200_000  # comparisons; beyond, a grammar counts as not exact


def joined(rules: Rules, *, merges: bool) -> Rules:
    """Put every regular rule in place of its name.

    `merges`: also join regular neighbours, which makes fewer and longer lexemes.

    Raises:
        UnsupportedGrammar: a part is too large with its repeats written out.
    """
    found: dict[str, Regular] = {}
    waiting = {name: _names(expression) - {name} for name, expression in rules.items()}
    users: dict[str, list[str]] = {}
    for name, names in waiting.items():
        for used in names:
            users.setdefault(used, []).append(name)
    ready = [name for name, names in waiting.items() if not names]
    while ready:
        name = ready.pop()
        expression = _without_loop(name, rebuilt(rules[name], found, merges=merges))
        if not isinstance(expression, Regular):
            continue
        _check_size(name, expression)
        found[name] = expression
        for user in users.get(name, ()):
            waiting[user].discard(name)
            if not waiting[user]:
                ready.append(user)
    kept = {name: rebuilt(one, found, merges=merges) for name, one in rules.items()}
    for name, expression in kept.items():
        for part in walk(expression):
            if isinstance(part, Regular):
                _check_size(name, part)
    return kept


def _names(expression: Expr) -> set[str]:
    return {part.name for part in walk(expression) if isinstance(part, Ref)}


def _check_size(name: str, part: Regular) -> None:
    if part.size > MAX_EXPANDED:
        refuse(
            f"the rule {name[:80]} has {part.size} characters with its repeats and rules written "
            f"out, the limit is {MAX_EXPANDED}"
        )


def _without_loop(name: str, expression: Expr) -> Expr:
    """Rewrite a rule that goes back to itself only at one end as a repeat."""
    if isinstance(expression, Regular):
        return expression
    for is_last in (True, False):
        rounds: list[Expr] = []
        ends: list[Expr] = []
        for option in _options(expression):
            parts = option.parts if isinstance(option, Group) else (option,)
            around = sequence(parts[:-1] if is_last else parts[1:])
            edge = parts[-1 if is_last else 0]
            if len(parts) > 1 and edge in (Ref(name), Repeated(Ref(name), 0, 1)):
                rounds.append(around)
                ends += [around] if isinstance(edge, Repeated) else []
            else:
                ends.append(option)
        if rounds and ends:
            turns = repeated(choice(rounds), 0, None)
            both = (turns, choice(ends)) if is_last else (choice(ends), turns)
            loop = sequence(both)
            if isinstance(loop, Regular):
                return loop
    return expression


def _options(expression: Expr) -> list[Expr]:
    if isinstance(expression, Group) and expression.kind == "choice":
        return [inner for part in expression.parts for inner in _options(part)]
    if isinstance(expression, Repeated) and (expression.low, expression.high) == (0, 1):
        return [EMPTY, *_options(expression.part)]
    return [expression]


def is_exact(rules: Rules) -> bool:
    """Return whether the lexer may read the regular parts as lexemes."""
    try:
        follows = _Follows(rules)
        lexemes = {node: follows.positions(node) for node in follows.lexemes}
    except TooManyEdges:
        return False
    budget = _MAX_PAIRS
    for node, chars in follows.lexemes.items():
        for other in lexemes.values() if chars else ():
            budget = may_go_on(lexemes[node], chars, other, budget)
            if budget < 0:
                return False
    return True


class _Follows:
    """The characters that may follow each lexeme."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._positions: dict[int, tuple[Node, Positions]] = {}  # by the node's id
        self._is_nullable: dict[str, bool] = dict.fromkeys(rules, False)
        self._first: dict[str, Ranges] = dict.fromkeys(rules, ())
        self._follow: dict[str, Ranges] = dict.fromkeys(rules, ())
        self.lexemes: dict[Node, Ranges] = {}
        while self._grow_first():
            pass
        is_growing = True
        while is_growing:
            before = dict(self._follow)
            for name in _both_ways(rules):
                self._spread(rules[name], self._follow[name])
            is_growing = before != self._follow

    def positions(self, node: Node) -> Positions:
        """Return the automaton of a lexeme."""
        known = self._positions.get(id(node))
        if known is None:
            known = self._positions[id(node)] = (node, positions_of(node))
        return known[1]

    def _grow_first(self) -> bool:
        is_growing = False
        for name in _both_ways(self._rules):
            expression = self._rules[name]
            found = (self._nullable(expression), self._firsts(expression))
            if found != (self._is_nullable[name], self._first[name]):
                self._is_nullable[name], self._first[name] = found
                is_growing = True
        return is_growing

    def _nullable(self, expression: Expr) -> bool:
        match expression:
            case Regular():
                return self.positions(expression.node).is_nullable
            case Ref():
                return self._is_nullable[expression.name]
            case Group():
                inner = map(self._nullable, expression.parts)
                return all(inner) if expression.kind == "sequence" else any(inner)
            case Repeated():
                return expression.low == 0 or self._nullable(expression.part)
            case _:
                return isinstance(expression, Without)

    def _firsts(self, expression: Expr) -> Ranges:
        match expression:
            case Regular():
                return self.positions(expression.node).first_chars
            case Ref():
                return self._first[expression.name]
            case Group() if expression.kind == "choice":
                return union(*map(self._firsts, expression.parts))
            case Group():
                return self._firsts_in_order(expression.parts)
            case Repeated():
                return self._firsts(expression.part)
            case Json():
                return _JSON_START
            case Special():
                return ()
            case Until() | Without():
                return _ANY

    def _firsts_in_order(self, parts: tuple[Expr, ...]) -> Ranges:
        chars: Ranges = ()
        for part in parts:
            chars = union(chars, self._firsts(part))
            if not self._nullable(part):
                break
        return chars

    def _spread(self, expression: Expr, after: Ranges) -> None:
        """Note that `expression` may be followed by the characters `after`."""
        match expression:
            case Regular():
                before = self.lexemes.get(expression.node, ())
                self.lexemes[expression.node] = union(before, after)
            case Ref():
                self._follow[expression.name] = union(self._follow[expression.name], after)
            case Repeated():
                more = union(after, self._firsts(expression.part))
                self._spread(expression.part, after if expression.high == 1 else more)
            case Group() if expression.kind == "choice":
                for part in expression.parts:
                    self._spread(part, after)
            case Group():
                for part in reversed(expression.parts):
                    self._spread(part, after)
                    first = self._firsts(part)
                    after = union(after, first) if self._nullable(part) else first
            case _:
                pass


def _both_ways(rules: Rules) -> list[str]:
    """Return the rules last to first and back.

    Results then spread along a chain in one go.
    """
    names = list(rules)
    return names[::-1] + names
