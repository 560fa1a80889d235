"""ZeroMQ. No other file uses it. One frame is a list of messages. The engine is a ROUTER that knows its front ends by
identity; a front end is a DEALER. No message is dropped because a reader is slow: the high-water marks are off. The
engine notices that a front end is gone when it sends to it. Both sides log and drop what has more than one frame: no
process of ours sends it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import msgspec

from tailrace.base.extras import require_extra

with require_extra("serve"):
    import zmq
    import zmq.asyncio

from tailrace.wire.messages import FromEngine, ToEngine, encoder, from_engine, to_engine
from tailrace.wire.socket_folder import PREFIX, SocketFolder, delete_folder

log = logging.getLogger(__name__)

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # what decoding hostile bytes raises


class Address:
    """An ipc address in a folder of its own that only this user may enter; `remove` deletes it.

    Raises:
        ConfigError: see SocketFolder.
    """

    def __init__(self) -> None:
        self._folder = SocketFolder(zmq.IPC_PATH_MAX_LEN)
        self.folder = self._folder.path
        self.url = f"ipc://{self._folder.socket}"

    def remove(self) -> None:
        """Delete the folder. Idempotent."""
        self._folder.remove()


def delete_left_folder(url: str) -> None:
    """Delete the folder of an address whose owner has ended."""
    folder = os.path.dirname(url.removeprefix("ipc://"))
    if os.path.basename(folder).startswith(PREFIX):
        delete_folder(folder)


def _configure_socket(socket: zmq.Socket | zmq.asyncio.Socket) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)


def take_frame(frames: list[bytes], sender: str) -> bytes | None:
    """Return a message's only frame. Log a message of another number of frames, and return None."""
    if len(frames) == 1:
        return frames[0]
    log.error("a message of %d frames from %s was dropped: it must have one", len(frames), sender)
    return None


def decode_frames(frames: list[bytes]) -> list[FromEngine]:
    """Return the messages that the engine sent in one frame; none of a message that `take_frame` drops."""
    frame = take_frame(frames, "the engine")
    return [] if frame is None else from_engine.decode(frame)


class EngineSocket:
    """The engine's side. It receives from and sends to any number of front ends."""

    def __init__(self, url: str) -> None:
        self.socket = zmq.Context.instance().socket(zmq.ROUTER)
        _configure_socket(self.socket)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.bind(url)

    def wait(self, timeout_ms: int) -> None:
        """Wait until a message has arrived, at most `timeout_ms`."""
        self.socket.poll(timeout_ms)

    def receive(self) -> Iterator[tuple[bytes, list[ToEngine]]]:
        """Yield everything that has arrived. A malformed frame is logged and dropped."""
        while True:
            try:
                client, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if (frame := take_frame(frames, client.hex())) is None:
                continue
            try:
                messages = to_engine.decode(frame)
            except UNREADABLE as error:
                log.error("a malformed frame from %s was dropped: %s", client.hex(), error)
                continue
            yield client, messages

    def send(self, client: bytes, messages: list[FromEngine]) -> bool:
        """Send the messages without blocking. Return False if the front end is gone."""
        try:
            self.socket.send_multipart([client, encoder.encode(messages)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def close(self) -> None:
        """Send the rest within a second, then close."""
        self.socket.close(linger=1000)


class FrontSocket:
    """A front end's side; it blocks."""

    def __init__(self, url: str) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        _configure_socket(self.socket)
        self.socket.setsockopt(zmq.IDENTITY, os.urandom(8))
        self.socket.connect(url)

    def send(self, message: ToEngine) -> None:
        """Queue one message."""
        self.socket.send(encoder.encode([message]))

    def receive(self, timeout_ms: int) -> list[FromEngine]:
        """Return one frame's messages, or none if no frame arrives within the time."""
        if not self.socket.poll(timeout_ms):
            return []
        return decode_frames(self.socket.recv_multipart())

    def close(self) -> None:
        """Close at once."""
        self.socket.close()


class AsyncFrontSocket:
    """A front end's side for asyncio."""

    def __init__(self, url: str) -> None:
        self.socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        _configure_socket(self.socket)
        self.socket.setsockopt(zmq.IDENTITY, os.urandom(8))
        self.socket.connect(url)

    def send(self, message: ToEngine) -> None:
        """Send one message.

        With the high-water mark off the message is sent before this returns, so the future is done and needs no await.
        It must still go through the asyncio socket: a send consumes the edge-triggered wake-up of messages that have
        arrived meanwhile, and only that socket checks again.
        """
        self.socket.send(encoder.encode([message]))

    async def receive(self) -> list[FromEngine]:
        """Wait for the first frame, and return the messages of all frames that have arrived.

        The socket's events say whether there are more frames. Receiving until an exception would be simpler. But the
        exception and its future would refer to each other, and would keep the messages alive until a collection.
        """
        messages = decode_frames(await self.socket.recv_multipart())
        while int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN:
            messages += decode_frames(await self.socket.recv_multipart(zmq.NOBLOCK))
        return messages

    def close(self) -> None:
        """Close at once."""
        self.socket.close()
