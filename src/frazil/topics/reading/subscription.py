"""A named position in a topic, stored by the log."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator

import pyarrow as pa

from frazil.errors import UsageError
from frazil.log.names import check_name
from frazil.topics.reading.reader import TopicReader


class Subscription:
    """Reads a topic from where the last `commit` under this name left it.

    Messages are delivered at least once: after a crash, reading resumes at the last commit. For an effect exactly once,
    store the offset with the effect and pass it to `TopicReader.read`.

    Two consumers of one name are not coordinated: both get every message, and the later commit counts. Retention does
    not wait for subscriptions; one that is too late gets OffsetGoneError, which states where it can continue.
    """

    def __init__(self, reader: TopicReader, name: str) -> None:
        self.name = check_name(name, "subscription")
        self._reader = reader
        self._next: int | None = None

    @property
    def position(self) -> int | None:
        """Returns the stored position, the next offset. None before the first commit."""
        return self._reader.info().subscriptions.get(self.name)

    def read(
        self,
        *,
        columns: Collection[str] | None = None,
        follow: bool = False,
        stop: threading.Event | None = None,
    ) -> Iterator[pa.Table]:
        """Yields the messages from the stored position on, or from the oldest. See `TopicReader.read`."""
        wanted = None if columns is None else list(columns)
        asked = wanted if wanted is None or "offset" in wanted else [*wanted, "offset"]
        for table in self._reader.read(self.position, columns=asked, follow=follow, stop=stop):
            self._next = int(table.column("offset")[-1].as_py()) + 1
            yield table if wanted is None else table.select(wanted)

    def commit(self, offset: int | None = None) -> int:
        """Stores the position durably, and returns it.

        Args:
            offset: the next offset; by default the one after the last table that `read` yielded.
        """
        wanted = self._next if offset is None else offset
        if wanted is None:
            raise UsageError(f"nothing was read of subscription '{self.name}' yet", hint="commit(offset)")
        self._reader.access.commit(self._reader.topic, self.name, wanted)
        return wanted
