"""What transformers renders, we render; what a template must not do, it can't; and a conversation that the model
continues ends where the last message's text does. The oracle is transformers itself; docs/templates.md has real models'
templates."""

from __future__ import annotations

import json

import pytest
import transformers
from packaging.version import Version
from transformers import PreTrainedTokenizerFast

from api.harness import make_tokenizer
from tailrace.errors import ModelLoadError, RequestError
from tailrace.text.templates.chat_template import ChatTemplate
from tailrace.text.templates.program import TemplateProgram
from tailrace.text.tokenizer import Tokenizer

TEMPLATES = {
    "as it is": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "trimmed": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}",
    "without thoughts": (
        "{% for m in messages %}<|im_start|>{{ m.content.split('</think>')[-1] }}<|im_end|>{% endfor %}"
    ),
    "with a turn behind": (
        "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
    ),
}
LAST = ["Hello world", "Hello  ", "  Hello", "", "a<think>b</think>c", "é😀", "<|im_end|>", "x\n"]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("last", LAST)
def test_the_prompt_ends_with_the_last_message(tmp_path, name, last):
    make_tokenizer(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"chat_template": TEMPLATES[name]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours, theirs = Tokenizer.load(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for first in ("a", last):
        messages = [{"role": "user", "content": first}, {"role": "assistant", "content": last}]
        try:
            wanted = theirs.apply_chat_template(messages, continue_final_message=True, tokenize=False)
        except ValueError:
            with pytest.raises(RequestError, match="does not write all of the last"):
                ours.render_chat(messages, add_generation_prompt=False, unfinished=True)
            continue
        assert ours.render_chat(messages, add_generation_prompt=False, unfinished=True) == wanted
        assert messages[-1]["content"] == last


def test_a_template_that_leaves_the_last_message_out_is_said(tmp_path):
    make_tokenizer(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {
        "chat_template": "{{ messages[0].content }}"
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(RequestError, match="does not write all of the last message"):
        Tokenizer.load(tmp_path).render_chat(
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], unfinished=True
        )


@pytest.mark.parametrize("first", ["m.content", "m.content | upper", "m.content | tojson"])
def test_a_template_that_writes_the_last_message_twice_is_said(first):
    template = ChatTemplate(f"{{% for m in messages %}}{{{{ {first} }}}}/{{{{ m.content }}}}<|e|>{{% endfor %}}", {})
    for content in ("ans", [{"type": "text", "text": "ans"}]):
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
        with pytest.raises(RequestError, match=r"^continue_final_message: .* more than once") as caught:
            template.unfinished(messages, {})
        assert caught.value.param == "continue_final_message"


VALUE = {"b": ["é", 1, None, True], "a": {"<": "'"}}
SAME = [
    "{{ v | tojson }}",
    "{{ v | tojson(ensure_ascii=True) }}",
    "{{ v | tojson(ensure_ascii=False, indent=2) }}",
    "{{ v | tojson(indent=4, separators=(',', ':'), sort_keys=True) }}",
    "{{ v | tojson(True, 1) }}",
    "{{ v | tojson(indent='--') }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% set x = 1 %}{% endgeneration %}{{ x }}{% endfor %}",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}",
    "{% for m in messages %}{{ loop.index }}{{ loop.length }}{{ loop.last }}{% endfor %}",
    "{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ loop.revindex }}{{ m.content }}{% endfor %}",
    "{% for m in messages recursive %}{{ m.role if m is mapping else m }}{{ loop('xy') if m is mapping }}{% endfor %}",
    "{% for x in undefined_name %}x{% else %}none{% endfor %}",
    "{{ strftime_now('%Y') }}{{ strftime_now(format='%%') }}",
    "{% set n = namespace(a=1) %}{% for m in messages %}{% set n.a = n.a + 1 %}{% endfor %}{{ n.a }}",
    "{{ dict(a=1) }}{{ dict.fromkeys('ab', 2) }}",
    "{% macro f(x) %}<{{ x }}>{{ caller() if caller }}{% endmacro %}{{ f(1) }}{% call f(2) %}in{% endcall %}",
    "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ add_generation_prompt }}{{ tools }}{{ documents }}",
    "  {% if true %}\n  x\n  {% endif %}\n y {#- no -#} z \n",
    "{{ messages[0].content[::-1].strip().split('e') | join('-') | upper }}",
    "{{ 7 // 2 ** 2 % 3 }}{{ 'a%s' % 'b' }}{{ 'a' * 3 }}{{ [1] + [2] }}{{ 2 * 3 + 1 }}",
    "{{ messages[0].thinking }}{{ messages[1].reasoning_content }}{{ messages[1].content is defined }}",
]


@pytest.mark.skipif(Version(transformers.__version__) < Version("5.23"), reason="passes thoughts by fewer names")
@pytest.mark.parametrize("source", SAME)
def test_a_template_renders_as_in_transformers(tmp_path, source):
    make_tokenizer(tmp_path)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ours = ChatTemplate(source, theirs.special_tokens_map)
    messages = [
        {"role": "user", "content": "Hello <there>"},
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": None},
        {"role": "user", "content": "é\u2028"},
    ]
    wanted = theirs.apply_chat_template(messages, chat_template=source, tokenize=False, v=VALUE)
    options = {"tools": None, "documents": None, "add_generation_prompt": False, "v": VALUE}
    assert ours.render(messages, options) == wanted


# what a template does → what is said of it; test_template_limits.py has what takes too much
HOSTILE = {
    "{% for i in messages | map('upper') %}{% endfor %}{{ 1 / 0 }}": "ZeroDivisionError",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "RecursionError",
    "{{ ''.__class__.__mro__ }}": "access to attribute '__class__' of 'str' object is unsafe",
    "{{ cycler.__init__.__globals__ }}": "is unsafe",
    "{{ messages.append(1) }}": "'append' of 'list' object is unsafe",
    "{% set n = namespace(__x=1) %}": "a namespace takes no name that begins with an underscore",
    "{{ raise_exception('no such role') }}": "refuses them: no such role$",
    "one\n{{ nobody.knows }}": "line 2 of the template: UndefinedError: 'nobody' is undefined",
    "{{ messages[0].content + 1 }}": "line 1 of the template: TypeError",
    "{% include 'x' %}": "no loader",
    "{{ v | tojson(colour=1) }}": "unexpected keyword argument 'colour'",
}


@pytest.mark.parametrize("source", HOSTILE)
def test_what_a_template_must_not_do_is_said(source):
    with pytest.raises(RequestError, match=HOSTILE[source]) as caught:
        ChatTemplate(source, {}).render([{"role": "user", "content": "a"}], {"v": VALUE})
    assert str(caught.value).startswith("messages: the model's chat template refuses them")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("a\n{% nonsense %}", "line 2: Encountered unknown tag 'nonsense'"),
        ("{{ a", "line 1: unexpected 'end of template'|end of print statement"),
        ("{% for m in messages %}", "line 1: "),
        ("{% break %}", "'break' outside loop"),
        ("{{ a | nofilter }}", "No filter named 'nofilter'"),
        ("{% generation %}", "line 1: "),
    ],
)
def test_what_is_no_template_is_said_at_load(tmp_path, source, words):
    make_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(ModelLoadError, match=f"{tmp_path}: the chat template 'default' can't be read: .*({words})"):
        Tokenizer.load(tmp_path)


def test_a_program_knows_what_it_reads():
    program = TemplateProgram("{% for m in messages %}{{ m.role == 'developer' }}{% endfor %}{{ enable_thinking }}")
    assert program.variables == {"messages", "enable_thinking"}
    assert program.constants == {"developer"}
