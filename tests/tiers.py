"""Parameters of tests, of which `make test` runs the main ones and `make test-deep` the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from frazil.catalogs.kinds import ABILITIES

#: Catalogs that `make test` runs whole suites on. On the others it shows the main promises.
MAIN_KINDS = ("sql", "rest")
ALL_KINDS = (*ABILITIES, "rest_on_s3")


def kinds(*without: str) -> list[Any]:
    """Returns the kinds of catalogs as parameters, those beyond the main ones marked `deep`."""
    wanted = [kind for kind in ALL_KINDS if kind not in without]
    return [kind if kind in MAIN_KINDS else pytest.param(kind, marks=pytest.mark.deep) for kind in wanted]


def in_tiers(cases: Mapping[str, Any], *main: str) -> list[Any]:
    """Returns named cases as parameters, those not named in `main` marked `deep`."""
    return [pytest.param(case, id=name, marks=() if name in main else pytest.mark.deep) for name, case in cases.items()]
