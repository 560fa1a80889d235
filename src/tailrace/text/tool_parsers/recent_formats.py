"""Formats of newer model families. They are tried before the other formats.

Some of them share a marker with an older family and have more evidence.
"""

from __future__ import annotations

from tailrace.text.tool_parsers.addressed import Addressed, Headed
from tailrace.text.tool_parsers.frame import AnswerFrame
from tailrace.text.tool_parsers.horizon import Horizon
from tailrace.text.tool_parsers.sections import Sectioned
from tailrace.text.tool_parsers.tagged import Tagged
from tailrace.text.tool_parsers.tool_format import ToolFormat, json_format, list_section_markers
from tailrace.text.tool_parsers.wrapped import JsonCalls

HUNYUAN_TAGS = ("tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value")
ARG_TAGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
HY3 = Tagged(
    "<tool_calls>",
    "</tool_calls>",
    "<tool_call>NAME<tool_sep>\n",
    "</tool_call>",
    "<arg_key>KEY</arg_key>\n<arg_value>",
    "</arg_value>",
    several=True,
)
HY4 = HY3._replace(call="<tool_call>NAME\n", line="")
DOTS = Tagged(
    "<dots_function_call>",
    "</dots_function_call>",
    '<invoke name="NAME">\n',
    "</invoke>",
    '<parameter name="KEY">',
    "</parameter>",
    several=True,
)
MINICPM = Tagged('<function name="', "</function>", 'NAME">', "", '<param name="KEY">', "</param>", line="", cdata=True)
MIMO = Tagged(
    "<tool_call>",
    "</tool_call>",
    "<function=NAME>\n",
    "</function>",
    "<parameter=KEY>",
    "</parameter>",
    start="<function=",
)
IQUEST = Tagged(
    "<iquest_tool_call>",
    "</iquest_tool_call>",
    "NAME\n",
    "",
    "<arg_key>KEY</arg_key>\n<arg_value>",
    "</arg_value>",
    line=r'"\n"?',
)
IFM = Tagged(
    "<ifm|tool_calls>",
    "</ifm|tool_calls>",
    "<ifm|tool_call>NAME\n",
    "</ifm|tool_call>",
    "<ifm|arg_key>KEY</ifm|arg_key>\n<ifm|arg_value>",
    "</ifm|arg_value>",
    several=True,
)
IFM_TYPED = IFM._replace(
    parameter="<ifm|arg_key>KEY</ifm|arg_key>\n<ifm|arg_type>TYPE</ifm|arg_type>\n<ifm|arg_value>", types=("string", "")
)
ATEM = Tagged(
    "<atem:function_calls>",
    "</atem:function_calls>",
    '<atem:invoke name="NAME">\n',
    "</atem:invoke>",
    '<atem:parameter name="KEY">',
    "</atem:parameter>",
    several=True,
)
MUSE = Addressed(ATEM, " to=", "<|message|>", "<|start|>assistant", "<|eom|>", ("user", "commentary", "self"))
MUSE_FRAME = AnswerFrame(
    (*(f"{MUSE.to}{name}{MUSE.body}" for name in MUSE.others), MUSE.body), MUSE.end, MUSE.start, (MUSE.end, "<|eot|>")
)
INKLING_CALL = ("<|content_invoke_tool_json|>", "<|end_message|>")
INKLING_HEADER = "<|message_model|>"
INKLING = Headed(
    JsonCalls((INKLING_CALL,), head='{"name": "NAME", "args": ', listed=False, apart=True),
    *INKLING_CALL,
    INKLING_HEADER,
)
INKLING_FRAME = AnswerFrame(
    ("<|content_text|>", "<|content_thinking|>"),
    INKLING_CALL[1],
    INKLING_HEADER,
    ("<|content_model_end_sampling|>",),
    named=True,
)
SOLAR = Sectioned(
    "<|tool_calls|>",
    "<|calls|>",
    "<|tool_call:begin|>",
    "<|tool_call:args|>",
    "<|tool_call:end|>",
    name="<|tool_call:name|>",
)


def make_plamo_marker(name: str) -> str:
    """Return one of PLaMo's markers."""
    return f"<|plamo:{name}:plamo|>"


PLAMO = Sectioned(
    make_plamo_marker("begin_tool_requests"),
    make_plamo_marker("end_tool_requests"),
    make_plamo_marker("begin_tool_request") + make_plamo_marker("begin_tool_name"),
    f"{make_plamo_marker('end_tool_name')}{make_plamo_marker('begin_tool_arguments')}<|plamo:constrain|>json<|plamo:msg|>",
    make_plamo_marker("end_tool_arguments") + make_plamo_marker("end_tool_request"),
)


def make_dsml_tags(word: str, block: str, space: str = "") -> Tagged:
    """Return tags with a word between bars, as in DeepSeek's format.

    `block`: the name of the outer pair. `space`: the text after the bar.
    """
    return Tagged(
        f"<｜{word}｜{space}{block}>",
        f"</｜{word}｜{space}{block}>",
        f'<｜{word}｜{space}invoke name="NAME">\n',
        f"</｜{word}｜{space}invoke>",
        f'<｜{word}｜{space}parameter name="KEY" string="TYPE">',
        f"</｜{word}｜{space}parameter>",
        several=True,
        types=("true", '"false"'),
    )


V41, GCML = make_dsml_tags("DSML", "calls", " "), make_dsml_tags("GCML", "tool_calls")

RECENT: dict[str, ToolFormat] = {
    "hy_v3": ToolFormat(
        HY3,
        ((HY3.opening, HY3.closing),),
        (("<tool_calls>", "<tool_sep>"), ("<tool_calls{}>", "<tool_sep{}>")),
        "Hunyuan 3",
        inner=("<tool_call>", "</tool_call>", "<tool_sep>", *ARG_TAGS),
        suffixed=HUNYUAN_TAGS,
        vllm=("hy_v3",),
        sglang=("hunyuan",),
    ),
    "hy_v4": ToolFormat(
        HY4,
        ((HY4.opening, HY4.closing),),
        (("<tool_calls>", "<tool_call>", "<arg_key>"), ("<tool_calls{}>", "<arg_key{}>")),
        "Hunyuan 4",
        inner=("<tool_call>", "</tool_call>", *ARG_TAGS),
        suffixed=HUNYUAN_TAGS,
        vllm=("hy_v4",),
    ),
    "dots": ToolFormat(
        DOTS, ((DOTS.opening, DOTS.closing),), ((DOTS.opening,),), "dots", vllm=("dots",), sglang=("dots",)
    ),
    "minicpm5": ToolFormat(
        MINICPM,
        ((MINICPM.opening, MINICPM.closing),),
        ((MINICPM.opening, '<param name="'),),
        "MiniCPM 5",
        vllm=("minicpm5",),
        sglang=("minicpm5",),
    ),
    "mimo": ToolFormat(
        MIMO,
        ((MIMO.opening, MIMO.closing), (MIMO.start, MIMO.closing)),
        (),
        "MiMo (texts as they are, line breaks at their ends included)",
        vllm=("mimo",),
        sglang=("mimo",),
    ),
    "iquest_q1": ToolFormat(
        IQUEST,
        ((IQUEST.opening, IQUEST.closing),),
        ((IQUEST.opening,),),
        "IQuest Q1",
        inner=ARG_TAGS,
        sglang=("iquest_q1",),
    ),
    "k2_horizon": ToolFormat(
        Horizon(IFM, IFM_TYPED, "<ifm|tool_call>"),
        ((IFM.opening, IFM.closing), ("<ifm|tool_call>", IFM.closing)),
        (("<ifm|tool_call>",),),
        "K2 Horizon",
        inner=tuple(
            f"<{end}ifm|{name}>" for name in ("tool_call", "arg_key", "arg_type", "arg_value") for end in ("", "/")
        ),
        vllm=("k2_horizon",),
        sglang=("k2_horizon",),
    ),
    "muse": ToolFormat(
        MUSE,
        (
            (MUSE.to, MUSE.end),
            (MUSE.start + MUSE.to, MUSE.end),
            (ATEM.opening, ATEM.closing),
        ),
        ((ATEM.opening,),),
        "Muse Glimmer, Muse Spark",
        inner=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
        vllm=("muse", "muse_glimmer", "musespark1x"),
        sglang=("muse",),
        frame=MUSE_FRAME,
    ),
    "inkling": ToolFormat(
        INKLING,
        (INKLING_CALL, (INKLING_HEADER, INKLING_CALL[1])),
        ((INKLING_CALL[0],),),
        "Inkling",
        header=INKLING_HEADER,
        vllm=("inkling",),
        sglang=("inkling",),
        frame=INKLING_FRAME,
    ),
    "gigachat35": ToolFormat(
        GCML, ((GCML.opening, GCML.closing),), ((GCML.opening,), ("｜GCML｜",)), "GigaChat 3.5", sglang=("gigachat35",)
    ),
    "gigachat3": ToolFormat(
        *json_format(
            ("<|function_call|>", None),
            ("<|message_sep|>\n\nfunction call<|role_sep|>\n", None),
            ("function call<|role_sep|>\n", None),
            listed=False,
            between="; ",
        ),
        (("<|function_call|>", "<|role_sep|>"), ("'function call'", "<|role_sep|>")),
        "GigaChat 3, 3.1",
        inner=("<|role_sep|>", "<|message_sep|>"),
        vllm=("gigachat3",),
        sglang=("gigachat3",),
    ),
    "deepseek_v41": ToolFormat(
        V41,
        ((V41.opening, V41.closing),),
        ((V41.opening,), ("｜DSML｜", " calls>")),
        "DeepSeek V4.1",
        inner=("｜DSML｜",),
        vllm=("deepseek_v41",),
        sglang=("deepseekv41",),
    ),
    "plamo3": ToolFormat(
        PLAMO,
        list_section_markers(PLAMO)[0],
        ((PLAMO.opening,),),
        "PLaMo 3",
        inner=list_section_markers(PLAMO)[1],
        vllm=("plamo3",),
    ),
    "solar_open": ToolFormat(
        SOLAR,
        list_section_markers(SOLAR)[0],
        ((SOLAR.begin, SOLAR.separator),),
        "Solar Open",
        inner=(*list_section_markers(SOLAR)[1], "<|tool_call:name|>"),
        also=("solar_open2",),
    ),
    "granite_20b": ToolFormat(
        *json_format(("<function_call>", None), listed=False, apart=True, line=" ", between=" "),
        (),
        "Granite 20B Function Calling",
        vllm=("granite-20b-fc",),
    ),
}
