"""Extractors that misbehave, as a package that registers them: what an engine has to survive."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from frazil.extract.registry import registry

_MODULE = """
import ctypes, os, time
from frazil.extract import extractor

def misbehaving(name, do, **more):
    @extractor(name, **more)
    def look(item):
        return do() if name in item.key else {"size": len(item.head())}
    return look

def hang():
    time.sleep(3600)

def hang_with_the_interpreter():
    # A C function that does not let go of the interpreter, as a library without threads in mind.
    ctypes.PyDLL(None).usleep(ctypes.c_uint(3_600_000_000))

def eat():
    kept = []
    while True:
        kept.append(bytearray(1 << 20))

def shout():
    os.write(1, b"garbage\\0\\xff" * 100_000)
    os.write(2, b"{}" * 100_000)
    print("more garbage")
    return {"shouted": True}

def leave():
    raise SystemExit(5)

def thumbnail(item):
    item.shared["thumbnail"] = b"small " + item.key.encode()
    return {}

hangs = misbehaving("hangs", hang)
grips = misbehaving("grips", hang_with_the_interpreter)
exits = misbehaving("exits", lambda: os._exit(3))
crashes = misbehaving("crashes", lambda: ctypes.string_at(0))
eats = misbehaving("eats", eat)
shouts = misbehaving("shouts", shout)
leaves = misbehaving("leaves", leave)
talks = misbehaving("talks", lambda: "x" * (10 << 20))
odd = misbehaving("odd", lambda: {"nan": float("nan"), "text": "a\\ud800b\\0", 1: {2}})
lonely = misbehaving("lonely", lambda: os._exit(4), alone=True)
pictures = extractor("pictures")(thumbnail)
"""
#: All of them, in the order in which they run.
NAMES = ("crashes", "eats", "exits", "grips", "hangs", "leaves", "lonely", "odd", "pictures", "shouts", "talks")


def write(folder: Path) -> None:
    """Makes a folder that has the package as if it were installed there."""
    info = folder / "misbehaving-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "misbehaving.py").write_text(_MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: misbehaving\nVersion: 1.0\n")
    entries = "\n".join(f"{name} = misbehaving:{name}" for name in NAMES)
    (info / "entry_points.txt").write_text(f"[frazil.extractors]\n{entries}\n")


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the package on the path of this process, and of all that it starts."""
    write(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "misbehaving", raising=False)
    registry.cache_clear()
