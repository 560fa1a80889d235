"""Chat: what is thought, said and called comes in its own fields, streamed and whole alike."""

from __future__ import annotations

import json

import pytest

from api.harness import LocalClient, events, front_of, make_tokenizer, saying
from tailrace.api.channels import channel_fields, channels_of
from tailrace.api.formats import choose_tools
from tailrace.api.front_end import FrontEnd
from tailrace.api.schema.chat import ChatRequest
from tailrace.config import ServerConfig
from tailrace.engine.checks.thinking_budget import splitter_of
from tailrace.engine.token_bytes import TokenBytes, TokenText
from tailrace.params import SamplingParams
from tailrace.text.detokenize import detokenizer
from tailrace.text.reasoning import REASONING_FORMATS
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.tool_parsers import TOOL_FORMATS

TOOL = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
CONFIG = ServerConfig(reasoning_parser="think", tool_parser="hermes")


def fronting(tokenizer, answer: str, config: ServerConfig = CONFIG):
    return front_of(LocalClient(saying(answer.encode())), tokenizer, config)


async def both(front, **fields) -> tuple[dict, list[dict]]:
    """The whole answer's choice, and the stream's choices."""
    whole = (await front.chat(**fields)).json()["choices"][0]
    *chunks, done = events((await front.chat(stream=True, **fields)).text)
    assert done == "[DONE]"
    return whole, [chunk["choices"][0] for chunk in chunks]


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("both", {"reasoning_content", "reasoning"}),
        ("reasoning", {"reasoning"}),
        ("reasoning_content", {"reasoning_content"}),
    ],
)
async def test_the_operator_names_the_field_of_thoughts(tokenizer, setting, names):
    config = ServerConfig(reasoning_parser="think", tool_parser="hermes", reasoning_field=setting)
    async with fronting(tokenizer, "<think>2 + 2</think>4", config) as front:
        whole, streamed = await both(front)
        for name in ("reasoning_content", "reasoning"):
            expected = "2 + 2" if name in names else ""
            assert whole["message"].get(name, "") == expected
            assert "".join(choice["delta"].get(name, "") for choice in streamed) == expected
        asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}
        said = (await front.http.post("/v1/messages", json=asked)).json()["content"]
        assert [block.get("thinking") or block["text"] for block in said] == ["2 + 2", "4"]


@pytest.mark.parametrize("fields", [{"include_reasoning": False}, {"reasoning": {"exclude": True}}], ids=str)
async def test_thoughts_may_be_left_out_of_the_answer(tokenizer, fields):
    async with fronting(tokenizer, "<think>2 + 2</think>4") as front:
        reports = {"logprobs": True, "return_token_ids": True}
        bare, _ = await both(front, **reports)
        whole, streamed = await both(front, **reports, **fields)
        assert not {"reasoning", "reasoning_content"} & whole["message"].keys()
        assert "2 + 2" not in json.dumps([choice["delta"] for choice in streamed])
        assert (whole["message"]["content"], whole["finish_reason"]) == ("4", "stop")
        assert whole["token_ids"] == bare["token_ids"] == [id for choice in streamed for id in choice["token_ids"]]
        assert whole["logprobs"] == bare["logprobs"]
        usage = (await front.chat(**fields)).json()["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_thinking_has_a_field_of_its_own(tokenizer):
    async with fronting(tokenizer, "<think>2 + 2</think>4") as front:
        whole, streamed = await both(front, logprobs=True, return_token_ids=True)
        message = whole["message"]
        assert (message["reasoning_content"], message["content"]) == ("2 + 2", "4")
        assert whole["finish_reason"] == "stop"
        for field, text in (("reasoning_content", "2 + 2"), ("content", "4")):
            assert "".join(choice["delta"].get(field, "") for choice in streamed) == text
        ids = [id for choice in streamed for id in choice["token_ids"]]
        assert ids == whole["token_ids"]
        assert bytes(ids[:-1]) == b"<think>2 + 2</think>4"
        listed = [entry["token"] for choice in streamed for entry in (choice["logprobs"] or {"content": []})["content"]]
        assert listed == [entry["token"] for entry in whole["logprobs"]["content"]]
        assert len(listed) == len(ids)


async def test_all_of_it_as_content_if_asked_or_configured(tokenizer):
    async with fronting(tokenizer, "<think>a</think>b") as front:
        whole, _ = await both(front, separate_reasoning=False)
        assert whole["message"]["content"] == "<think>a</think>b"
        assert "reasoning_content" not in whole["message"]
    async with fronting(tokenizer, "<think>a</think>b", ServerConfig(reasoning_parser="none")) as front:
        assert (await both(front))[0]["message"]["content"] == "<think>a</think>b"


def calls_of(streamed: list[dict]) -> list[dict]:
    """The calls, put together from the stream as OpenAI's clients do; its shape is checked on the way."""
    calls: list[dict] = []
    for delta in [call for choice in streamed for call in choice["delta"].get("tool_calls", [])]:
        if "id" in delta:
            assert delta["index"] == len(calls)
            assert delta["function"]["arguments"] == ""
            calls.append({"id": delta["id"], "type": delta["type"], "function": dict(delta["function"])})
        else:
            assert (delta["index"], set(delta), set(delta["function"])) == (
                len(calls) - 1,
                {"index", "function"},
                {"arguments"},
            )
            calls[-1]["function"]["arguments"] += delta["function"]["arguments"]
    return calls


async def test_tool_calls(tokenizer):
    async with fronting(tokenizer, f"{CALL}\n{CALL}") as front:
        whole, streamed = await both(front, tools=TOOL)
        assert (whole["finish_reason"], whole["message"]["content"]) == ("tool_calls", None)
        calls = whole["message"]["tool_calls"]
        assert [call["function"] for call in calls] == [{"name": "add", "arguments": '{"a": 1}'}] * 2
        assert len({call["id"] for call in calls}) == 2
        assert [call["function"] for call in calls_of(streamed)] == [call["function"] for call in calls]
        assert streamed[-1]["finish_reason"] == "tool_calls"


async def test_arguments_are_streamed_as_they_come(tokenizer):
    client = LocalClient(saying(CALL.encode()))
    client.patient = True
    async with front_of(client, tokenizer, CONFIG) as front:
        streamed = (await both(front, tools=TOOL, logprobs=True, return_token_ids=True))[1]
        deltas = [call for choice in streamed for call in choice["delta"].get("tool_calls", [])]
        # a number waits for the character behind it, which may make another number of it, and a key for its value
        assert [call["function"]["arguments"] for call in deltas] == ["", "{", '"a": 1}']
        assert bytes([id for choice in streamed for id in choice["token_ids"]][:-1]) == CALL.encode()
        assert sum(len((choice["logprobs"] or {"content": []})["content"]) for choice in streamed) == len(CALL) + 1


THINKING = {
    # what the model says, and how many of its tokens (here: bytes) are a thought's
    "think": ("<think>2 + 2</think>4", 5, 0),
    "deepseek_r1": ("2 + 2</think>4", 5, 0),
    "gemma4": ("<|channel>thought\n2 + 2<channel|>4", 5, 0),
    "qwen3": (f"<think>2 + 2{CALL}", 5, 1),  # a call ends the thought
    "harmony": (
        "<|channel|>analysis<|message|>2 + 2<|end|><|start|>assistant<|channel|>commentary to=functions.add "
        '<|constrain|>json<|message|>{"a": 1}<|call|>',
        5,
        1,
    ),
    "kimi_k2": ("<think>2 + 2", 5, 0),  # cut by the end
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", THINKING)
@pytest.mark.parametrize("patient", [False, True])
async def test_tokens_of_thoughts_are_counted(tokenizer, name, patient):
    answer, counted, calls = THINKING[name]
    client = LocalClient(saying(answer.encode()))
    client.patient = patient
    config = ServerConfig(reasoning_parser=name, tool_parser="auto" if name == "harmony" else "hermes")
    async with front_of(client, tokenizer, config) as front:
        fields = {"tools": TOOL, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        *streamed, _ = events((await front.chat(stream=True, max_tokens=200, **fields)).text)
        whole = (await front.chat(tools=TOOL, max_tokens=200)).json()
        for usage in (streamed[-1]["usage"], whole["usage"]):
            assert usage["completion_tokens_details"]["reasoning_tokens"] == counted
            assert usage["completion_tokens"] == len(answer) + 1
        counts = [chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in streamed]
        assert counts == sorted(counts)
        [choice] = whole["choices"]
        assert choice["message"]["reasoning_content"] == "2 + 2"
        assert len(choice["message"].get("tool_calls", ())) == calls
        assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
        assert (choice["message"]["content"] or "") == ("4" if answer.endswith("4") else "")
        body = {"input": "hi", "temperature": 0, "max_output_tokens": 200}
        response = (await front.http.post("/v1/responses", json=body)).json()
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] >= counted
        # where thoughts stay in the content, none are counted
        whole = (await front.chat(separate_reasoning=False, max_tokens=200)).json()
        assert "completion_tokens_details" not in whole["usage"]
        assert "2 + 2" in whole["choices"][0]["message"]["content"]


async def test_thoughts_that_stay_in_the_content_keep_the_marker_of_the_template(tmp_path):
    tokenizer = opening(tmp_path, "<think>\n")
    for name, content in (("minimax_m2_append_think", "<think>hm</think>yes"), ("none", "hm</think>yes")):
        async with fronting(tokenizer, "<think>\nhm</think>yes", ServerConfig(reasoning_parser=name)) as front:
            whole, streamed = await both(front)
            assert whole["message"]["content"] == content
            assert "".join(choice["delta"].get("content", "") for choice in streamed) == content


async def test_a_template_that_opens_or_closes_the_thought(tmp_path):
    for tail, kwargs, said, thought, content in (
        ("<think>\n", {}, "hm</think>yes", "hm", "yes"),
        ("<think>\n\n</think>\n\n", {}, "<think> is a tag", None, "<think> is a tag"),
        (SWITCH, {"enable_thinking": False}, "<think> is a tag", None, "<think> is a tag"),
        (SWITCH, {"thinking": False}, "<think> is a tag", None, "<think> is a tag"),  # it reads another name
        ("", {}, "<think>hm</think>yes", "hm", "yes"),
    ):
        written = "" if tail == SWITCH else tail
        async with fronting(opening(tmp_path, tail), written + said) as front:
            whole, _ = await both(front, chat_template_kwargs=kwargs)
            assert (whole["message"].get("reasoning_content"), whole["message"]["content"]) == (thought, content)


SWITCH = "{% if enable_thinking %}{% endif %}"  # reads the switch, writes nothing


def opening(folder, tail: str) -> Tokenizer:
    """A tokenizer whose template ends every prompt so. The scripts of these tests count it to the answer."""
    plain = make_tokenizer(folder)
    return Tokenizer(plain.backend, plain.template_source + (tail if tail == SWITCH else f"{{{{ {tail!r} }}}}"))


FORMATS = {
    "mistral": '[TOOL_CALLS]add[ARGS]{"a": 1}',
    "llama3_json": '{"name": "add", "parameters": {"a": 1}}',
    "pythonic": "[add(a=1)]",
    "qwen3_coder": "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "glm4": "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "granite": '<|tool_call|>[{"name": "add", "arguments": {"a": 1}}]',
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", FORMATS)
async def test_other_formats(tokenizer, name):
    async with fronting(tokenizer, FORMATS[name], ServerConfig(tool_parser=name)) as front:
        whole, streamed = await both(front, tools=TOOL, parallel_tool_calls=True, max_tokens=200)
        message = whole["message"]
        for calls in (message["tool_calls"], calls_of(streamed)):
            [call] = calls
            assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1})
            assert name != "kimi_k2" or call["id"] == "functions.add:0"
        assert (message["content"], whole["finish_reason"]) == (None, "tool_calls")
        said = (
            await front.http.post(
                "/v1/responses",
                json={
                    "input": "hi",
                    "temperature": 0,
                    "max_output_tokens": 200,
                    "tools": [{"type": "function", "name": "add", "parameters": {}}],
                },
            )
        ).json()["output"]
        assert [(item["type"], item["name"]) for item in said] == [("function_call", "add")]
        assert name != "kimi_k2" or said[0]["call_id"] == "functions.add:0"


async def test_the_schema_decides_what_bare_text_is(tokenizer):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "string"}}}}}]
    async with fronting(tokenizer, FORMATS["qwen3_coder"], ServerConfig(tool_parser="qwen3_coder")) as front:
        [call] = (await both(front, tools=tools, max_tokens=200))[0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"a": "1"}


async def test_a_responses_calls_are_told_in_openais_order(tokenizer):
    client = LocalClient(saying(f'So {CALL}{CALL[:-15]}"x'.encode()))
    client.patient = True
    async with front_of(client, tokenizer, CONFIG) as front:
        body = {"input": "hi", "temperature": 0, "stream": True, "tools": [{"type": "function", "name": "add"}]}
        text = (await front.http.post("/v1/responses", json=body)).text
    told = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    names = [event["type"].removeprefix("response.") for event in told]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    order = [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]
    assert order[order.index("content_part.done") :] == [
        "content_part.done",
        "output_item.done",
        *call,
        *call,
        "completed",
    ]
    first, second = (
        [event for event in told if event.get("output_index") == place and "delta" in event] for place in (1, 2)
    )
    assert ["".join(event["delta"] for event in events) for events in (first, second)] == ['{"a": 1}', '{"a": "x"}']
    done = [event["arguments"] for event in told if event["type"] == "response.function_call_arguments.done"]
    assert done == ['{"a": 1}', '{"a": "x"}']
    assert [item["arguments"] for item in told[-1]["response"]["output"][1:]] == done


@pytest.mark.parametrize("fields", [{}, {"tools": TOOL, "tool_choice": "none"}])
async def test_without_tools_there_are_no_calls(tokenizer, fields):
    async with fronting(tokenizer, CALL) as front:
        whole, _ = await both(front, **fields)
        assert (whole["finish_reason"], whole["message"]["content"]) == ("stop", CALL)


@pytest.mark.parametrize(
    ("length", "arguments", "content"),
    [(19, None, CALL[:19]), (25, "", None), (44, '{"a"', None), (55, '{"a": 1}', None), (60, '{"a": 1}', None)],
)
async def test_case_22_a_call_cut_by_max_tokens_finishes_as_length(tokenizer, length, arguments, content):
    """What has been streamed stands; before the name is known it is content as it was written."""
    async with fronting(tokenizer, CALL) as front:
        whole, streamed = await both(front, tools=TOOL, max_tokens=length)
        assert whole["finish_reason"] == streamed[-1]["finish_reason"] == "length"
        message = whole["message"]
        assert message["content"] == content
        assert "".join(c["delta"].get("content", "") for c in streamed) == (content or "")
        for calls in (message.get("tool_calls", []), calls_of(streamed)):
            assert [c["function"]["arguments"] for c in calls] == ([] if arguments is None else [arguments])


async def test_case_20_a_stop_counts_in_thinking_too(tokenizer):
    async with fronting(tokenizer, "<think>one STOP two</think>three") as front:
        whole, _ = await both(front, stop=["STOP"])
        assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", "STOP")
        assert (whole["message"]["reasoning_content"], whole["message"]["content"]) == ("one ", "")


TEMPLATES = {
    "<tool_call>{{ name }}</tool_call>": "hermes",
    "<tool_call><function={{ name }}></tool_call>": "qwen3_coder",
    "<tool_call>{{ name }}<arg_key></tool_call>": "glm4",
    "<tool_call></tool_call> <｜tool▁calls▁begin｜>": "deepseek_v3",
    "<|tool_calls_section_begin|>": "kimi_k2",
    "[TOOL_CALLS]": "mistral",
    "<|tool_call|>": "granite",
    "<|python_tag|>": "llama3_json",
    'in the format {"name": function name, "parameters": dictionary of names}': "llama3_json",
    "put it as [func_name1(params_name1=params_value1)]": "pythonic",
    "{%- set t = '<tool_calls{}>'.format(x) %}{%- set s = '<tool_sep{}>'.format(x) %}<tool_call><arg_key>": "hy_v3",
    "<tool_calls>{{ call }}<tool_call>{{ name }}<arg_key>": "hy_v4",
    "<tool_calls>[{{ call }}]</tool_calls>": "jamba",
    '<function name="x"><param name="y"> {# <tool_sep> #}': "minicpm5",
    "<|role_sep|> <|function_call|>": "gigachat3",
    "<｜DSML｜ calls>": "deepseek_v41",
    "<｜DSML｜tool_calls>": "deepseek_v4",
    "<|content_invoke_tool_json|>": "inkling",
    "to={{ name }} <atem:function_calls>": "muse",
    "<|tool_call:begin|>1<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|>": "solar_open",
    "{{ messages }}": None,
    '{"name": "f"} [f(a=1)]': None,
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_auto_chooses_by_what_the_template_writes(tokenizer, template):
    writer = Tokenizer(tokenizer.backend, template)
    name = TEMPLATES[template]
    assert choose_tools("auto", None, writer) is (None if name is None else TOOL_FORMATS[name])
    assert choose_tools("none", None, writer) is None


async def test_marks_that_are_special_tokens_are_seen(tmp_path):
    """A vocabulary like Mistral's: the text would leave them out, and no call would ever be found."""
    plain = make_tokenizer(tmp_path)
    plain.backend.add_special_tokens(["[TOOL_CALLS]", "[ARGS]"])
    tokenizer = Tokenizer(plain.backend)
    service = FrontEnd(ServerConfig(tool_parser="mistral")).add(LocalClient(saying(b"")), tokenizer, "m")
    marks = ("<|im_start|>", "[TOOL_CALLS]", "[ARGS]")
    ids = [found for mark in marks if (found := tokenizer.backend.token_to_id(mark)) is not None]
    assert len(ids) == len(marks)
    for tools, wanted in (([{"function": {"name": "f"}}], "[TOOL_CALLS][ARGS]"), (None, "")):
        ask = ChatRequest(messages=[], tools=tools)
        params = SamplingParams(**channel_fields(service, ask, channels_of(service, ask, [])))
        shown = detokenizer(tokenizer, params.hidden(tokenizer.special_ids))
        assert "".join(map(shown.feed, ids)) == wanted
        engine = TokenText(TokenBytes.of(tokenizer, tokenizer.vocab_size), params.hidden(tokenizer.special_ids))
        assert "".join(map(engine.push, ids)) == wanted


@pytest.mark.parametrize("name", [name for name, form in REASONING_FORMATS.items() if form.split and not form.harmony])
def test_the_engine_finds_the_thoughts_that_the_front_end_finds(tokenizer, name):
    config = ServerConfig(reasoning_parser=name, tool_parser="hermes")
    service = FrontEnd(config).add(LocalClient(saying(b"")), tokenizer, "m")
    form = REASONING_FORMATS[name]
    for tools in ([{"function": {"name": "add"}}], None):
        ask = ChatRequest(messages=[], tools=tools, thinking_token_budget=9)
        channels = channels_of(service, ask, [])
        thinking = channel_fields(service, ask, channels)["thinking"]
        for opening, closing in ((form.opening, form.closing), *form.also):
            for text in (f"{opening}a{CALL}b{closing}c", f"{opening}a{closing}b{opening}c", f"{opening}<tool_call>x"):
                front, engine = channels.make_splitter(), splitter_of(thinking)
                for char in text:
                    front.feed(char)
                    engine.feed(char)
                    assert front.thinking == engine.thinking


async def test_a_user_who_writes_the_marker_has_not_opened_it(tokenizer):
    config = ServerConfig(reasoning_parser="think")
    async with front_of(LocalClient(saying(b"Hello")), tokenizer, config) as front:
        message = (await front.chat(content="What does <think> do?")).json()["choices"][0]["message"]
        assert message["content"] == "Hello"


async def test_an_answer_that_skips_its_opened_thought_is_content_too(tmp_path):
    """The template opened it. What a stream has sent as a thought can't be taken back."""
    for said, fields, thought, content in (
        ("Paris.", {}, "Paris.", "Paris."),
        ("Paris <b", {}, "Paris <b", "Paris <b"),  # might have become a marker
        ("hm</think>yes", {}, "hm", "yes"),
        ("hm</think>", {}, "hm", ""),
        ("  \n", {}, "  \n", ""),
        ("Paris.", {"max_tokens": 4}, "Pari", ""),  # cut: nobody knows what would have come
        ("Paris.", {"stop": "."}, "Paris", ""),
        ("Paris." + CALL, {"tools": TOOL}, "Paris.", None),
    ):
        async with fronting(opening(tmp_path, "<think>\n"), "<think>\n" + said) as front:
            whole, streamed = await both(front, **fields)
            message = whole["message"]
            assert (message.get("reasoning_content"), message["content"]) == (thought, content)
            assert "".join(choice["delta"].get("content", "") for choice in streamed) == (content or "")
            assert "".join(choice["delta"].get("reasoning_content", "") for choice in streamed) == thought
    async with fronting(opening(tmp_path, "<think>\n"), "<think>\nParis.") as front:
        asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99, "temperature": 0}
        blocks = (await front.http.post("/v1/messages", json=asked)).json()["content"]
        assert [(block["type"], block.get("text")) for block in blocks] == [("thinking", None), ("text", "Paris.")]
        items = (await front.http.post("/v1/responses", json={"input": "hi", "temperature": 0})).json()["output"]
        assert [(item["type"], item["content"][0]["text"]) for item in items] == [
            ("reasoning", "Paris."),
            ("message", "Paris."),
        ]
