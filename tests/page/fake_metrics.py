"""The metrics of the fake server."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

LOAD = """tailrace_engine_ready 1.0
tailrace_num_requests_running {running}
tailrace_num_requests_waiting 2.0
tailrace_num_slots 64.0
tailrace_num_slots_used {running}
tailrace_kv_cache_usage_ratio 0.25
tailrace_prompt_tokens_total {prompt}
tailrace_prompt_tokens_cached_total {cached}
tailrace_generation_tokens_total {generated}
tailrace_engine_steps_total {steps}
tailrace_spec_draft_tokens_total 0.0
tailrace_engine_step_seconds_total{{part="forward"}} {forward}
tailrace_engine_step_seconds_total{{part="sample"}} {sample}
"""


async def metrics(request: Request) -> Response:
    """A server that has been computing 100 tokens in 50 steps a second since it began."""
    seconds = time.monotonic()
    numbers = {"running": 3, "prompt": 300 * seconds, "cached": 150 * seconds, "generated": 100 * seconds}
    numbers |= {"steps": 50 * seconds, "forward": 0.6 * seconds, "sample": 0.2 * seconds}
    return Response(LOAD.format(**numbers), media_type="text/plain")
