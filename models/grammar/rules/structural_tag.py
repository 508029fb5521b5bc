"""Reads structural tags: text that is free here and constrained there.

It has two spellings, as in vLLM, SGLang and XGrammar. One is `{"structures": [{"begin", "schema",
"end"}], "triggers": [...]}`. The other is `{"format": {...}}`, a tree of formats (`formats`). If
there are triggers, the text is free until it holds one. A tag that begins so must follow there, and
then the text is free again.

Unsupported parts are refused by their place. They are other styles of JSON, limits in tokens, and
free text without a mark at its end. Source: XGrammar's documentation of structural tags.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from models.grammar.limits import JsonValue, SchemaLimits, refuse
from models.grammar.rules.fields import Fields
from models.grammar.rules.formats import FormatReader
from models.grammar.rules.tree import Rules
from models.grammar.schema.source import SchemaSource

START = "tag"
SpecialId = Callable[[str | int], int | None]  # the id of a special token that may stand in a text


def parse_structural_tag(
    text: str, schema_limits: SchemaLimits, special_id: SpecialId
) -> tuple[Rules, list[tuple[str, SchemaSource]]]:
    """Parse a structural tag to rules; the whole text obeys `START`.

    Args:
        text: its JSON text.
        schema_limits: of each schema within.
        special_id: the id of a special token by name or number; None: there is no such token.

    Returns:
        The rules, and the schemas within with their places.

    Raises:
        UnsupportedGrammar: with the place, a JSON path.
    """
    reader = FormatReader(schema_limits, special_id)
    try:
        value: JsonValue = json.loads(text)
    except RecursionError:
        refuse("the structural tag nests too deep")
    except ValueError as error:
        refuse(f"the structural tag is not JSON: {error}")
    fields = Fields(value, "$")
    if fields.take("type", "structural_tag") != "structural_tag":
        refuse("must be 'structural_tag'", path="$.type")
    if "format" in fields:
        body = reader.whole(fields.take("format"), "$.format")
    else:
        body = reader.whole(_format_of(fields), "$")
    fields.finish()
    return {START: body, **reader.rules}, reader.schemas


def _format_of(fields: Fields) -> JsonValue:
    """Convert the older spelling to a format of the newer."""
    tags: list[JsonValue] = []
    for i, structure in enumerate(fields.items("structures")):
        inner = Fields(structure, f"$.structures[{i}]")
        content = {"type": "json_schema", "json_schema": inner.take("schema")}
        tags.append(
            {"begin": inner.text("begin"), "content": content, "end": inner.text("end", "")}
        )
        inner.finish()
    return {"type": "triggered_tags", "triggers": fields.take("triggers"), "tags": tags}
