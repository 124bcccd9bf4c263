"""Custom columns: a JSONPath over `metadata`, and the type of its value."""

from frazil.content.fields.compute import Computed, compute
from frazil.content.fields.spec import PROPERTY, Fields, FieldSpec, Plan, active, planned

__all__ = ["PROPERTY", "Computed", "FieldSpec", "Fields", "Plan", "active", "compute", "planned"]
