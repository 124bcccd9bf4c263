"""Events of object stores and observations, as changes in one form."""

from __future__ import annotations

from frazil.content.events.model import DIALECTS, Change, Parsed, Problem
from frazil.content.events.observation import observation
from frazil.content.events.parse import parse_message, parse_messages

__all__ = ["DIALECTS", "Change", "Parsed", "Problem", "observation", "parse_message", "parse_messages"]
