"""tailrace under Ray Serve, two replicas on this machine: what clients see, and what becomes of streams when replicas
come and go."""

from __future__ import annotations

import re
from collections import defaultdict

import httpx
import pytest
from streams import Stream, begun, ended

from conftest import URL, complete, deploy, engines, get, held, kill, replicas, served, states, text, wait_for
from tailrace.integrations.ray.ingress import make_replica_scope

LONG = 1000  # tokens, of 20 ms each


def both_serve(streams: list[Stream]) -> dict[str, list[Stream]]:
    """Replica → its streams."""
    found: dict[str, list[Stream]] = defaultdict(list)
    for stream in streams:
        found[stream.replica].append(stream)
    assert sorted(found) == sorted(replicas())
    return found


@pytest.mark.usefixtures("application")
class TestTwoReplicas:
    def test_the_interface_is_the_servers(self):
        answer = complete(text(0))
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert "," not in answer.headers["x-request-id"]
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        assert httpx.post(f"{URL}/v1/chat/completions", json=chat, timeout=60).json()["choices"]
        refused = httpx.post(f"{URL}/v1/completions", json={"prompt": "a", "temperature": -1}, timeout=60)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")
        assert get("/nothing").status_code == 404
        assert get("/v1/models").json()["data"][0]["id"] == "scripted"
        large = httpx.post(f"{URL}/v1/completions", content=b"x" * (9 << 20), timeout=60)
        assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")

    def test_a_seed_gives_the_same_text_everywhere(self):
        texts = {complete("x", 20, seed=3, temperature=1.0).json()["choices"][0]["text"] for _ in range(8)}
        assert len(texts) == 1

    def test_prompts_that_begin_alike_share_a_replica_and_its_cache(self):
        homes = set()
        for number in range(24):
            first, second = complete(text(number)), complete(text(number) + "and another end")
            assert first.headers["x-tailrace-replica"] == second.headers["x-tailrace-replica"]
            assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
            homes.add(first.headers["x-tailrace-replica"])
        assert homes == set(replicas())

    def test_a_client_that_leaves_ends_its_request(self):
        streams = [Stream(number, 3000) for number in range(12)]
        begun(streams)
        by_replica = both_serve(streams)
        with held():
            replica, number = open_requests()
            assert number == len(by_replica[replica])
        for stream in streams:
            stream.leave = True
        ended(streams)
        left = set(by_replica)

        def ended_there() -> bool:
            replica, number = open_requests()
            if number == 0:
                left.discard(replica)
            return not left

        wait_for(ended_there)

    def test_a_replica_killed_under_load(self):
        """Its streams end with an error event, the other's are whole, and new requests are served."""
        streams = [Stream(number, LONG) for number in range(12)]
        begun(streams)
        by_replica, before = both_serve(streams), {engine.pid for engine in engines()}
        lost, living = sorted(by_replica)
        with held():
            assert not any(s.done for s in streams), "LONG is too short for this machine"
            kill(lost)
            ended(by_replica[lost])
        for number in range(12):
            assert served(text(number)).headers["x-tailrace-replica"] != lost
        ended(streams)
        assert all(s.error is not None and s.error["code"] == "engine_dead" and not s.done for s in by_replica[lost])
        assert all(s.done and s.error is None for s in by_replica[living])
        wait_for(lambda: len(replicas()) == 2 and lost not in replicas())
        wait_for(lambda: len({engine.pid for engine in engines()} & before) == 1)  # the killed one's has ended as well

    def test_an_engine_killed_under_load(self):
        """The replica lives on without an engine, and Ray replaces it."""
        before = set(replicas())
        streams = [Stream(number, LONG) for number in range(12)]
        begun(streams)
        both_serve(streams)
        engines()[0].kill()
        ended(streams)
        assert {(s.done, s.error is None) for s in streams} == {(True, True), (False, False)}
        wait_for(lambda: len(replicas()) == 2 and set(replicas()) != before)
        assert complete(text(0)).status_code == 200

    def test_deployed_anew_under_load(self):
        """Both replicas and the ingress are replaced, and every stream is whole."""
        before = set(replicas())
        streams = [Stream(number, LONG) for number in range(12)]
        begun(streams)
        both_serve(streams)
        deploy()
        wait_for(lambda: len(replicas()) == 2 and not before & set(replicas()))
        ended(streams)
        assert all(s.done and s.error is None for s in streams)
        wait_for(lambda: len(engines()) == 2)


def test_a_request_below_a_route_prefix():
    """The replica's paths begin below the prefix, and its body is not compressed any more."""
    headers = [(b"content-encoding", b"gzip"), (b"content-length", b"9"), (b"authorization", b"Bearer a")]
    shared = {"type": "http", "asgi": {}, "method": "POST", "query_string": b"", "headers": headers}
    for prefix in ("", "/", "/llm"):
        path = f"{prefix.rstrip('/')}/v1/completions"
        found = make_replica_scope({**shared, "path": path, "root_path": prefix}, b"{}")
        assert found["path"] == "/v1/completions"
        assert found["headers"] == [(b"authorization", b"Bearer a"), (b"content-length", b"2")]


def open_requests() -> tuple[str, float]:
    """A replica, the one that has less to do if the router knows, and how many requests it is answering."""
    answer = get("/metrics")
    [number] = re.findall(r"^tailrace_num_requests_open(?:{.*})? (\S+)$", answer.text, re.M)
    return answer.headers["x-tailrace-replica"], float(number)


def test_replicas_come_and_go_with_the_load(cluster: None):
    """One becomes two and one again; what the one that goes is serving then is served to its end. The engines stand
    still while Ray makes up its mind."""
    changes = {"min_replicas": "1", "target_ongoing_requests": "6", "upscale_delay_s": "1", "downscale_delay_s": "1"}
    deploy(**{f"ray.{name}": value for name, value in changes.items()})
    wait_for(lambda: len(replicas()) == len(engines()) == 1)
    first = [Stream(number, LONG) for number in range(12)]
    begun(first)
    with held():
        wait_for(lambda: len(replicas()) == 2)
        second = [Stream(number, LONG) for number in range(12, 16)]  # the first replica has more than its share
        begun(second)
    streams = first + second
    assert [len({stream.replica for stream in part}) for part in (first, second, streams)] == [1, 1, 2]
    kept = [first[0], second[0]]  # one of each replica
    for stream in set(streams) - set(kept):
        stream.leave = True
    ended(set(streams) - set(kept))
    with held():
        assert not any(stream.done for stream in streams), "LONG is too short for this machine"
        wait_for(lambda: states().get("STOPPING"))
        assert all(stream.is_alive() for stream in kept)
    ended(kept)
    assert all(s.done and s.error is None for s in kept)
    wait_for(lambda: len(replicas()) == len(engines()) == 1)
