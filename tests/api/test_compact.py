"""/v1/responses/compact: a summary by the model, which takes the place of the conversation."""

from __future__ import annotations

import json

from openai.types.responses import CompactedResponse

from api.talks import TOOL, talk_to
from api.test_client_types import check

PATH = "/v1/responses/compact"
TALK = [
    {"role": "user", "content": "We launch on Tuesday."},
    {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "a long result"},
    {"role": "assistant", "content": "Understood."},
    {"role": "user", "content": [{"type": "input_text", "text": "And tell support."}]},
]


async def test_a_compacted_conversation_goes_on(tmp_path):
    async with talk_to(tmp_path, "<think>hm</think>Tuesday it is.") as talk:
        answer = await talk.http.post(PATH, json={"model": "scripted", "input": TALK, "instructions": "Be kind."})
        made = answer.json()
        # the client's type of items has no messages of users, though its documentation says that they are there
        check(CompactedResponse, json.dumps(made | {"output": made["output"][-1:]}))
        assert "a long result" in talk.prompts[0]
        assert "Be kind." in talk.prompts[0]
        assert "Summarise this conversation" in talk.prompts[0]
        *said, item = made["output"]
        assert [message["content"][0]["text"] for message in said] == ["We launch on Tuesday.", "And tell support."]
        assert item["type"] == "compaction"
        assert "Tuesday" not in str(item)
        assert made["usage"]["output_tokens"] > 10
        await talk.post(input=[*made["output"], {"role": "user", "content": "When?"}])
        prompt = talk.prompts[1]
        assert "assistant\nSummary of the conversation so far:\n\nTuesday it is." in prompt
        assert "hm" not in prompt
        assert "a long result" not in prompt
        assert prompt.index("And tell support.") < prompt.index("Summary") < prompt.index("When?")
        await talk.get(f"/v1/responses/{made['id']}", 404)  # it is not stored


async def test_a_stored_conversation_and_a_compacted_one(tmp_path):
    async with talk_to(tmp_path, "Fine.") as talk:
        first = await talk.post(input="one", tools=[TOOL])
        made = await talk.post(PATH, model="scripted", previous_response_id=first["id"])
        assert [item["type"] for item in made["output"]] == ["message", "compaction"]
        again = await talk.post(PATH, model="scripted", input=[*made["output"], {"role": "user", "content": "two"}])
        assert [item["type"] for item in again["output"]] == ["message", "message", "compaction"]
        assert "Summary of the conversation so far:\n\nFine." in talk.prompts[-1]


async def test_what_is_refused(tmp_path):
    async with talk_to(tmp_path, "", context=700, api_keys="one, two") as talk:
        for fields, param in (
            ({"input": "hi"}, "model"),
            ({"model": "scripted"}, "input"),
            ({"model": "scripted", "input": [{"role": "user"}]}, "input[0]"),
        ):
            assert (await talk.post(PATH, key="one", status=400, **fields))["error"]["param"] == param
        error = (await talk.post(PATH, key="one", model="scripted", input="x" * 900, status=400))["error"]
        assert error["code"] == "context_length_exceeded"
        error = (await talk.post(PATH, key="one", model="scripted", input="hi", status=500))["error"]
        assert "wrote no whole summary" in error["message"]
        await talk.post(PATH, key="one", model="other", input="hi", status=404)


async def test_a_conversation_that_leaves_no_room_for_its_summary(tmp_path):
    async with talk_to(tmp_path, "word " * 100, context=700) as talk:
        for size in range(20, 640, 20):  # until the answer is cut
            answer = await talk.http.post(PATH, json={"model": "scripted", "input": "x" * size})
            if answer.status_code != 200:
                break
        while answer.status_code == 500:  # the model had room, and did not end
            size += 20
            answer = await talk.http.post(PATH, json={"model": "scripted", "input": "x" * size})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
        assert "too few for its summary" in error["message"]
