"""Changes of stored conversations: bytes are cut and joined, and the result is that of lists."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from api.talks import talk_to
from tailrace.api import conversations
from tailrace.api.conversation_changes import ConversationChange, ItemPlace, apply_change, find_item
from tailrace.api.schema.conversations import ConversationObject
from tailrace.api.stored import Stored

TEXTS = ('a, "b"', '], [{"id": "1"}', "é\n\\", "", "x" * 300)


def make_item(rng: random.Random, id: int) -> dict[str, Any]:
    return {"content": [{"text": rng.choice(TEXTS), "id": str(id + 1)}], "id": str(id), "more": rng.choice(TEXTS)}


def store(items: list[dict[str, Any]]) -> Stored:
    body = msgspec.json.encode(ConversationObject(id="conv_1", created_at=1, metadata={}))
    return Stored(body, msgspec.json.encode(items), 0, None, b"", created=1.0)


@pytest.mark.parametrize("seed", range(20))
def test_changes_are_those_of_a_list(seed: int):
    rng = random.Random(seed)
    items, stored, count = [], store([]), 0
    for _ in range(40):
        if items and rng.random() < 0.5:
            gone = items.pop(rng.randrange(len(items)))
            place = find_item(stored.messages, gone["id"])
            changed = apply_change(stored, ConversationChange(remove=place))
        else:
            added = [make_item(rng, count + i) for i in range(rng.randrange(4))]
            items, count = items + added, count + len(added)
            changed = apply_change(stored, ConversationChange(append=added))
        assert changed is not None
        stored = changed
        assert stored.messages == msgspec.json.encode(items)
        assert find_item(stored.messages, "none") is None


def test_an_item_at_another_place_is_not_removed():
    rng = random.Random(0)
    stored = store([make_item(rng, i) for i in range(3)])
    right = find_item(stored.messages, "1")
    assert right is not None
    for place in (ItemPlace("2", right.begin, right.end), ItemPlace("1", right.begin + 1, right.end)):
        assert apply_change(stored, ConversationChange(remove=place)) is None
    assert apply_change(stored, ConversationChange(remove=ItemPlace("1", 10**6, 10**6 + 5))) is None


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_an_item_that_moved_is_looked_for_again(tmp_path, monkeypatch: pytest.MonkeyPatch, where: str):
    settings: dict[str, Any] = {"stored_responses_file": str(tmp_path / "responses")} if where == "file" else {}
    looked = []

    def find_late(messages: bytes, id: str) -> ItemPlace | None:
        place = find_item(messages, id)
        looked.append(id)
        return ItemPlace(id, 2, 9) if len(looked) == 1 else place

    monkeypatch.setattr(conversations, "find_item", find_late)
    async with talk_to(tmp_path / "model", **settings) as talk:
        made = await talk.post("/v1/conversations", items=[{"role": "user", "content": str(i)} for i in range(3)])
        path = f"/v1/conversations/{made['id']}/items"
        ids = [item["id"] for item in (await talk.get(f"{path}?order=asc"))["data"]]
        await talk.get(f"{path}/{ids[0]}", method="DELETE")
        assert looked == [ids[0]] * 2
        assert [item["id"] for item in (await talk.get(f"{path}?order=asc"))["data"]] == ids[1:]
