"""Care for many tables, named by patterns."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence

from frazil.catalogs import list_tables
from frazil.errors import ConflictError, FrazilError, NotFoundError, PartialError
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.runs.history import History
from frazil.upkeep.runs.run import Limits, Report, new_run_id, run_upkeep

_MAGIC = frozenset("*?[")


def match_tables(context: UpkeepContext, patterns: Iterable[str]) -> list[str]:
    """The tables that names and patterns such as `topics.*` choose; each once, in the order of the catalog.

    Raises:
        NotFoundError: a name or pattern chooses none.
    """
    patterns = list(patterns)
    there: list[str] = []
    if any(_MAGIC & set(pattern) for pattern in patterns):
        listed = context.store.call(lambda: list_tables(context.store.catalog, context.catalog), "list")
        there = [".".join(name) for name in listed]
    chosen: dict[str, None] = {}
    for pattern in patterns:
        if _MAGIC & set(pattern):
            found = fnmatch.filter(there, pattern.removeprefix(f"{context.catalog.name}."))
        else:
            found = [".".join(context.load(pattern).name())]
        if not found:
            raise NotFoundError(
                f"the catalog '{context.catalog.name}' has no table that '{pattern}' names", hint="frazil table list"
            )
        chosen |= dict.fromkeys(found)
    return list(chosen)


def run_upkeep_for_all(
    context: UpkeepContext,
    names: Sequence[str],
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
    *,
    dry_run: bool = False,
    history: History | None = None,
) -> Iterator[Report]:
    """Cares for one table after the other, until told to stop. A table that cannot be cared for stops no other."""
    run_id = new_run_id()
    for name in names:
        if context.stop.is_set():
            return
        try:
            yield run_upkeep(context, name, limits, dry_run=dry_run, history=history, run_id=run_id)
        except FrazilError as error:
            yield Report(name, errors=[error])


def failure_of(reports: Sequence[Report]) -> FrazilError | None:
    """The error that a run over these tables ends with; None where all is well.

    One thing that failed alone is told as it is; PartialError where others went well.
    """
    errors = [(report, error) for report in reports for error in report.errors]
    if not errors:
        lost = [r.table for r in reports if any(o.result == "conflict" for o in r.outcomes)]
        if lost:
            return ConflictError(
                f"another writer was faster at {', '.join(lost)}",
                hint="the same again; if it stays so, look who else writes: frazil table snapshots",
            )
        return None
    done = sum(o.result != "failed" for r in reports for o in r.outcomes) + sum(not r.errors for r in reports)
    if len(errors) == 1 and not done:
        return errors[0][1]
    failed = list(dict.fromkeys(report.table for report, _ in errors))
    return PartialError(
        f"upkeep of {len(failed)} of {len(reports)} tables failed in part: {', '.join(failed)}",
        cause="; ".join(dict.fromkeys(error.message for _, error in errors)),
        hint=next((error.hint for _, error in errors if error.hint), None),
    )
