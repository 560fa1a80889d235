"""Case 23: the engine fails at any point of a stream. The client gets an error object and the end, never [DONE]."""

from __future__ import annotations

import pytest

from api.harness import LocalClient, events, front_of, saying

ANSWER = b"Hello"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize("fail_at", range(len(ANSWER) + 1))
async def test_case_23_an_error_at_every_point_of_the_stream(tokenizer, path, fail_at):
    client = LocalClient(saying(ANSWER), fail_at=fail_at)
    client.patient = True
    fields = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
        "/v1/completions": {"prompt": "x="},
        "/v1/responses": {"input": "hi"},
    }[path]
    async with front_of(client, tokenizer) as front:
        answer = await front.http.post(path, json={"temperature": 0, "stream": True, **fields})
        if fail_at == 0:
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")
        else:
            assert answer.status_code == 200
            assert "[DONE]" not in answer.text
            if path == "/v1/responses":
                assert '"type":"response.failed"' in answer.text
                assert "response.completed" not in answer.text
            else:
                *chunks, last = events(answer.text)
                assert last["error"]["code"] == "engine_error"
                assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
        await front.until(front.client.idle)
        again = await front.http.post(path, json={"temperature": 0, **fields})
        assert again.status_code == 200
