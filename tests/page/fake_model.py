"""A model of a few hundred tokens, which says what a script tells it: its tokens, and the scripts of its prompts.

The server of tests/page/fake_server.py speaks with it. The script only raises the logit of the next token, so that
other tokens come too, and other parameters draw others (fake_records.py).
"""

from __future__ import annotations

from dataclasses import dataclass

CORPUS = """The river runs under the old stone bridge, past the mill, and out to the sea. Nobody knows why the water is
so calm tonight; perhaps the wheel has stopped turning. A small boat drifts along with its lamp still lit,
and on the far bank a heron waits, still as a reed. What would you say to it? Where does all of this water
go? It goes where it always went: down, slowly, then all at once. One two three four five six seven eight
nine ten. Look, listen, wait: morning comes. I think we should check the weather first, because it may rain
in the valley by noon. {"city": "Paris", "unit": "celsius"} <tool_call> </tool_call> get_weather name
arguments"""
HOSTILE = (
    "<script>",
    "alert(1)",
    "</script>",
    "<img src=x onerror=alert(2)>",
    "&lt;b&gt;",
    "\u202eevil",
    "\u202c",
    "\u200b",
    "\u0007",
    "\u2066",
    "\u2069",
    "שלום",
    " עולם",
    " مرحبا",
    " بالعالم",
    "\ufeff",
    "\u00a0",
    "\t",
    "e\u0301",
    "\x1b[31m",
    "javascript:alert(3)",
    "\r",
    "--></style>",
)
EMOJI = ("👩‍👩‍👧‍👦", "🏳️‍🌈", "漢字", "ñ")
SPECIAL = ("<|end|>", "<think>", "</think>")


def vocabulary() -> list[bytes]:
    """All single bytes of the emoji, then texts."""
    words = [word for line in CORPUS.split("\n") for word in line.split(" ") if word]
    texts = dict.fromkeys([*(" " + word for word in words), *words, "\n", "\n\n", " ", ".", ",", *HOSTILE])
    bytes_of_emoji = dict.fromkeys(bytes([byte]) for text in EMOJI for byte in text.encode())
    return [*bytes_of_emoji, *(text.encode() for text in texts)]


VOCAB = vocabulary()
IDS = {text: id for id, text in reversed(list(enumerate(VOCAB)))}
SPECIAL_IDS = {name: len(VOCAB) + i for i, name in enumerate(SPECIAL)}
SIZE = len(VOCAB) + len(SPECIAL)
UNASKED = [
    id
    for id, data in enumerate(VOCAB)
    if (len(data) == 1 and data[0] > 127) or data.decode(errors="replace") in HOSTILE
]
LONGEST = max(map(len, VOCAB))


def tokenize(text: str) -> list[int]:
    """The longest token that fits, again and again; what no token spells is left out."""
    data, found = text.encode(), []
    while data:
        size = next((size for size in range(min(LONGEST, len(data)), 0, -1) if data[:size] in IDS), 0)
        if size:
            found.append(IDS[data[:size]])
        data = data[size or 1 :]
    return found


def name_of(id: int) -> str:
    """As logprobs show a token."""
    if id >= len(VOCAB):
        return SPECIAL[id - len(VOCAB)]
    try:
        return VOCAB[id].decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in VOCAB[id])


def bytes_of(id: int) -> list[int]:
    return list(VOCAB[id]) if id < len(VOCAB) else []


@dataclass(frozen=True)
class Script:
    """What the model would like to say: (channel, token id) each; are there guesses; which must come."""

    tokens: list[tuple[str, int]]
    drafts: bool = False
    forced: frozenset[int] = frozenset()


def script_for(prompt: str) -> Script:
    """By the words of the prompt: think, tool, hostile, emoji, draft, grammar, and a number of tokens."""
    parts: list[tuple[str, int]] = []

    def say(text: str, channel: str = "content") -> None:
        parts.extend((channel, id) for id in tokenize(text))

    words = prompt.lower().split()
    if "think" in words:
        parts.append(("mark", SPECIAL_IDS["<think>"]))
        say("I think we should check the weather first, because it may rain in the valley by noon.\n", "thought")
        parts.append(("mark", SPECIAL_IDS["</think>"]))
    if "hostile" in words:
        for text in HOSTILE:
            say(text + " the river")
    if "emoji" in words:
        for text in EMOJI:
            say(text + " ")
    lines = CORPUS.split(" {")[0].replace("\n", " ").replace("? ", "?\n\n")
    say(lines)
    count = next((int(word) for word in words if word.isdigit()), 0)
    if "tool" in words:
        say('<tool_call> {"city": "Paris", "unit": "celsius"} </tool_call>', "tool")
    while len(parts) < count:
        say("\n\n" + lines if "paragraphs" in words else " " + lines)
    forced = frozenset(range(3, 9)) if "grammar" in words else frozenset()
    if count:
        del parts[count:]
    return Script([*parts, ("mark", SPECIAL_IDS["<|end|>"])], "draft" in words, forced)
