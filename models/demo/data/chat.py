"""The chat format: special tokens, the template, and how a conversation becomes weighted text
segments.

A turn is `<|role|>content<|end|>`; a reply starts after `<|assistant|>`. `<|end|>` also ends a
plain story, so it is the only end-of-sequence token. There is no begin token. Invariant: `segments`
writes exactly what `CHAT_TEMPLATE` renders.
"""

from dataclasses import dataclass

END = "<|end|>"
PAD = "<|pad|>"
ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = (END, PAD, *(f"<|{role}|>" for role in ROLES))
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True)
class Conversation:
    """Turns as (role, content) pairs; a plain text is one turn of the role `text`, unmarked."""

    turns: tuple[tuple[str, str], ...]

    @property
    def prompt(self) -> str:
        """The rendered text up to where the last reply starts."""
        return "".join(text for text, _ in self.segments()[:-1])

    @property
    def answer(self) -> str:
        """The last turn's content."""
        return self.turns[-1][1]

    def segments(self) -> list[tuple[str, bool]]:
        """Return (text, is_reply) pieces; replies include their end token."""
        pieces: list[tuple[str, bool]] = []
        for role, content in self.turns:
            if role == "text":
                pieces.append((content + END, True))
            elif role == "assistant":
                pieces.append(("<|assistant|>", False))
                pieces.append((content + END, True))
            else:
                pieces.append((f"<|{role}|>{content}{END}", False))
        return pieces


def ask(prompt: str, answer: str, system: str | None = None) -> Conversation:
    """Return a conversation of one question and one answer."""
    turns = [("user", prompt), ("assistant", answer)]
    if system is not None:
        turns.insert(0, ("system", system))
    return Conversation(tuple(turns))


def plain(text: str) -> Conversation:
    """Return a text without chat turns."""
    return Conversation((("text", text),))
