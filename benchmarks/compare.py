"""Compares the working tree with another commit: `python -m benchmarks.compare REVISION [--rounds N] [SUITE …]`.

Checks the revision out into a temporary folder with a virtual environment of its own, and runs short versions of the
suites (`compare_round.py`) in both trees in alternating rounds, so that noise of the machine hits both. The medians of
both, their ratio, and the spread between the rounds of each are printed and written into RESULTS.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.__main__ import conditions, write
from benchmarks.compare_round import SUITES
from benchmarks.measure import Result
from benchmarks.targets import verdict

_ROOT = Path(__file__).resolve().parent.parent
_ALLOWED = 1.10


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("revision")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"{', '.join(SUITES)} (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(arguments)
    began = conditions()
    with _checked_out(chosen.revision) as former:
        results = [
            result
            for suite in chosen.suites or SUITES
            for result in compare(suite, {"before": former, "after": _ROOT}, chosen.rounds)
        ]
    write("compare", f"{began}, against {chosen.revision}, {chosen.rounds} alternating rounds", results)


def compare(suite: str, trees: Mapping[str, Path], rounds: int) -> list[Result]:
    """Runs the suite in both trees in turns and returns one result per measurement that both have."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for number in range(rounds):
        for name in list(trees) if number % 2 == 0 else reversed(list(trees)):
            found[name].append(_run_round(suite, trees[name]))
    before, after = found["before"], found["after"]
    return [_describe(suite, what, [r[what] for r in before], [r[what] for r in after]) for what in before[0]]


def _describe(suite: str, what: str, before: list[float], after: list[float]) -> Result:
    ratio = statistics.median(after) / statistics.median(before)
    spread = max(max(values) / min(values) for values in (before, after))
    return Result(
        f"{suite}: {what}",
        _shown(statistics.median(after)),
        f"before {_shown(statistics.median(before))}",
        f"{ratio:.2f}× (spread of the rounds of one tree {spread:.2f}×)",
        verdict(ratio <= max(_ALLOWED, spread), f"≤ {_ALLOWED}× or the spread"),
    )


def _shown(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:,.1f} µs"
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def _run_round(suite: str, tree: Path) -> dict[str, float]:
    script = Path(__file__).with_name("compare_round.py")
    command = [str(tree / ".venv" / "bin" / "python"), "-c", _BOOT, str(script), suite]
    done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, text=True, check=True)
    values: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return values


#: The script is of this tree; what it imports is found in the folder that it runs in.
_BOOT = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


@contextlib.contextmanager
def _checked_out(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="frazil-compare-") as folder:
        tree = Path(folder, "tree")
        subprocess.run(["git", "worktree", "add", "--detach", tree, revision], cwd=_ROOT, check=True)
        try:
            subprocess.run(["make", "setup-dev"], cwd=tree, check=True)
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=_ROOT, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
