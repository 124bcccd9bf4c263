"""The statuses of extraction results, as they are stored and published."""

from __future__ import annotations

from typing import Final

OK: Final = "ok"
GONE: Final = "gone"
CHANGED: Final = "changed"
UNSUPPORTED: Final = "unsupported"
FAILED: Final = "failed"
