"""Stores one response: in memory while it runs, and then in memory or in the file."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from tailrace.api.kept_items import keep_output
from tailrace.api.response_events import ResponseEvents
from tailrace.api.response_file import ResponseFile
from tailrace.api.response_store import ResponseShare
from tailrace.api.schema.errors import Problem
from tailrace.api.schema.responses import Event, ResponseObject
from tailrace.api.stored import OutputOrigin, Stored, make_stored, without_records
from tailrace.api.streaming import named_frame
from tailrace.errors import StorageError

LOST = "the end of this response was not stored: the server ended before it, or could not store it"


class ResponseSaver:
    """Stores a response and the items that it answers, if it is to be stored.

    Without a file the response stays in memory. With a file it is in memory until its end is in the file. If the end
    can't be stored, `store` of the response becomes False, so that its last event says so.

    Args:
        share: the user's, in memory. file: None: there is none.
    """

    def __init__(
        self,
        share: ResponseShare,
        file: ResponseFile | None,
        response: ResponseObject,
        items: list[dict[str, Any]],
        streamed: bool,
    ) -> None:
        self.response, self.items = response, items
        self._share, self._file, self._streamed = share, file, streamed
        self._kept, self._begun = response.store, False
        self._add_error: StorageError | None = None
        self._ending: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Store the response as it begins to wait, or to run. Once it was dropped, it stays dropped."""
        id, again = self.response.id, self._begun
        if not self._kept or (again and id not in self._share):
            return
        self._save(None)
        self._begun, entry = True, self._share.find(id)
        if self._file is not None and entry is not None and not again:
            self._file.spawn(self._add(self._make_lost_state(entry.created)))

    def note(self, event: Event) -> None:
        """Keep an event for those who read the stream later."""
        if self._streamed and self._kept:
            self._share.record(self.response.id, named_frame(without_records(event)))

    def end(self, origin: OutputOrigin | None = None) -> None:
        """Store the response as it ends, unless it was deleted meanwhile. origin: what made it."""
        id = self.response.id
        if id not in self._share:
            if self._file is not None:  # It was deleted, or dropped for want of memory, while it ran.
                self.response.store = False
            return
        self._save(origin)
        entry = self._share.find(id)
        if self._file is not None and entry is not None:
            self._ending = self._file.spawn(self._end(entry))

    async def finish(self, origin: OutputOrigin | None = None) -> None:
        """The same. Return when the end is in the file, or can't be stored."""
        self.end(origin)
        if self._ending is not None:
            await asyncio.wait({self._ending})

    def _save(self, origin: OutputOrigin | None) -> None:
        items = [*self.items, *keep_output(self.response.output)]
        self._share.put(self.response, items, len(self.items), self._streamed, origin)

    def _make_lost_state(self, created: float) -> Stored:
        """Return what the file holds until the end of the response: it has failed, without output."""
        lost = msgspec.structs.replace(self.response, output=[])
        frames: list[bytes] = []
        writer = ResponseEvents(lost, lambda event: frames.append(named_frame(event)))
        list(writer.begin())
        lost.error = Problem(LOST, "server_error", None, "server_error")
        list(writer.fail_response())
        return make_stored(lost, self.items, len(self.items), frames if self._streamed else None, created=created)

    async def _add(self, entry: Stored) -> None:
        assert self._file is not None
        user, id = self._share.user, self.response.id
        try:
            await self._file.run(lambda database: database.add(user, id, entry), user)
        except StorageError as error:
            self._add_error = error

    async def _end(self, entry: Stored) -> None:
        assert self._file is not None
        user, id = self._share.user, self.response.id
        try:
            self.response.store = await self._file.run(lambda database: database.end(user, id, entry), user)
            error = None if self.response.store else self._add_error
        except StorageError as failure:
            self.response.store, error = False, failure
        if error is not None:
            self._file.report_failure(error)
        elif self.response.store:
            self._file.report_success()
        self._share.discard(id)
