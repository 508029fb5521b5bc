"""Every rule by which a target accepts drafts: its name, what it needs, where its code is.

A rule gives exactly the target's distribution, whatever the draft. It is named in requests, config
and `Sampling`, in processes that have no torch. So its function is given by its place and loaded by
engines alone (`models.sampling.verification.rule_function`). A new rule is one line of `RULES` and
a function with the arguments of `verify_by_rejection`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationRule:
    """One rule.

    `about`: what it is good for, for who chooses. `needs_draft_probs`: drafts bring the
    distributions that their tokens were sampled from. `depends_on_draft`: at temperatures above 0
    the text depends on the draft too, not only on seed and target. Its distribution never does.
    `function`: its place, "module:name"; empty: a draft token is accepted iff it equals the
    target's own sample. Greedy sessions (temperature 0) have that rule in any case.
    """

    name: str
    about: str
    needs_draft_probs: bool = False
    depends_on_draft: bool = False
    function: str = ""


COUPLED = VerificationRule(name="coupled", about="a seed gives one text")
REJECTION = VerificationRule(
    name="rejection",
    about="accepts the most that any rule for one draft can; the text depends on the draft",
    needs_draft_probs=True,
    depends_on_draft=True,
    function="models.sampling.verification:verify_by_rejection",
)
RULES: dict[str, VerificationRule] = {rule.name: rule for rule in (COUPLED, REJECTION)}


def check_name(name: str) -> None:
    """Check that a rule is known here.

    Raises:
        ValueError: it is not.
    """
    if name not in RULES:
        raise ValueError(f"verification: must be one of {', '.join(RULES)}, got {name!r}")
