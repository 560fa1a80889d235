"""What the model says in each conversation, and how a conversation's outcome is written: one JSON line.

Used by the agents beside it, which run in an environment of their own: `python NAME.py URL MODEL`.
"""

from __future__ import annotations

import json
import sys
import traceback
import urllib.request
from collections.abc import Callable
from typing import Any

URL, NAME = sys.argv[1:3]
QUESTION = "Weather in three cities?"
THOUGHT = "Both, at once."
ANSWER = "All are sunny."
TWO_CALLS = {"thought": THOUGHT, "calls": [["get_weather", {"city": "Paris"}], ["get_weather", {"city": "Oslo"}]]}
ONE_CALL = {"calls": [["get_weather", {"city": "Rome"}]]}
THREE_STEPS = [TWO_CALLS, ONE_CALL, {"text": ANSWER}]


def set_script(turns: list[dict[str, Any]]) -> None:
    """Let the model say this from now on."""
    body = json.dumps(turns).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{URL}/script", body, method="POST"), timeout=60):
        pass


def report(what: str, converse: Callable[[bool], dict[str, Any]], turns: list[dict[str, Any]]) -> None:
    """Have a conversation whole, and streamed. Write each outcome, or the error."""
    for how in ("whole", "streamed"):
        set_script(turns)
        try:
            told = converse(how == "streamed")
        except Exception:
            told = {"error": traceback.format_exc()}
        set_script([])
        print("\n" + json.dumps({"what": what, "how": how} | told), flush=True)  # a client may have left a line open
