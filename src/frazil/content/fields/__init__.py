"""Custom columns: a JSONPath over `metadata`, and the type of its value."""

from frazil.content.fields.compute import Computed, compute
from frazil.content.fields.spec import PROPERTY, Fields, FieldSpec, Plan, active_fields, plan_fields

__all__ = ["PROPERTY", "Computed", "FieldSpec", "Fields", "Plan", "active_fields", "compute", "plan_fields"]
