"""Translates errors of Arrow Flight into Frazil's."""

from __future__ import annotations

import pyarrow as pa

from frazil.errors import FrazilError, UnavailableError, UsageError, first_line
from frazil.log.remote.transport import flight
from frazil.log.remote.wire import unpack_error

_ABSENT = (flight.FlightUnavailableError, flight.FlightCancelledError, flight.FlightInternalError)


def translate_error(error: Exception, where: str) -> FrazilError:
    """Returns the error that the broker raised, or the one that its absence means."""
    told = getattr(error, "extra_info", None)
    if told:
        return unpack_error(told)
    why = _why(error)
    if "Failed parsing HTTP/2" in why:
        return make_no_broker_error(where, "it does not speak Arrow Flight")
    if isinstance(error, pa.ArrowNotImplementedError):
        return make_no_broker_error(where, "it is another Flight server")
    if isinstance(error, flight.FlightTimedOutError) or (isinstance(error, _ABSENT) and "timed out" in why):
        return UnavailableError(f"the {where} does not answer", cause=why, hint="look whether it hangs: frazil serve")
    if isinstance(error, _ABSENT):
        return UnavailableError(f"there is no {where}, or it is away", cause=why, hint="start it: frazil serve")
    return FrazilError(f"the {where} gave an answer that Frazil does not understand", cause=why)


def make_no_broker_error(where: str, cause: str) -> UsageError:
    """Returns the error for an address at which something other than Frazil listens. It is not retryable."""
    return UsageError(f"there is no {where}", cause=cause, hint="the Flight address that `frazil serve` prints")


def _why(error: Exception) -> str:
    """Returns what gRPC reports, without the text that it adds around it."""
    text = first_line(error).split(" gRPC client debug context")[0].split("with message: ")[-1]
    return text.split("last error: ")[-1].removeprefix("UNKNOWN: ").removeprefix("UNAVAILABLE: ")
