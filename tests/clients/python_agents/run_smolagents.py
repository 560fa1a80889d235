"""smolagents: its agent of tool calls, its agent that writes code, and structured output."""

from __future__ import annotations

import json
from typing import Any

from scripts import ANSWER, NAME, ONE_CALL, QUESTION, TWO_CALLS, URL, report
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

WRITES = 'print(get_weather(city="Paris"), get_weather(city="Oslo"))'
ENDS = f"final_answer({ANSWER!r})"
CODE = [{"thought": "Hm.", "text": f"Both.\n<code>\n{WRITES}\n</code>"}, {"text": f"Done.\n<code>\n{ENDS}\n</code>"}]
OBJECTS = [{"text": json.dumps({"thought": "Both.", "code": code})} for code in (WRITES, ENDS)]
CALLS = [TWO_CALLS, ONE_CALL, {"calls": [["final_answer", {"answer": ANSWER}]]}]


@tool
def get_weather(city: str) -> str:
    """Return the weather.

    Args:
        city: the city
    """
    return f"sunny in {city}"


def work(kind: type[Any], streamed: bool, **options: Any) -> dict[str, Any]:
    """Let such an agent answer the question."""
    model = OpenAIServerModel(NAME, api_base=f"{URL}/v1", api_key="none")
    agent = kind([get_weather], model=model, max_steps=5, stream_outputs=streamed, verbosity_level=0, **options)
    answer = agent.run(QUESTION)
    seen = "".join(str(getattr(step, "observations", "")) for step in agent.memory.steps)
    steps = [step for step in agent.memory.steps if getattr(step, "step_number", None)]
    return {"text": answer, "steps": len(steps), "seen": seen}


report("tools", lambda streamed: work(ToolCallingAgent, streamed), CALLS)
report("code", lambda streamed: work(CodeAgent, streamed), CODE)
report("structured", lambda streamed: work(CodeAgent, streamed, use_structured_outputs_internally=True), OBJECTS)
