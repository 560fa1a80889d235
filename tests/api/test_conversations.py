"""/v1/conversations, and responses that continue and extend a conversation."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItemList
from openai.types.responses import Response

from api.talks import CALL, TOOL, talk_to
from api.test_client_types import check

PATH = "/v1/conversations"


@pytest.fixture(params=["memory", "file"])
async def talk(request, tmp_path):
    settings = {"stored_responses_file": str(tmp_path / "responses")} if request.param == "file" else {}
    async with talk_to(tmp_path / "model", **settings) as talk:
        yield talk


async def test_create_read_change_delete(talk):
    made = await talk.post(PATH, metadata={"a": "b"}, items=[{"role": "user", "content": "one"}])
    path = f"{PATH}/{made['id']}"
    assert made["object"] == "conversation"
    check(Conversation, (await talk.http.get(path)).content)
    assert await talk.get(path) == made
    changed = await talk.post(path, metadata={"c": "d"})
    assert changed == made | {"metadata": {"c": "d"}} == await talk.get(path)
    assert (await talk.post(path, metadata=None))["metadata"] == {}
    gone = await talk.http.delete(path)
    check(ConversationDeletedResource, gone.content)
    for method, part in (("GET", ""), ("DELETE", ""), ("GET", "/items"), ("GET", "/items/x"), ("DELETE", "/items/x")):
        await talk.get(path + part, 404, method)
    for part, body in (("", {"metadata": {}}), ("/items", {"items": []})):
        await talk.post(path + part, status=404, **body)


async def test_items(talk):
    path = f"{PATH}/{(await talk.post(PATH))['id']}/items"
    items = [{"role": "user", "content": str(i)} for i in range(3)]
    added = await talk.http.post(path, json={"items": items})
    check(ConversationItemList, added.content)
    ids = [item["id"] for item in added.json()["data"]]
    page = await talk.get(f"{path}?limit=2")
    assert ([item["id"] for item in page["data"]], page["has_more"]) == ([ids[2], ids[1]], True)
    rest = await talk.get(f"{path}?limit=2&after={page['last_id']}")
    assert ([item["id"] for item in rest["data"]], rest["has_more"]) == ([ids[0]], False)
    assert [item["id"] for item in (await talk.get(f"{path}?order=asc"))["data"]] == ids
    assert (await talk.get(f"{path}/{ids[1]}"))["content"] == [{"type": "input_text", "text": "1"}]
    assert (await talk.get(f"{path}/{ids[1]}", method="DELETE"))["object"] == "conversation"
    assert [item["id"] for item in (await talk.get(f"{path}?order=asc"))["data"]] == [ids[0], ids[2]]
    await talk.get(f"{path}/{ids[1]}", 404)
    await talk.get(f"{path}/{ids[1]}", 404, "DELETE")


async def test_a_response_continues_and_extends_it(talk):
    made = await talk.post(PATH, items=[{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}])
    for named in (made["id"], {"id": made["id"]}):
        answer = await talk.http.post("/v1/responses", json={"input": "three", "conversation": named})
        check(Response, answer.content)
        assert answer.json()["conversation"] == {"id": made["id"]}
    assert "one" in talk.prompts[0]
    assert talk.prompts[1].count("three") == 2
    assert talk.prompts[1].count("Hello") == 1
    page = await talk.get(f"{PATH}/{made['id']}/items?order=asc")
    texts = [item["content"][0]["text"] for item in page["data"]]
    assert texts == ["one", "two", "three", "Hello", "three", "Hello"]
    assert page["data"][3]["id"] == [item["id"] for item in page["data"]][3]
    # with instructions, which are of one response; streamed; not stored itself
    body = {"input": "four", "conversation": made["id"], "instructions": "Be kind.", "stream": True, "store": False}
    assert "response.completed" in (await talk.http.post("/v1/responses", json=body)).text
    page = await talk.get(f"{PATH}/{made['id']}/items?order=asc")
    assert [item["content"][0]["text"] for item in page["data"]][6:] == ["four", "Hello"]
    assert len({item["id"] for item in page["data"]}) == 8


async def test_what_is_refused(talk):
    error = (await talk.post(input="hi", conversation="conv_none", status=404))["error"]
    assert error["param"] == "conversation"
    both = {"conversation": "conv_none", "previous_response_id": "resp_none"}
    assert (await talk.post(input="hi", **both, status=400))["error"]["param"] == "conversation"
    for item, param in (
        ({"type": "item_reference", "id": "msg_1"}, "items[0]"),
        ({"role": "user"}, "items[0]"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "items[0].content[0].type"),
        ({"type": "reasoning", "encrypted_content": "x"}, "items[0].encrypted_content"),
        ({"type": "function_call", "call_id": "c"}, "items[0]"),
    ):
        assert (await talk.post(PATH, items=[item], status=400))["error"]["param"] == param
    made = await talk.post(PATH)
    for path in ("", "/input_items", "?stream=true"):  # a conversation is no response
        await talk.get(f"/v1/responses/{made['id']}{path}", 404)
    await talk.get(f"/v1/responses/{made['id']}", 404, "DELETE")
    await talk.post(input="hi", previous_response_id=made["id"], status=404)
    response = await talk.post(input="hi")
    await talk.get(f"{PATH}/{response['id']}", 404)
    await talk.get(f"{PATH}/{response['id']}", 404, "DELETE")
    assert (await talk.get(f"{PATH}/{made['id']}")) == made


async def test_an_image_in_a_result_becomes_a_line_of_text(talk):
    """As in a response's input, also if it is behind the result."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    result = {"type": "function_call_output", "call_id": "c", "output": [image]}
    made = await talk.post(PATH, items=[result, {"role": "user", "content": [image]}])
    await talk.post(f"{PATH}/{made['id']}/items", items=[result])
    page = await talk.get(f"{PATH}/{made['id']}/items?order=asc")
    assert "base64" not in str(page)
    assert ["image" in str(item) for item in page["data"]] == [True] * 3
    await talk.post(input="hi", conversation=made["id"])


async def test_other_users_have_no_part_in_it(tmp_path):
    async with talk_to(tmp_path, api_keys="one, two") as talk:
        made = await talk.post(PATH, items=[{"role": "user", "content": "a secret"}], key="one")
        listed = await talk.http.get(f"{PATH}/{made['id']}/items", headers={"authorization": "Bearer one"})
        item, absent = listed.json()["data"][0]["id"], f"conv_{'0' * 32}"

        async def ask(id: str) -> list[tuple[int, str]]:
            path = f"{PATH}/{id}"
            requests: list[tuple[str, str, Any]] = [
                ("GET", path, None),
                ("GET", f"{path}/items", None),
                ("GET", f"{path}/items/{item}", None),
                ("DELETE", f"{path}/items/{item}", None),
                ("POST", path, {"metadata": {}}),
                ("POST", f"{path}/items", {"items": [{"role": "user", "content": "x"}]}),
                ("POST", "/v1/responses", {"input": "hi", "conversation": id}),
                ("POST", "/v1/responses/input_tokens", {"input": "hi", "conversation": id}),
                ("DELETE", path, None),
            ]
            headers = {"authorization": "Bearer two"}
            answers = [await talk.http.request(*two, json=body, headers=headers) for *two, body in requests]
            return [(answer.status_code, answer.text.replace(id, "ID")) for answer in answers]

        found = await ask(made["id"])
        assert found == await ask(absent)
        assert {status for status, _ in found} == {404}
        await talk.post(input="hi", conversation=made["id"], key="one")


async def test_calls_and_thoughts_stay_and_a_cut_call_does_not(tmp_path):
    async with talk_to(tmp_path, f"<think>deep</think>So {CALL}") as talk:
        made = await talk.post(PATH)
        body = {"conversation": made["id"], "tools": [TOOL]}
        answer = await talk.post(input="hi", include=["reasoning.encrypted_content"], **body)
        output = {"type": "function_call_output", "call_id": answer["output"][2]["call_id"], "output": "3"}
        await talk.post(input=[output], max_output_tokens=40, **body)  # ends within the next call
        assert "<think>deep</think>So \n<tool_call>" in talk.prompts[1]
        page = await talk.get(f"{PATH}/{made['id']}/items?order=asc")
        kinds = [item["type"] for item in page["data"]]
        assert kinds == [
            *("message", "reasoning", "message", "function_call", "function_call_output", "reasoning", "message"),
        ]
        assert "encrypted_content" not in str(page)


async def test_a_conversation_survives_a_restart(tmp_path):
    file = str(tmp_path / "responses")
    async with talk_to(tmp_path / "a", stored_responses_file=file) as talk:
        made = await talk.post(PATH)
        await talk.post(input="hi", conversation=made["id"])
    async with talk_to(tmp_path / "b", stored_responses_file=file) as talk:
        await talk.post(input="again", conversation=made["id"])
        assert talk.prompts[0].count("Hello") == 1


async def test_a_conversation_that_is_deleted_meanwhile(tmp_path):
    async with talk_to(tmp_path, tick_s=0.01) as talk:
        made = await talk.post(PATH)
        body = {"input": "hi", "conversation": made["id"], "stream": True}
        async with talk.http.stream("POST", "/v1/responses", json=body) as answer:
            await talk.get(f"{PATH}/{made['id']}", method="DELETE")
            text = "".join([part async for part in answer.aiter_text()])
        assert "response.completed" in text
