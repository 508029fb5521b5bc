"""Checkpoints as transformers runs them, for the rooms that still ask here."""

from __future__ import annotations

from loadtest.frame.references import load_reference as load_reference
