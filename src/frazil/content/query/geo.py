"""Boxes, also across the date line, and circles on the earth."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from frazil.errors import UsageError

#: Kilometres: the mean radius of the earth, as the documented SQL has it.
EARTH_KM = 6371.0088
_KM = {"m": 0.001, "km": 1.0, "mi": 1.609344}


@dataclass(frozen=True)
class Box:
    """Degrees. Where `west` is greater than `east`, it goes across the date line."""

    south: float
    west: float
    north: float
    east: float

    @classmethod
    def parse(cls, text: str) -> Box:
        """`SOUTH,WEST,NORTH,EAST`.

        Raises:
            UsageError: that it is not.
        """
        hint = "SOUTH,WEST,NORTH,EAST in degrees, such as 47.2,5.8,55.1,15.1"
        box = cls(*_degrees(text, 4, hint))
        for latitude in (box.south, box.north):
            _in_range(latitude, 90, "latitude", hint)
        for longitude in (box.west, box.east):
            _in_range(longitude, 180, "longitude", hint)
        if box.south > box.north:
            raise UsageError(f"the south of the box, {box.south:g}, lies north of {box.north:g}", hint=hint)
        return box

    @property
    def crosses(self) -> bool:
        """Whether it goes across the date line."""
        return self.west > self.east

    def holds(self, latitude: Any, longitude: Any) -> Any:
        beside = (longitude >= self.west) | (longitude <= self.east)
        between = (longitude >= self.west) & (longitude <= self.east)
        return (latitude >= self.south) & (latitude <= self.north) & (beside if self.crosses else between)


@dataclass(frozen=True)
class Circle:
    """All that is no further from a point than so many kilometres. None: any distance, for sorting by it."""

    latitude: float
    longitude: float
    km: float | None

    @classmethod
    def parse(cls, near: str, radius: str | None) -> Circle:
        """`LATITUDE,LONGITUDE`, and how far: `5km`, `800m`, `3mi`.

        Raises:
            UsageError: that it is not.
        """
        hint = "LATITUDE,LONGITUDE in degrees, such as 48.8584,2.2945"
        latitude, longitude = _degrees(near, 2, hint)
        _in_range(latitude, 90, "latitude", hint)
        _in_range(longitude, 180, "longitude", hint)
        return cls(latitude, longitude, None if radius is None else _kilometres(radius))

    def box(self) -> Box | None:
        """A box that the circle lies in; None: the whole earth."""
        if self.km is None:
            return None
        high = math.degrees(self.km / EARTH_KM) * 1.000001
        south, north = self.latitude - high, self.latitude + high
        if south <= -90 or north >= 90:  # around a pole every longitude is near
            return Box(max(south, -90.0), -180.0, min(north, 90.0), 180.0) if high < 180 else None
        wide = math.degrees(math.asin(min(1.0, math.sin(math.radians(high)) / math.cos(math.radians(self.latitude)))))
        west, east = self.longitude - wide, self.longitude + wide
        return Box(south, west + 360 if west < -180 else west, north, east - 360 if east > 180 else east)

    def distances(self, latitude: Any, longitude: Any) -> Any:
        """Kilometres to points, along great circles."""
        here, there = math.radians(self.latitude), np.radians(latitude)
        up, aside = (there - here) / 2, np.radians(longitude - self.longitude) / 2
        part = np.sin(up) ** 2 + math.cos(here) * np.cos(there) * np.sin(aside) ** 2
        return 2 * EARTH_KM * np.arcsin(np.sqrt(np.clip(part, 0, 1)))


def _degrees(text: str, count: int, hint: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != count or not all(map(math.isfinite, found)):
        raise UsageError(f"{text!r} is no place", hint=hint)
    return found


def _in_range(value: float, most: int, what: str, hint: str) -> None:
    if abs(value) > most:
        raise UsageError(f"{value:g} is no {what}: it lies between -{most} and {most}", hint=hint)


def _kilometres(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(m|km|mi)", text.strip().lower())
    if found is None or not float(found[1]):
        raise UsageError(f"{text!r} is no distance", hint="a number with m, km or mi: 800m, 5km")
    return float(found[1]) * _KM[found[2]]
