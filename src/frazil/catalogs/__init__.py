"""One settings object, seen alike by PyIceberg and Spark; and what each kind of catalog can do."""

from frazil.catalogs.connect import open_catalog, prepare_embedded, probe
from frazil.catalogs.failures import translated
from frazil.catalogs.kinds import ABILITIES, Abilities, abilities_of, flavor_of
from frazil.catalogs.locations import local_path
from frazil.catalogs.opaque import load_without_schema
from frazil.catalogs.pointers import read_metadata, read_pointer
from frazil.catalogs.properties import pyiceberg_properties, spark_conf
from frazil.catalogs.tables import list_namespaces, list_tables, load_table, parse_name

__all__ = [
    "ABILITIES",
    "Abilities",
    "abilities_of",
    "flavor_of",
    "list_namespaces",
    "list_tables",
    "load_table",
    "load_without_schema",
    "local_path",
    "open_catalog",
    "parse_name",
    "prepare_embedded",
    "probe",
    "pyiceberg_properties",
    "read_metadata",
    "read_pointer",
    "spark_conf",
    "translated",
]
