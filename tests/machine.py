"""What a test run takes over from the machine it runs on: the cache, the JDK, a mirror. And how its JVMs run."""

from __future__ import annotations

import os
from functools import cache

from frazil.settings import SettingsModel, load_settings
from frazil.spark.java import Java, find_java

#: JVMs live for seconds here: the second compiler never earns what it takes, a third of a short command's time.
QUICK_JVM = "-XX:TieredStopAtLevel=1"
#: Where Spark's launcher takes options for its JVM from, without a word on the terminal.
_JVM_OPTIONS = "SPARK_SUBMIT_OPTS"
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
    return given | {"FRAZIL_CACHE": str(machine().cache), _JVM_OPTIONS: os.environ.get(_JVM_OPTIONS, QUICK_JVM)}


def quick_jvms() -> None:
    """For the JVMs of this process and its children, unless somebody has said otherwise."""
    os.environ.setdefault(_JVM_OPTIONS, QUICK_JVM)


def machine_java() -> Java:
    return find_java(machine().spark.java_home)
