"""The parts of the fuzzer by name."""

from __future__ import annotations

from loadtest.fuzz.cancel_part import open_cancel
from loadtest.fuzz.cases import OpenPart
from loadtest.fuzz.engines_part import open_engines
from loadtest.fuzz.frames_part import open_frames
from loadtest.fuzz.http_part import open_http
from loadtest.fuzz.links_part import open_links
from loadtest.fuzz.schema_part import open_schema

PARTS: dict[str, OpenPart] = {
    "engines": open_engines,
    "links": open_links,
    "cancel": open_cancel,
    "http": open_http,
    "schema": open_schema,
    "frames": open_frames,
}
