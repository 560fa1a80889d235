"""What benchmarks compute of what they measure, and the load that they make: on numbers written down here, and on a
scripted model."""

from __future__ import annotations

import asyncio
import math
import statistics
import sys
from itertools import pairwise

import pytest
from bench.lib import load, server
from bench.server import serve_arrivals
from bench.speculation import spec, spec_prompts


def arrivals(*more: str):
    return serve_arrivals.arguments(["--arrivals", "2", *more])


def test_lengths_and_arrivals_are_the_same_for_a_seed():
    ids = list(range(50000))
    args = arrivals("--requests", "200", "--prompt-tokens", "3", "100", "--output-tokens", "5", "50")
    first, again, other = (serve_arrivals.Load(ids, args).requests(turn) for turn in (0, 0, 1))
    assert first == again != other
    asked = serve_arrivals.Load(ids, args)
    asked.requests(0)
    later = asked.requests(0)  # other prompts, the same in all else
    for a, b in zip(first, later, strict=True):
        assert (len(a["prompt"]), a["output_tokens"], a["at"]) == (len(b["prompt"]), b["output_tokens"], b["at"])
        assert a["prompt"] != b["prompt"]
    assert {len(r["prompt"]) for r in first} >= {3, 4}
    assert all(3 <= len(r["prompt"]) <= 100 and 5 <= r["output_tokens"] <= 50 for r in first)
    assert statistics.median(len(r["prompt"]) for r in first) < 30  # of logarithms: the middle is near 17
    gaps = [b["at"] - a["at"] for a, b in pairwise(first)]
    assert min(gaps) >= 0
    assert 0.8 < statistics.mean(gaps) < 1.25  # one per second
    assert 0.75 < statistics.stdev(gaps) / statistics.mean(gaps) < 1.3  # as exponential gaps have it; even ones have 0


def test_prompts_share_no_prefix():
    asked = serve_arrivals.Load(list(range(7500)), arrivals("--requests", "60", "--prompt-tokens", "20", "60"))
    prompts = [r["prompt"] for turn in range(2) for r in asked.requests(turn)]
    assert len({prompt[0] for prompt in prompts}) == len(prompts)
    asked.requests(2)
    with pytest.raises(ValueError, match="not long enough"):
        asked.requests(3)


@pytest.mark.parametrize(
    "flags", [["--arrivals", "0"], ["--prompt-tokens", "9", "3"], ["--requests", "0"], ["--arrivals", "inf"]]
)
def test_what_can_not_be_asked_is_refused(flags, capsys):
    with pytest.raises(SystemExit):
        arrivals(*flags)
    assert flags[0] in capsys.readouterr().err


@pytest.mark.long
def test_mixed_load_on_a_scripted_model(free_port):
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "tailrace.cli",
        "serve",
        "--model",
        "scripted:next:1",
        "--port",
        str(port),
        "--host",
        server.HOST,
        "--log-level",
        "error",
        "--threads",
        "1",
    ]
    requests = [{"prompt": [5, 6, 7][: 1 + i % 3], "output_tokens": 3 + i, "at": 0.1 * i} for i in range(6)]
    common = {"host": server.HOST, "port": port, "sampling": {"temperature": 0.0}, "requests": requests}
    with server.running(command, port):
        before = server.counters(port)
        for streams in (None, 2):
            found = asyncio.run(load.mixed({**common, "streams": streams}))
            assert sorted(r["tokens"] for r in found["requests"]) == [r["output_tokens"] for r in requests]
            assert found["tokens"] == sum(r["output_tokens"] for r in requests)
            assert streams or found["wall_s"] >= requests[-1]["at"]
        counts = server.change(before, server.counters(port))
    assert counts["generation_tokens_total"] == 2 * found["tokens"]
    assert serve_arrivals.shares([counts], 1.0)["busy"] > 0.0


def test_shares_of_the_engines_time():
    counts = {"engine_turn_duration_seconds_sum": 2.0, 'engine_step_seconds_total{part="forward"}': 1.5}
    assert serve_arrivals.shares([counts, counts], 8.0) == {"busy": 0.5, "model": 0.75}
    assert math.isnan(serve_arrivals.shares([{}], 1.0)["model"])


def test_a_late_client_does_not_make_the_server_faster():
    """Times count from when a request was due, also where the loop was busy with something else then."""

    async def go():
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            usage = '{"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}'
            writer.write(f"HTTP/1.1 200 OK\r\n\r\ndata: {usage}\n\ndata: [DONE]\n\n".encode())
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        requests = [{"prompt": [1], "output_tokens": 1, "at": 0.0}, {"prompt": [1], "output_tokens": 1, "at": 0.05}]
        question = {"host": "127.0.0.1", "port": port, "sampling": {}, "requests": requests}
        running = asyncio.create_task(load.mixed(question))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        until = loop.time() + 0.4
        while loop.time() < until:
            pass  # nobody is served
        found = await running
        server.close()
        return found

    assert all(request["arrivals"][0] >= 0.3 for request in asyncio.run(go())["requests"])


def counted(verify: tuple[int, float], plain: tuple[int, float], guess_s: float = 0.0, accepted: int = 0):
    steps = {"verify": verify, "plain": plain}
    return {
        **{f'decode_steps_total{{kind="{kind}"}}': count for kind, (count, _) in steps.items()},
        **{f'decode_step_seconds_total{{kind="{kind}"}}': seconds for kind, (_, seconds) in steps.items()},
        'engine_step_seconds_total{part="draft"}': guess_s * 0.75,
        'engine_step_seconds_total{part="observe"}': guess_s * 0.25,
        "spec_accepted_tokens_total": accepted,
    }


def test_the_predicted_speed_up():
    """100 steps of 12 ms and 3 ms of drafting, in which 2 drafts stand, against plain steps of 10 ms: 3 tokens in 15
    ms."""
    costs = spec.Costs.of(counted((100, 1.2), (0, 0.0), 0.3, 200), 1)
    assert (costs.draft_ms, costs.verify_ms, costs.share, costs.gain) == pytest.approx((3, 12, 1, 2))
    assert costs.predicted(10.0) == pytest.approx(3 / 1.5)
    # half of the steps draft nothing: 4 tokens in 25 ms
    assert spec.Costs.of(counted((100, 1.2), (100, 1.0), 0.3, 200), 1).predicted(10.0) == pytest.approx(4 / 2.5)
    # of two streams each gains half
    assert spec.Costs.of(counted((100, 1.2), (0, 0.0), 0.3, 200), 2).gain == pytest.approx(1)
    nothing = spec.Costs.of(counted((0, 0.0), (50, 0.5)), 1)
    assert nothing.predicted(10.0) == 1.0
    assert math.isnan(nothing.verify_ms)


@pytest.mark.parametrize(
    ("rule", "sampled", "told"), [("exact", True, 0.5), ("rejection", False, 0.5), ("typical", True, None)]
)
def test_answers_are_compared_where_they_must_be_equal(rule, sampled, told):
    counts = counted((10, 0.1), (0, 0.0)) | {"engine_steps_total": 10, "generation_tokens_total": 20}
    sides = [spec.Side([10.0, 12.0], [counts, counts], ["a", text]) for text in ("b", "c")]
    row = spec.line("draft_model:/x", *sides, spec.SpecCase("summary", 1, rule, sampled))
    assert row["same"] == told if told is not None else math.isnan(row["same"])
    assert (row["drafter"], row["rule"], row["speed-up"], row["goal"]) == ("draft_model", rule, 1.0, "-")
    assert math.isnan(row["at 1"])  # nothing was drafted


def test_a_rule_is_what_requests_ask_for():
    case = spec.SpecCase("JSON", 1, "block", False)
    assert case.sampling == spec_prompts.GREEDY | {"speculation": {"rule": "block"}}
    assert spec.SpecCase("JSON", 1, "block", True).sampling["temperature"] == 0.8
