"""A template can take neither the processor, nor the memory, nor the process that renders it: each attempt ends in one
sentence, and the next conversation is rendered. What the sandbox of a template lacks, its process lacks too."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from api.harness import make_tokenizer
from tailrace.base import framed_pipes
from tailrace.base.child_process import ChildLostError, ChildProcess
from tailrace.errors import EngineError, MachineBusyError, ModelLoadError, RequestError
from tailrace.text.reasoning_probe import find_reasoning
from tailrace.text.templates import processes
from tailrace.text.templates.chat_template import ChatTemplate
from tailrace.text.templates.environment import CompiledTemplate, describe_failure, make_environment
from tailrace.text.templates.processes import SHARED, TemplateProcess
from tailrace.text.templates.program import DEFAULT_LIMITS, REFUSES, TemplateLimitError, TemplateLimits, TemplateProgram
from tailrace.text.templates.worker import GROWN, TemplateJob, TemplateReply, is_last, load_modules
from tailrace.text.tokenizer import Tokenizer

LOW = TemplateLimits(cpu_s=0.2, memory_mib=64)
HUGE = {"n": 10**9, "m": 10**7}  # a width; the length of a list
DOUBLED = "{{% set a = namespace(v={}) %}}{{% for i in range(99) %}}{{% set a.v = a.v {} a.v %}}{{% endfor %}}"
BOMBS = [
    "{{ lipsum(n=n) }}",
    "{{ 'x' * n }}",
    "{{ [0] * n }}",
    "{{ 'x'.center(n) }}",
    "{{ 'x'.ljust(n) }}",
    "{{ 'x'.rjust(n) }}",
    "{{ 'x'.zfill(n) }}",
    "{{ '\t'.expandtabs(n) }}",
    "{{ 'x' | center(n) }}",
    "{{ 'x\ny' | indent(n) }}",
    "{% filter center(n) %}x{% endfilter %}",
    "{{ '%*d' % (n, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '%(a)1000000000s' % {'a': n} }}",
    "{{ '{:>{}}'.format(1, n) }}",
    "{{ '{:>1000000000}'.format(n) }}",
    "{{ ('%s' * m) | format(*([1] * m)) }}",
    "{{ ('x' * m) | replace('x', 'y' * m) }}",
    "{{ ('x' * m).replace('', 'y' * m) }}",
    "{{ ('x' * m).join(['y'] * m) }}",
    "{{ (['x'] * m) | join('y' * m) }}",
    "{{ ('x' * m).encode('utf-16') * m }}",
    "{{ ('x ' * m).split() | length }}",
    "{{ ('x ' * m) | wordwrap(1) }}",
    "{{ ('www.a.de ' * m) | urlize }}",
    "{{ ('<' * m) | striptags }}",
    "{{ ('<' * m) | escape ~ ('<' * m) | escape }}",
    "{{ ([[]] * m) | pprint }}",
    "{{ [1] | batch(n, 'x') | list }}",
    "{{ [1] | slice(n) | list }}",
    "{{ ([3, 1] * m) | sort }}",
    "{{ ([[1]] * m) | sum(start=[]) }}",
    "{{ [1, [2]] | tojson(indent=n) }}",
    "{{ {'a': 1} | tojson(indent='x' * n) }}",
    "{{ dict.fromkeys(('x' * m).split('y') * n) }}",
    "{{ cycler(*([1] * m)).next() }}",
    "{{ joiner('x' * n)() }}",
    "{{ strftime_now('%A' * m) }}",
    "{{ n ** n }}",
    "{{ 1.5 | round(n, 'ceil') }}",
    DOUBLED.format("'x'", "~"),
    DOUBLED.format("'x'", "+"),
    DOUBLED.format("[0]", "+"),
    DOUBLED.format("n", "*"),
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
    "{% set x %}{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}{% endset %}",
    "{% for i in range(99999) %}{{ range(99999) | map('string') | select('in', 'x') | list }}{% endfor %}",
    "{% for i in range(99999) %}{{ loop.cycle(*(range(99999) | list)) }}{% endfor %}",
    "{% for i in range(999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "{% macro f(k) %}{% if k %}{{ f(k - 1) }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('xx') }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ range(n) }}",
    "{{ 'x' * (m * 2) }}",
]
EXCEEDS = r"(takes more than (0\.2 s of processor time|64 MiB of memory)|writes more than \d+ bytes)"
FAILS = rf"messages: the model's chat template ({EXCEEDS}|refuses them: .+)"
HONEST = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
ASK = [{"role": "user", "content": "Hello"}]


def render(source: str, values: dict[str, Any], limits: TemplateLimits = DEFAULT_LIMITS) -> str:
    program = TemplateProgram(source, limits=limits)
    program.end_load()
    return program.run(values)


def check_others() -> None:
    """The processes answer other conversations."""
    assert render(HONEST, {"messages": ASK}) == "<user>Hello"


def test_there_are_enough_bombs():
    assert len(set(BOMBS)) > 50


@pytest.mark.few(12)
@pytest.mark.parametrize("source", BOMBS)
def test_a_conversation_that_takes_too_much_ends_in_one_sentence(source):
    with pytest.raises(RequestError, match=rf"^{FAILS}$") as caught:
        render("{% if n %}" + source + "{% endif %}", HUGE, LOW)
    assert caught.value.param == "messages"
    check_others()


@pytest.mark.few(12)
@pytest.mark.parametrize("source", BOMBS)
def test_a_template_that_takes_too_much_is_not_loaded(source):
    """A template that refuses every conversation may be loaded."""
    source = "".join(f"{{% set {name} = {value} %}}" for name, value in HUGE.items()) + source
    with pytest.raises(
        (ModelLoadError, RequestError), match=rf"^(the template of m can't be used: it {EXCEEDS}|{FAILS})$"
    ):
        ChatTemplate(source, {}, "the template of m", LOW).render(ASK, {})
    check_others()


DEEP = 200_000
SOURCES = {
    "constant width": "{{ 'x' | center(10 ** 10) ~ ['x' * 10 ** 10] }}",
    "constant power": "{{ 9 ** (9 ** 9) }}",
    "parentheses": "{{ " + "(" * DEEP + "1" + ")" * DEEP + " }}",
    "lists": "{{ " + "[" * DEEP + "]" * DEEP + " }}",
    "attributes": "{{ a" + ".b" * DEEP + " }}",
    "minus": "{{ " + "- " * DEEP + "1 }}",
    "not": "{{ " + "not " * DEEP + "1 }}",
    "sum": "{{ 1" + " + a" * DEEP + " }}",
    "filters": "{{ a" + " | e" * DEEP + " }}",
    "conditions": "{% if a %}" * DEEP + "{% endif %}" * DEEP,
    "loops": "{% for a in b %}" * 400 + "{% endfor %}" * 400,
    "macros": "{% macro a() %}" * DEEP + "{% endmacro %}" * DEEP,
    "length": "{{ a }}" * DEEP,
    "names": "".join(f"{{{{ a{i} }}}}" for i in range(DEEP)),
    "blocks": "".join(f"{{% block a{i} %}}{{% endblock %}}" for i in range(DEEP)),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", SOURCES)
def test_a_source_that_takes_too_much_is_not_loaded(name):
    with pytest.raises(ModelLoadError, match=rf"^the chat template can't be (used: it {EXCEEDS}|read: .+)$"):
        ChatTemplate(SOURCES[name], {}, limits=LOW).render(ASK, {})
    check_others()


@pytest.fixture
def asked(monkeypatch) -> list[float]:
    """The times that jobs may take. Each job reports that it took three seconds."""
    found: list[float] = []
    real = SHARED.run

    def run(job: TemplateJob, source: str) -> TemplateReply:
        found.append(job.cpu_s)
        return msgspec.structs.replace(real(job, source), cpu_s=3.0)

    monkeypatch.setattr(SHARED, "run", run)
    return found


def test_all_work_at_load_shares_the_time(asked):
    """Each conversation of the load stays within the time, and all together do not."""
    with pytest.raises(ModelLoadError, match=r"it takes more than 10 s of processor time$"):
        ChatTemplate(HONEST, {})
    assert asked == [10.0, 7.0, 4.0, 1.0]


def test_after_the_load_each_conversation_has_all_of_the_time(asked):
    program = TemplateProgram(HONEST)
    program.end_load()
    for _ in range(9):
        program.run({"messages": ASK})
    assert asked == [10.0] * 10


def test_a_text_may_be_eight_times_its_messages():
    """JSON that is written as JSON again has twice as many escapes."""
    content = '"\\é' * 2_000_000
    wanted = CompiledTemplate(source := "{{ messages | tojson(ensure_ascii=True) }}").render(values := of(content))
    assert len(wanted) > 1.5 * len(content.encode())
    assert render(source, values) == wanted
    with pytest.raises(TemplateLimitError, match="writes more than"):
        render("{% for i in range(9) %}{{ messages[0].content }}{% endfor %}", values)


def test_messages_that_are_one_object_count_each_time():
    values = {"messages": [{"role": "user", "content": "x" * 10_000}] * 500}
    assert render("{% for m in messages %}{{ m.content }}{% endfor %}", values) == "x" * 5_000_000


def of(content: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


# ---- values, and names of Jinja


class Colour(StrEnum):
    RED = "red"


VALUES: list[tuple[Any, Any]] = [
    (10**40, 10**40),
    (-(2**63), -(2**63)),
    (1.5, 1.5),
    (float("inf"), float("inf")),
    (True, True),
    (None, None),
    ("\ud800 é \0 😀", "\ud800 é \0 😀"),
    ({"a": [{"b": ()}]}, {"a": [{"b": ()}]}),
    ({1: 2, None: 3}, {1: 2, None: 3}),
    (Colour.RED, "red"),
    (OrderedDict(a=Colour.RED), {"a": "red"}),
]


@pytest.mark.parametrize(("value", "plain"), VALUES)
def test_a_value_reaches_the_template_as_it_is(value, plain):
    source = "{{ [v] }}{{ v is mapping }}{{ v is string }}{{ v }}"
    assert render(source, {"v": value}) == CompiledTemplate(source).render({"v": plain})


def test_a_value_that_json_lacks_is_named():
    with pytest.raises(RequestError, match=r"^messages: a chat template takes values of JSON alone: .*object"):
        render("{{ v }}", {"v": object()})


ADDRESS = re.compile("0x[0-9a-f]+")


@pytest.mark.parametrize("name", sorted(set(make_environment().filters) - {"random"}))
def test_each_filter_works_without_files(name):
    """A module that a filter imports when it is first used must have been imported before."""
    for value in ("'<a> b\nwww.c.de'", "[3, 1]", "{'a': 1}", "1.5"):
        source, outcomes = f"{{{{ {value} | {name} }}}}", []
        for run in (lambda source: CompiledTemplate(source).render({}), lambda source: render(source, {})):
            try:
                outcomes.append(ADDRESS.sub("", run(source)))
            except RequestError as error:
                outcomes.append(str(error).removeprefix(REFUSES))
            except Exception as error:
                outcomes.append(describe_failure(error))
        assert outcomes[0] == outcomes[1]


ENCODINGS = ("utf-8", "ascii", "latin-1", "cp1252", "utf-16", "utf-32-be", "idna", "punycode", "unicode_escape")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_usual_encodings_work_without_files(encoding):
    source = f"{{{{ 'a'.encode('{encoding}') }}}}"
    assert render(source, {}) == CompiledTemplate(source).render({})


def test_a_template_is_compiled_without_a_search_for_modules(monkeypatch):
    """A search lists the folders that have changed, as pip changes them. The process can list none."""
    load_modules()
    monkeypatch.delitem(sys.modules, "tokenizers")  # the process has not imported it
    searched = []
    finder = SimpleNamespace(find_spec=lambda name, *_: searched.append(name))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert CompiledTemplate("{{ [a] | tojson }}").render({"a": 1}) == "[1]"
    assert not searched


# ---- the process


@pytest.fixture
def process(monkeypatch):
    """A process that no other test uses."""
    own = processes.TemplateProcesses()
    monkeypatch.setattr("tailrace.text.templates.program.SHARED", own)
    check_others()
    yield own
    own.close()


def child_of(own: processes.TemplateProcesses) -> ChildProcess:
    child = own._idle[-1]._child
    assert child is not None
    return child


def test_a_process_that_is_killed_while_it_waits_is_replaced(process):
    before = child_of(process)
    os.kill(before.pid, signal.SIGKILL)
    before.find_signal()
    check_others()
    assert child_of(process).pid != before.pid


@pytest.mark.parametrize("times", [1, 2])
def test_a_conversation_whose_process_is_killed_from_outside_is_rendered_once_more(process, monkeypatch, times):
    real, left = ChildProcess.receive, [times]

    def receive(child, *args):
        if left[0]:
            left[0] -= 1
            child.kill()
            raise ChildLostError(timeout=False)
        return real(child, *args)

    program = TemplateProgram(HONEST)
    monkeypatch.setattr(ChildProcess, "receive", receive)
    if times == 1:
        assert program.run({"messages": ASK}) == "<user>Hello"
    else:
        with pytest.raises(EngineError, match="was killed from outside"):
            program.run({"messages": ASK})
    check_others()


@pytest.mark.parametrize("used_s", [0.0, 10.0])
def test_a_process_that_does_not_answer_is_replaced(process, monkeypatch, used_s):
    """The machine has no time for it, or its template has left the sandbox and runs without end."""
    monkeypatch.setattr(processes, "WAIT_S", 0.2)
    program = TemplateProgram(HONEST, limits=TemplateLimits(cpu_s=0.01))
    program.end_load()
    before = child_of(process).pid
    os.kill(before, signal.SIGSTOP)
    if used_s:
        times = iter([1.0, 1.0 + used_s])
        monkeypatch.setattr(processes, "read_cpu_s", lambda pid: next(times))
    error, words = (TemplateLimitError, "takes more than") if used_s else (MachineBusyError, "machine is too busy")
    with pytest.raises(error, match=words):
        program.run({"messages": ASK})
    monkeypatch.undo()
    check_others()
    assert not Path(f"/proc/{before}").exists()


@pytest.mark.parametrize("answer", [b"nonsense", b"\x91\xa4gone", b""])
def test_a_process_that_answers_nonsense_is_replaced(process, monkeypatch, answer):
    real, left = ChildProcess.receive, [answer]
    monkeypatch.setattr(ChildProcess, "receive", lambda child, *args: left.pop() if left else real(child, *args))
    with pytest.raises(ModelLoadError, match="it ends the process that renders it"):
        TemplateProgram(HONEST)
    check_others()


def test_an_answer_without_end_is_not_read(process, monkeypatch):
    monkeypatch.setattr(framed_pipes, "read_exactly", lambda receive, size: b"\xff" * size)
    with pytest.raises(ModelLoadError, match="it ends the process that renders it"):
        TemplateProgram(HONEST)


def test_a_process_that_has_grown_is_replaced(process):
    """The pieces of a text are small, so the system does not get the whole heap back."""
    held = [TemplateReply("done"), TemplateReply("memory")]
    assert [is_last(reply, 0) for reply in held] == [False, True]
    assert [is_last(reply, GROWN + 1) for reply in held] == [True, True]
    before = child_of(process).pid
    with pytest.raises(TemplateLimitError, match="MiB of memory"):
        render("{{ 'x' * n }}", HUGE)
    check_others()
    assert child_of(process).pid != before


def test_the_process_has_no_secrets_of_the_server(monkeypatch):
    monkeypatch.setenv("TAILRACE_SERVER_API_KEYS", "secret")
    process = TemplateProcess()
    own = processes.TemplateProcesses()
    own._idle = [process]
    monkeypatch.setattr("tailrace.text.templates.program.SHARED", own)
    check_others()
    try:
        pid = child_of(own).pid
        assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
        files = sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
        assert files == [0, 1, 2, 3, 4]  # stdin, nothing twice, replies, its sizes
        limits = Path(f"/proc/{pid}/limits").read_text()
        held = {line[:26].strip(): line[26:].split()[:2] for line in limits.splitlines()}
        assert held["Max open files"] == ["5", "5"]
        assert held["Max file size"] == ["0", "0"]
        assert held["Max core file size"] == ["0", "0"]
        assert held["Max processes"] == ["0", "0"]
    finally:
        own.close()


ESCAPED = """
import os, socket, sys
from tailrace.text.templates.worker import forbid_resources, load_modules
load_modules()
forbid_resources()
for attempt in (lambda: open("/etc/passwd"), lambda: open("x", "w"), socket.socket, os.pipe):
    try:
        attempt()
    except OSError as error:
        print(error.errno)
"""


def test_code_outside_of_the_sandbox_opens_no_file_and_no_connection(tmp_path):
    done = subprocess.run([sys.executable, "-c", ESCAPED], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["24"] * 4  # EMFILE
    assert not list(tmp_path.iterdir())


FORKED = """
import os
from tailrace.text.templates.processes import SHARED
from tailrace.text.templates.program import TemplateProgram
program = TemplateProgram("{{ v }}")
program.end_load()
before = SHARED._idle[-1]._child.pid
held = [SHARED._idle.pop() for _ in range(len(SHARED._idle))]  # as while threads use them
child = os.fork()
SHARED._idle += reversed(held) if child else []
for i in range(200):
    assert program.run({"v": (mine := f"{os.getpid()}-{i}")}) == mine
assert (SHARED._idle[-1]._child.pid == before) == (child != 0)
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert program.run({"v": "a"}) == "a"
"""


def test_a_forked_process_has_processes_of_its_own():
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED], check=True)


KILLED = """
import os
from tailrace.text.templates.processes import SHARED
from tailrace.text.templates.program import TemplateProgram
TemplateProgram("{{ v }}")
print(SHARED._idle[-1]._child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_no_process_outlives_the_one_that_needs_it():
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    assert done.returncode == -9
    while Path(f"/proc/{done.stdout.strip()}/cmdline").exists():  # ends by itself, or the test hangs
        time.sleep(0.01)


def test_modules_in_the_working_directory_are_not_found(tmp_path):
    """`tailrace serve --model .` may stand in a folder that nobody has reviewed."""
    for name in ("jinja2", "msgspec", "marshal", "pprint"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(1)")
    code = "from tailrace.text.templates.program import TemplateProgram; print(TemplateProgram('{{ a }}').variables)"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "frozenset({'a'})"


def test_the_process_imports_little():
    code = (
        "import sys; from tailrace.text.templates.worker import load_modules; load_modules(); "
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "tokenizers", "transformers", "starlette", "asyncio"} & {*done.stdout.split()}


# ---- loaded with the model


def test_a_models_template_that_takes_too_much_is_named(tmp_path):
    make_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ lipsum(n=1000000000) }}")
    with pytest.raises(ModelLoadError, match=f"^{tmp_path}: the chat template 'default' can't be used: it takes more"):
        Tokenizer.load(tmp_path, limits=LOW)
    assert Tokenizer.load(tmp_path, limits=None).encode("a")


def test_a_template_that_takes_too_much_to_find_thoughts_is_named(tmp_path):
    loop = "{% if enable_thinking is defined %}{{ lipsum(n=1000000000) }}{% endif %}"
    tokenizer = make_tokenizer(tmp_path, HONEST + loop)
    tokenizer._templates.by_name["default"].program._limits = LOW
    with pytest.raises(ModelLoadError, match=r"^the chat template 'default' can't be used: it takes more than 0\.2 s"):
        find_reasoning(tokenizer)


def test_the_search_for_thoughts_shares_the_time(tmp_path, request):
    tokenizer = make_tokenizer(tmp_path, HONEST)
    asked = request.getfixturevalue("asked")
    with pytest.raises(ModelLoadError, match=r"it takes more than 10 s of processor time$"):
        find_reasoning(tokenizer)
    assert asked == [10.0, 7.0, 4.0, 1.0]


def test_a_lower_limit_of_the_operator_stays():
    """`ulimit -v` of a service: the process of templates must not try to raise it."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "from tailrace.text.templates.chat_template import ChatTemplates\n"
        "from tailrace.text.templates.program import DEFAULT_LIMITS\n"
        "templates = ChatTemplates({'default': '{{ messages[0].content }}'}, {}, DEFAULT_LIMITS)\n"
        "template = templates.pick_template(None, None)\n"
        "print(template.render([{'role': 'user', 'content': 'hi'}], {}), end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "hi"), done.stderr
