"""What a test run takes over from the machine it runs on: the cache, the JDK, a mirror. Nothing else."""

from __future__ import annotations

import os
from functools import cache

from frazil.settings import SettingsModel, load_settings
from frazil.spark.java import Java, find_java

_OF_THE_MACHINE = ("FRAZIL_CACHE", "FRAZIL_SPARK__JAVA_HOME", "FRAZIL_SPARK__IVY_SETTINGS")


def machine_flags() -> dict[str, str]:
    """As flags, for sessions that a test starts."""
    given = {name: os.environ[name] for name in _OF_THE_MACHINE if os.environ.get(name)}
    return {name.removeprefix("FRAZIL_").lower().replace("__", "."): value for name, value in given.items()}


@cache
def machine() -> SettingsModel:
    """As settings: those that `frazil setup` had."""
    return load_settings(flags=machine_flags(), environ={}).model


def machine_environment() -> dict[str, str]:
    """As variables, for commands that run in a home folder of their own."""
    given = {name: os.environ[name] for name in _OF_THE_MACHINE if os.environ.get(name)}
    return given | {"FRAZIL_CACHE": str(machine().cache)}


def machine_java() -> Java:
    return find_java(machine().spark.java_home)
