"""Table of the ways in which open models write tool calls.

Each format declares its shape, its markers, evidence of models that use it, and its names. To add a format of a known
shape, add an entry here and examples in tests/tool_examples.py. See docs/add/tool-format.md.

(More than 300 lines: it is one table.)
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.text.tool_parsers.frame import AnswerFrame
from tailrace.text.tool_parsers.pythonic import Pythonic
from tailrace.text.tool_parsers.recent_formats import RECENT
from tailrace.text.tool_parsers.sections import Sectioned
from tailrace.text.tool_parsers.tag_tree import TagTree
from tailrace.text.tool_parsers.tagged import InChannels, Tagged
from tailrace.text.tool_parsers.tool_format import ToolFormat, json_format, list_section_markers
from tailrace.text.tool_parsers.trees import Gemma
from tailrace.text.tool_parsers.wrapped import JsonCalls, Mistral

__all__ = ["ALIASES", "TOOL_FORMATS", "ToolFormat", "iter_peer_names"]

TAGS = ("<tool_call>", "</tool_call>")
LONGCAT = ("<longcat_tool_call>", "</longcat_tool_call>")
ARG_TAGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
DSML = "｜DSML｜"
STEP_BLOCK = ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>")
STEP = ("<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>")
M3 = "]<]minimax[>["

QWEN = Tagged(
    *TAGS, "<function=NAME>\n", "</function>", "<parameter=KEY>", "</parameter>", own_line=True, start="<function="
)
GLM = Tagged(*TAGS, "NAME\n", "", "<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>", line=r'"\n"?')
SEED = QWEN._replace(opening="<seed:tool_call>", closing="</seed:tool_call>", own_line=False)
MINIMAX = Tagged(
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    '<invoke name="NAME">\n',
    "</invoke>",
    '<parameter name="KEY">',
    "</parameter>",
    several=True,
)
V32 = Tagged(
    f"<{DSML}function_calls>",
    f"</{DSML}function_calls>",
    f'<{DSML}invoke name="NAME">\n',
    f"</{DSML}invoke>",
    f'<{DSML}parameter name="KEY" string="TYPE">',
    f"</{DSML}parameter>",
    several=True,
    types=("true", '"false"'),
)
V4 = V32._replace(opening=f"<{DSML}tool_calls>", closing=f"</{DSML}tool_calls>")
STEP3 = Tagged(
    *STEP_BLOCK,
    f'{STEP[0]}function{STEP[1]}<steptml:invoke name="NAME">\n',
    f"</steptml:invoke>{STEP[2]}",
    '<steptml:parameter name="KEY">',
    "</steptml:parameter>",
    several=True,
)
K3 = Tagged(
    "<|open|>tools<|sep|>",
    "<|close|>tools<|sep|>",
    '<|open|>call tool="NAME" index="INDEX"<|sep|>',
    "<|close|>call<|sep|>",
    '<|open|>argument key="KEY" type="TYPE"<|sep|>',
    "<|close|>argument<|sep|>",
    several=True,
    types=("string", '"number" | "boolean" | "object" | "array" | "null"'),
    line="",
)
K3_CONTENT = ("<|open|>response<|sep|>", "<|close|>response<|sep|>")
K3_FRAME = AnswerFrame((K3_CONTENT[0],), K3_CONTENT[1], "", ("<|close|>message<|sep|>",))
K2 = Sectioned(
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    numbered=True,
)
V3 = Sectioned(
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    fence=True,
)


# Formats are tried in this order. If formats share a marker, the format with more evidence comes first. Formats without
# markers come last.
TOOL_FORMATS: dict[str, ToolFormat] = {
    **RECENT,
    "qwen3_coder": ToolFormat(
        QWEN,
        (TAGS, ("<function=", TAGS[1])),
        ((TAGS[0], "<function="),),
        "Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5",
        vllm=("qwen3_coder", "qwen3_xml", "step3p5", "step5"),
        sglang=("qwen3_coder", "step3p5", "nanbeige"),
    ),
    "glm4": ToolFormat(
        GLM,
        (TAGS,),
        ((TAGS[0], "<arg_key>"),),
        "GLM-4.5 to 4.7, Ling 3, Laguna, Spark 2.5",
        inner=ARG_TAGS,
        vllm=("glm45", "glm47", "ling3", "poolside_v1"),
        sglang=("glm", "glm45", "glm47", "ling3", "poolside_v1", "spark25"),
    ),
    "gemma4": ToolFormat(
        Gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
        (("<|tool_call>", "<tool_call|>"),),
        (("<|tool_call>", "<tool_call|>"),),
        "Gemma 4",
        inner=('<|"|>',),
        vllm=("gemma4",),
        sglang=("gemma4",),
    ),
    "functiongemma": ToolFormat(
        Gemma("<start_function_call>", "<end_function_call>", "<escape>"),
        (("<start_function_call>", "<end_function_call>"),),
        (("<start_function_call>",),),
        "FunctionGemma",
        inner=("<escape>",),
        vllm=("functiongemma",),
    ),
    "deepseek_v3": ToolFormat(
        V3,
        list_section_markers(V3)[0],
        ((V3.opening,),),
        "DeepSeek V3, R1, V3.1",
        inner=list_section_markers(V3)[1],
        vllm=("deepseek_v3", "deepseek_v31"),
        sglang=("deepseekv3", "deepseekv31"),
    ),
    "deepseek_v32": ToolFormat(
        V32,
        ((V32.opening, V32.closing),),
        ((V32.opening,), (f"<{DSML}", "function_calls>"), (DSML, "function_calls>")),
        "DeepSeek V3.2",
        inner=(DSML,),
        vllm=("deepseek_v32",),
        sglang=("deepseekv32",),
    ),
    "deepseek_v4": ToolFormat(
        V4,
        ((V4.opening, V4.closing),),
        ((V4.opening,), (DSML,)),
        "DeepSeek V4",
        inner=(DSML,),
        vllm=("deepseek_v4",),
        sglang=("deepseekv4",),
    ),
    "minimax_m2": ToolFormat(
        MINIMAX,
        ((MINIMAX.opening, MINIMAX.closing),),
        ((MINIMAX.opening,),),
        "MiniMax M2, M2.1",
        vllm=("minimax_m2",),
        sglang=("minimax-m2",),
    ),
    "minimax_m3": ToolFormat(
        TagTree(M3, f"{M3}<tool_call>", f"{M3}</tool_call>"),
        ((f"{M3}<tool_call>", f"{M3}</tool_call>"),),
        ((M3,),),
        "MiniMax M3",
        inner=(M3,),
        vllm=("minimax_m3",),
        sglang=("minimax-m3",),
    ),
    "kimi_k2": ToolFormat(
        K2,
        list_section_markers(K2)[0],
        ((K2.opening,),),
        "Kimi K2",
        inner=list_section_markers(K2)[1],
        vllm=("kimi_k2",),
        sglang=("kimi_k2",),
    ),
    "kimi_k3": ToolFormat(
        InChannels(K3, K3_CONTENT, K3_FRAME.last[0]),
        ((K3.opening, K3.closing), K3_CONTENT, (K3_FRAME.last[0], None)),
        ((K3.opening,), ("<|open|>", "<|close|>", "<|sep|>")),
        "Kimi K3",
        inner=("<|open|>", "<|close|>", "<|sep|>"),
        vllm=("kimi_k3",),
        sglang=("kimi_k3",),
        frame=K3_FRAME,
    ),
    "seed_oss": ToolFormat(SEED, ((SEED.opening, SEED.closing),), ((SEED.opening,),), "Seed-OSS", vllm=("seed_oss",)),
    "step3": ToolFormat(
        STEP3,
        ((STEP3.opening, STEP3.closing),),
        ((STEP3.opening,),),
        "Step 3",
        inner=STEP,
        vllm=("step3",),
        sglang=("step3",),
    ),
    "nemotron": ToolFormat(
        *json_format(("<TOOLCALL>", "</TOOLCALL>")), (("<TOOLCALL>",),), "Nemotron Nano 2, Llama Nemotron"
    ),
    "longcat": ToolFormat(
        *json_format(LONGCAT, listed=False, apart=True, line="\n", between="\n"),
        (("<longcat_tool_call>",),),
        "LongCat Flash",
        vllm=("longcat",),
    ),
    "hermes": ToolFormat(
        *json_format(TAGS, listed=False, apart=True, line="\n", between="\n"),
        (TAGS,),
        "Hermes, Qwen2.5, Qwen3, SmolLM3, Granite 4, Ernie 4.5, Trinity",
        vllm=("hermes", "qwen3_json", "granite4", "ernie45"),
        sglang=("hermes", "qwen", "qwen25", "trinity"),
    ),
    "mistral": ToolFormat(
        Mistral(),
        (("[TOOL_CALLS]", None),),
        (("[TOOL_CALLS]",),),
        "Mistral, Ministral, Devstral",
        inner=("[CALL_ID]", "[ARGS]"),
        vllm=("mistral",),
        sglang=("mistral",),
    ),
    "phi4_mini_json": ToolFormat(
        *json_format(("functools[", None), ("<|tool_call|>", "<|/tool_call|>")),
        (("<|tool_call|>", "<|/tool_call|>"), ("functools[",)),
        "Phi-4-mini",
        vllm=("phi4_mini_json",),
    ),
    "granite": ToolFormat(
        *json_format(("<|tool_call|>", None), TAGS), (("<|tool_call|>",),), "Granite 3", vllm=("granite",)
    ),
    "jamba": ToolFormat(
        *json_format(("<tool_calls>", "</tool_calls>")),
        (("<tool_calls>",),),
        "Jamba, Hunyuan A13B",
        vllm=("jamba", "hunyuan_a13b"),
    ),
    "command": ToolFormat(
        *json_format(
            ("<|START_ACTION|>", "<|END_ACTION|>"),
            ("Action:\n```json", "```"),
            ("Action: ```json", "```"),
            head='{"tool_call_id": "ID", "tool_name": "NAME", "parameters": ',
        ),
        (("<|START_ACTION|>",), ("Action:", "```json", "tool_name")),
        "Command R, R7B, A",
        vllm=("cohere_command3", "cohere_command4"),
        sglang=("cohere_command4",),
    ),
    "internlm": ToolFormat(
        *json_format(
            ("<|action_start|><|plugin|>", "<|action_end|>"),
            ("<|action_start|> <|plugin|>", "<|action_end|>"),
            head='{"name": "NAME", "parameters": ',
            listed=False,
            apart=True,
            between="\n",
        ),
        (("<|action_start|>", "<|plugin|>"),),
        "InternLM 2 and 3, Intern-S1",
        inner=("<|action_start|>", "<|plugin|>"),
        vllm=("internlm",),
        sglang=("interns1",),
    ),
    "apertus": ToolFormat(
        *json_format(("<|tools_prefix|>", "<|tools_suffix|>"), head='{"NAME": ', keyed=True),
        (("<|tools_prefix|>",),),
        "Apertus",
        vllm=("apertus",),
        sglang=("apertus2509",),
    ),
    "lfm2": ToolFormat(
        Pythonic((("<|tool_call_start|>", "<|tool_call_end|>"),)),
        (("<|tool_call_start|>", "<|tool_call_end|>"),),
        (("<|tool_call_start|>",),),
        "LFM2, LFM2.5",
        vllm=("lfm2",),
        sglang=("lfm2",),
    ),
    "olmo3": ToolFormat(
        Pythonic((("<function_calls>", "</function_calls>"),), listed=False),
        (("<function_calls>", "</function_calls>"),),
        (("<function_calls>",),),
        "Olmo 3",
        vllm=("olmo3",),
    ),
    "llama3_json": ToolFormat(
        JsonCalls(head='{"name": "NAME", "parameters": ', listed=False, between="; "),
        (("<|python_tag|>", None),),
        (("<|python_tag|>",), ('{"name": function name, "parameters": ',)),
        "Llama 3.1 to 3.3, Llama 4",
        bare="{",
        vllm=("llama3_json", "llama4_json"),
        sglang=("llama3",),
    ),
    "xlam": ToolFormat(
        JsonCalls(weak=("```json",)),
        (("```json", "```"),),
        (),
        "xLAM 1 and 2",
        bare="[",
        vllm=("xlam",),
    ),
    "pythonic": ToolFormat(
        Pythonic(),
        (("<|python_start|>", "<|python_end|>"),),
        (("[func_name1(",),),
        "ToolACE, Llama 3.2, Llama 4",
        bare="[",
        vllm=("pythonic", "llama4_pythonic"),
        sglang=("pythonic",),
    ),
}


def iter_peer_names(format: ToolFormat) -> Iterator[str]:
    """Yield the peers' names of the format, which users know."""
    yield from (*format.vllm, *format.sglang, *format.also)


# other names under which a format can be chosen
ALIASES = {
    other: name for name, one in TOOL_FORMATS.items() for other in iter_peer_names(one) if other not in TOOL_FORMATS
}
