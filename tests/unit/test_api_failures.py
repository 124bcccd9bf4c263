"""Errors of a request to publish: whether its messages may be in the log."""

from __future__ import annotations

import pytest

from frazil.api.failures import RequestError, status_of, telling_what_is_stored
from frazil.errors import FrazilError, UnavailableError, UsageError
from frazil.log.files import LogShutError


def told_after(error: FrazilError) -> FrazilError:
    with pytest.raises(type(error)) as raised, telling_what_is_stored():
        raise error
    return raised.value


@pytest.mark.parametrize("error", [UsageError("no"), UnavailableError("full"), RequestError("large", status=413)])
def test_what_was_refused_is_not_stored(error):
    told = told_after(error)
    assert (told.to_dict()["acknowledged"], told.to_dict()["stored"]) == (0, "no")
    assert told.message == error.message and status_of(told) == status_of(error)


def test_after_a_failed_sync_nobody_knows_and_each_request_is_told_by_itself():
    shared = LogShutError("a sync has failed")
    told = [told_after(shared) for _ in range(2)]
    assert all(t.to_dict()["stored"] == "unknown" for t in told)
    assert all(t.message.count("is not known") == 1 for t in told)
    assert shared.details == {}
