"""Snapshots that pins protect from expiry, with purpose and end of the lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from frazil.upkeep.expiry.expire import PIN_PREFIX, choose
from frazil.upkeep.expiry.pins import Pin, pins_in

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


@dataclass(frozen=True)
class PinProtection:
    """A pin that prevents part of an expiry.

    Attributes:
        pin: whose lease has not ended.
        snapshots: that would expire without it, oldest first: its own, and later ones.
    """

    pin: Pin
    snapshots: tuple[int, ...]

    def __str__(self) -> str:
        pin, count = self.pin, len(self.snapshots)
        what = "1 snapshot stays that is" if count == 1 else f"{count} snapshots stay that are"
        return (
            f"{what} old enough to go: the pin {pin.tag} ({pin.purpose}) holds snapshot {pin.snapshot_id} "
            f"until {pin.until:%Y-%m-%d %H:%M:%S} UTC"
        )

    def to_dict(self) -> dict[str, object]:
        return {**self.pin.to_dict(), "holds": list(self.snapshots)}


def list_protections(metadata: TableMetadata, name: str, **limits: Any) -> list[PinProtection]:
    """Returns the pins without which an expiry would remove more. Pure.

    Args:
        metadata: of the table.
        name: of the table.
        limits: as for `choose`.
    """
    pinned = pins_in(metadata, name)
    if not pinned:
        return []
    others = {tag: ref for tag, ref in metadata.refs.items() if not tag.startswith(PIN_PREFIX)}

    def going(refs: dict[str, Any]) -> list[int]:
        return choose(metadata.model_copy(update={"refs": refs}), **limits)

    free = going(others)
    found = []
    for pin in pinned:
        left = set(going({**others, pin.tag: metadata.refs[pin.tag]}))
        if held := tuple(i for i in free if i not in left):
            found.append(PinProtection(pin, held))
    return found
