"""Five users beside the hostile one. A user is an address: 127.0.0.2 to 127.0.0.6. Hostile requests use 127.0.0.1.

Each user asks again and again for what users share beside the step: a new grammar, a first token, a stored
conversation, a long prompt. The answers of a conversation must stay the same.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from faults.hostile.client import HOST, head

ADDRESSES = tuple(f"127.0.0.{2 + number}" for number in range(5))
PAUSE_S = 1.0  # between two probes of one kind by one user
LONG_WORDS = 1500
RESPONSES = "/v1/responses"


class Reply(NamedTuple):
    """A whole answer, and the seconds from the connection to its last byte."""

    status: int
    body: Any
    seconds: float


@dataclass
class User:
    """One user: where it comes from, and what it has seen.

    Attributes:
        took: (time.monotonic() at the beginning, seconds) of each probe, by the probe's name.
        differences: answers that should have been another one.
    """

    port: int
    address: str
    took: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    differences: list[dict[str, Any]] = field(default_factory=list)
    conversation: str = ""
    told: Any = None

    async def ask(self, path: str, **body: Any) -> Reply:
        """One request on a connection of its own."""
        payload = json.dumps(body).encode()
        begun = time.monotonic()
        reader, writer = await asyncio.open_connection(HOST, self.port, local_addr=(self.address, 0))
        writer.write(head(path, len(payload)) + payload)
        whole = await reader.read()
        seconds = time.monotonic() - begun
        writer.close()
        top, _, rest = whole.partition(b"\r\n\r\n")
        return Reply(int(top.split(b" ", 2)[1]), json.loads(rest), seconds)

    async def live(self, over: Callable[[], bool]) -> None:
        """Ask for everything until `over`."""
        await asyncio.gather(*(self.repeat(probe, over) for probe in PROBES))

    async def repeat(self, probe: Probe, over: Callable[[], bool]) -> None:
        """Ask for one thing until `over`, and note how long each answer takes."""
        number, taken = 0, self.took.setdefault(probe.name, [])
        while not over():
            begun = time.monotonic()
            reply = await probe.ask(self, number)
            taken.append((begun, reply.seconds))
            if reply.status != 200:
                self.note(probe.name, 200, reply._replace(seconds=0))
            number += 1
            await asyncio.sleep(PAUSE_S)

    def note(self, what: str, before: Any, now: Any) -> None:
        """Note an answer that should have been another one."""
        self.differences.append(
            {"user": self.address, "what": what, "at": time.monotonic(), "in peace": before, "now": now}
        )


class Probe(NamedTuple):
    """Something that a user asks for. ask: (user, number of the question) → the answer."""

    name: str
    ask: Callable[[User, int], Awaitable[Reply]]


async def ask_new_grammar(user: User, number: int) -> Reply:
    """Ask for an object by a schema that nobody has used."""
    names = [f"{part}_{user.address[-1]}_{number}" for part in ("name", "size", "kind")]
    schema = {
        "type": "object",
        "properties": {
            names[0]: {"type": "string", "maxLength": 8},
            names[1]: {"type": "integer"},
            names[2]: {"enum": names},
        },
        "required": names,
        "additionalProperties": False,
    }
    return await user.ask("/v1/completions", prompt="An object:", max_tokens=1, guided_json=schema)


async def ask_first_token(user: User, number: int) -> Reply:
    """Ask for the first token behind a short prompt."""
    return await user.ask("/v1/completions", prompt=f"{user.address} asks for the {number}. time: why", max_tokens=1)


async def ask_long_prompt(user: User, number: int) -> Reply:
    """Ask for the first token behind a long prompt that nobody has sent."""
    words = " ".join(f"{number}.{place}" for place in range(LONG_WORDS // 5))
    return await user.ask("/v1/completions", prompt=f"{user.address}: {words}", max_tokens=1)


async def ask_conversation(user: User, number: int) -> Reply:
    """Go on with the conversation that was stored first. Its answer is the same each time."""
    if not number:
        begun = await user.ask(RESPONSES, input=f"I am {user.address}", seed=7, max_output_tokens=8, store=True)
        user.conversation = begun.body.get("id", "")
    reply = await user.ask(
        RESPONSES,
        input="What did I say?",
        previous_response_id=user.conversation,
        seed=8,
        max_output_tokens=8,
        store=False,
    )
    said = [part for item in reply.body.get("output", ()) for part in item.get("content", ())] or reply.body
    user.told = user.told or said
    if said != user.told:
        user.note("conversation", user.told, said)
    return reply


PROBES = (
    Probe("new grammar", ask_new_grammar),
    Probe("first token", ask_first_token),
    Probe("conversation", ask_conversation),
    Probe("long prompt", ask_long_prompt),
)
