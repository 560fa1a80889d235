"""Settings: flag over environment over file over default, and every error names its field."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tailrace.base.config_sources import list_fields, load_config
from tailrace.base.environment import list_variables, warn_about_unknown
from tailrace.config import SECTIONS, Config, ModelConfig
from tailrace.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tailrace.toml"
    path.write_text('[server]\nport = 1\nhost = "file"\n[scheduler]\nmax_num_seqs = 3\n')
    return path


def test_defaults():
    assert load_config(env={}) == Config()


def test_each_source_beats_the_one_below(file: Path):
    assert load_config(env={}, file=file).server.port == 1
    env = {"TAILRACE_SERVER_PORT": "2"}
    assert load_config(env=env, file=file).server.port == 2
    config = load_config({"server": {"port": 3, "host": None}}, env, file)
    assert (config.server.port, config.server.host, config.scheduler.max_num_seqs) == (3, "file", 3)


def test_the_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TAILRACE_SERVER_PORT", "4321")
    assert load_config().server.port == 4321


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_can_be_set_from_the_environment(section: str):
    for field in list_fields(section):
        value = msgspec.to_builtins(getattr(getattr(load_config(env={}), section), field))
        free = value is None or field == "api_keys"
        text = "something" if free else str(value).lower() if isinstance(value, bool) else str(value)
        found = getattr(getattr(load_config(env={f"TAILRACE_{section}_{field}".upper(): text}), section), field)
        assert found == (text if free else value)


def test_words_for_booleans():
    assert load_config(env={"TAILRACE_CACHE_PREFIX_REUSE": "false"}).cache.prefix_reuse is False
    assert load_config(env={"TAILRACE_CACHE_PREFIX_REUSE": "1"}).cache.prefix_reuse is True


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            {"server": {"port": "many"}},
            r"server\.port \(--port, TAILRACE_SERVER_PORT\) must be an integer in \[0, 65535\], got 'many'",
        ),
        ({"server": {"port": 70000}}, r"server\.port .* must be an integer in \[0, 65535\], got 70000"),
        ({"scheduler": {"max_num_seqs": 0}}, r"scheduler\.max_num_seqs .* must be an integer of at least 1, got 0"),
        ({"cache": {"memory_gib": -1}}, r"cache\.memory_gib .* must be a number of at least 0, got -1"),
        ({"server": {"drain_timeout_s": 0}}, r"server\.drain_timeout_s .* must be a number above 0, got 0"),
        ({"server": {"page": "perhaps"}}, r"server\.page .* must be true or false, got 'perhaps'"),
        ({"model": {"name": 5}}, r"model\.name \(--served-model-name, TAILRACE_MODEL_NAME\) must be a text, got 5"),
        ({"model": {"dtype": "float61"}}, r"model\.dtype .* one of .*, got 'float61' \(did you mean float16\?\)"),
        ({"model": {"modle": 1}}, r"there is no setting 'modle' in \[model\] \(did you mean model\?\)"),
    ],
)
def test_errors_name_the_field(flags: dict[str, dict[str, object]], said: str):
    with pytest.raises(ConfigError, match=said):
        load_config(flags, env={})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[engine]\nx = 1\n", r"unknown table \[engine\]"),
        ("[sever]\nx = 1\n", r"unknown table \[sever\] \(did you mean server\?\)"),
        ("model = 1\n", r"model must be a table, \[model\], got 1"),
        ("[server]\nprot = 1\n", r"tailrace\.toml: there is no setting 'prot' in \[server\] \(did you mean port\?\)"),
        ("x = " + "[" * 100_000, "tailrace.toml"),
        ("[model]\n\\udcff = 1", "tailrace.toml"),
        ("[[", "tailrace.toml"),
    ],
)
def test_errors_of_a_file(tmp_path: Path, text: str, said: str):
    path = tmp_path / "tailrace.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_config(env={}, file=path)


def test_models_have_the_settings_of_all_but_for_their_own(tmp_path: Path):
    path = tmp_path / "tailrace.toml"
    path.write_text('[model]\ndtype = "float32"\n[models.a.model]\nmodel = "x"\n[models.b.cache]\nnum_blocks = 7\n')
    flags = {"scheduler": {"max_num_seqs": 3}, "models": {"a": {"model": {"dtype": "float16"}}, "c": {"model": {}}}}
    config = load_config(flags, env={"TAILRACE_CACHE_NUM_BLOCKS": "5"}, file=path)
    assert list(config.models) == ["a", "b", "c"]
    assert [(m.model.name, m.model.model, m.model.dtype, m.cache.num_blocks) for m in config.models.values()] == [
        ("a", "x", "float16", 5),
        ("b", None, "float32", 7),
        ("c", None, "float32", 5),
    ]
    assert {m.scheduler.max_num_seqs for m in config.models.values()} == {3}
    each = config.each()
    assert [one.engine for one in each] == list(config.models.values())
    assert all(not one.models and one.server == config.server for one in each)
    assert load_config(env={}).each() == [Config()]


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"a b": {}}, "name must be"),
        ({"": {}}, "name must be"),
        ({"x" * 129: {}}, "name must be"),
        ({"a": {"model": {"name": "b"}}}, "has its name already"),
        ({"a": {"server": {"port": 1}}}, r"no setting 'server' in \[models\.a\]"),
        ({"a": {"model": {"modle": 1}}}, r"no setting 'modle' in \[models\.a\.model\] \(did you mean model\?\)"),
        ({"a": {"cache": {"num_blocks": -1}}}, r"models\.a\.cache\.num_blocks .* of at least 0, got -1"),
        ({"a": {"model": "x"}}, "must hold tables"),
        ({"a": "x"}, "must hold tables"),
    ],
)
def test_errors_of_models(models: dict, said: str):
    with pytest.raises(ConfigError, match=said):
        load_config({"models": models}, env={})
    with pytest.raises(ConfigError, match="has its name already"):
        load_config({"models": {"a": {}}, "model": {"name": "b"}}, env={})


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_a_model_that_nobody_would_get_is_an_error(tmp_path: Path, source: str):
    """--model X beside models of a file that have their own."""
    path, models = tmp_path / "tailrace.toml", '[models.a.model]\nmodel = "x"\n[models.b.model]\nmodel = "y"\n'
    path.write_text(models + ('[model]\nmodel = "z"\n' if source == "file" else ""))
    flags = {"model": {"model": "z"}} if source == "flag" else {}
    env = {"TAILRACE_MODEL_MODEL": "z"} if source == "environment" else {}
    with pytest.raises(ConfigError, match=r"model\.model 'z' \(--model\) has no name.*\(a, b; .*--model NAME=z"):
        load_config(flags, env=env, file=path)
    path.write_text(path.read_text() + "[models.c.cache]\nnum_blocks = 7\n")  # which has none of its own
    assert [m.model.model for m in load_config(flags, env=env, file=path).models.values()] == ["x", "y", "z"]


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(ConfigError, match="nothing"):
        load_config(env={}, file=tmp_path / "nothing.toml")


def test_the_cache_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert ModelConfig().cache_dir == "/somewhere/tailrace"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/one")
    assert ModelConfig().cache_dir == "/home/one/.cache/tailrace"


def test_sections_are_frozen():
    with pytest.raises(AttributeError):
        Config().server.port = 1  # type: ignore[misc]


@pytest.mark.parametrize("keys", ["", " ", " , ", "one,", "one,,two"])
def test_empty_key_is_refused(keys: str):
    for flags, env in (({"server": {"api_keys": keys}}, {}), ({}, {"TAILRACE_SERVER_API_KEYS": keys})):
        with pytest.raises(ConfigError, match="has an empty key"):
            load_config(flags, env=env)
    assert load_config(env={"TAILRACE_SERVER_API_KEYS": "one, two"}).server.api_keys == "one, two"


@pytest.mark.parametrize("keys", ["schlüssel", "one,t\nwo", "\x7f"])
def test_a_key_that_no_header_can_hold_is_refused(keys: str):
    with pytest.raises(ConfigError, match="must be printable ASCII"):
        load_config({"server": {"api_keys": keys}})


def test_unknown_variables_are_warned_of_with_the_nearest_name(caplog):
    known = dict.fromkeys(list_variables(), "1")
    unknown = ("HOME", "TAILRACE_SERVER_API_KEY", "TAILRACE_ZZZ", "TAILRACE_server_port", "tailrace_server_api_key")
    warn_about_unknown(known | dict.fromkeys(unknown, "secret"))
    assert caplog.messages == [
        "the variable TAILRACE_SERVER_API_KEY has no effect: there is no such setting "
        "(did you mean TAILRACE_SERVER_API_KEYS?)",
        "the variable TAILRACE_ZZZ has no effect: there is no such setting",
        "the variable TAILRACE_server_port has no effect: there is no such setting "
        "(did you mean TAILRACE_SERVER_PORT?)",
        "the variable tailrace_server_api_key has no effect: there is no such setting "
        "(did you mean TAILRACE_SERVER_API_KEYS?)",
    ]
    errors = [record.args[0] for record in caplog.records if record.levelname == "ERROR"]  # seen at any log level
    assert errors == ["TAILRACE_SERVER_API_KEY", "TAILRACE_server_port", "tailrace_server_api_key"]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('[server.users.alice]\napi_key = "one two"\nrequests_per_minute = 3\n', ""),
        ("[server.users.alice]\nrequests_per_minute = 3\n", r"api_key. in \[server\.users\.alice\], and it needs"),
        ('[server.users.alice]\napi_key = ""\n', r"server\.users\.alice\.api_key must be printable"),
        ('[server.users.alice]\napi_key = " one"\n', r"server\.users\.alice\.api_key must be printable"),
        ('[server.users.alice]\napi_key = "é"\n', r"server\.users\.alice\.api_key must be printable"),
        ("[server.users.alice]\napi_key = 3\n", r"server\.users"),
        ('[server.users.alice]\napi_key = "one"\nlimit = 3\n', r"no setting .limit. in \[server\.users\.alice\]"),
        (
            '[server.users.alice]\napi_key = "one"\ntokens_per_minute = -1\n',
            r"alice\.tokens_per_minute must be an integer in",
        ),
        ('[server.users.alice]\napi_key = "one"\nweight = 0\n', r"alice\.weight must be an integer in \[1, 100\]"),
        ('[server.users.alice]\napi_key = "one"\nweight = 101\n', r"alice\.weight must be an integer in \[1, 100\]"),
        ('[server.users.alice]\napi_key = "one"\nmax_priority = -1\n', r"alice\.max_priority must be an integer"),
        (
            '[server.users.alice]\napi_key = "one"\n[server.users.bob]\napi_key = "one"\n',
            "bob.api_key is the key of alice",
        ),
        ('[server.users.other]\napi_key = "one"\n', r"server\.users: a name must be .* not other, got 'other'"),
        ('[server.users."a b"]\napi_key = "one"\n', r"server\.users: a name must be .* got 'a b'"),
        ("[server]\nusers = 3\n", r"server\.users"),
        ('[server.users]\nalice = "one"\n', r"server\.users"),
    ],
)
def test_users_with_names_come_from_the_file(tmp_path: Path, table: str, said: str):
    path = tmp_path / "settings.toml"
    path.write_text(table)
    if said:
        with pytest.raises(ConfigError, match=said):
            load_config(env={}, file=path)
        return
    server = load_config({"server": {"api_keys": "two,one two"}}, env={}, file=path).server
    assert server.keys == ["two", "one two"]
    assert (server.users["alice"].requests_per_minute, server.users["alice"].tokens_per_minute) == (3, None)
