"""The parts of the fuzzer by name."""

from __future__ import annotations

from loadtest.fuzz.cases import OpenPart
from loadtest.fuzz.engines.part import open_engines
from loadtest.fuzz.engines.tools_part import open_tools
from loadtest.fuzz.failures.part import open_failures
from loadtest.fuzz.folders.part import open_folders
from loadtest.fuzz.http.histories import open_histories
from loadtest.fuzz.http.part import open_http
from loadtest.fuzz.http.proxies import open_proxies
from loadtest.fuzz.http.schema import open_schema
from loadtest.fuzz.links.frames_part import open_frames

PARTS: dict[str, OpenPart] = {
    "engines": open_engines,
    "tools": open_tools,
    "failures": open_failures,
    "http": open_http,
    "histories": open_histories,
    "schema": open_schema,
    "proxies": open_proxies,
    "frames": open_frames,
    "folders": open_folders,
}
