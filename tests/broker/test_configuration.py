"""What flags, the environment and a file say becomes settings; what nobody understands is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import transfer.config
from tests.broker.in_process_broker import default_of
from tests.docs.reference import without_default
from transfer.broker.config.configuration import ConfigValue, configured, parse_flag, read_file
from transfer.broker.config.options import DATA, OPTIONS, OTHER_NAMES
from transfer.broker.config.settings import Settings
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.delivery.subscriber import Overflow
from transfer.broker.storage.volume import VolumeShare
from transfer.config import BROKER_IDLE_NAMES, broker_environment
from transfer.transports.config import security
from transfer.transports.errors import OptionError
from transfer.transports.security.settings import Security


def written(tmp_path, text):
    file = tmp_path / "broker.toml"
    file.write_text(text)
    return file


def said(**environ):
    return [
        ConfigValue(option, text, f"the variable {name}")
        for name, option, text in broker_environment(OTHER_NAMES, environ).options
    ]


def test_nothing_said_gives_the_defaults():
    chosen = configured([])
    assert chosen.settings == Settings() and chosen.folder is None


def test_a_file_says_all(tmp_path):
    file = written(
        tmp_path,
        """
        [broker]
        data = "kept"
        host = "0.0.0.0"
        drain_timeout = "2.5s"
        [native]
        pushes = "off"
        requests = "127.0.0.1:7000"
        [ttp]
        port = "off"
        idle_timeout = "2m"
        max_stream_memory = "1MiB"
        [rqueue]
        port = 7001
        overflow = "drop"
        [topics]
        transient = ["dots:metrics.>", "prefix:live-", "frames"]
        [retention]
        bytes = "100GB"
        age = "7d"
        [delivery]
        max_attempts = 5
        [direct]
        ack_timeout = 1.5
        tenant_quotas = { acme = 100 }
        [large]
        in_place = false
        """,
    )
    chosen = configured([], (), file)
    settings = chosen.settings
    assert chosen.folder == tmp_path / "kept" and chosen.file == file
    assert (settings.host, settings.drain_timeout, settings.ttp, settings.rqueue) == (
        "0.0.0.0",
        2.5,
        None,
        7001,
    )
    assert settings.native is not None and settings.native.pushes == ""
    assert settings.native.requests == "tcp://127.0.0.1:7000"
    assert settings.native.subscriptions == Settings().native.subscriptions
    assert (settings.ttp_limits.idle_timeout, settings.ttp_limits.max_stream_memory) == (120, 1 << 20)
    assert settings.rqueue_limits.overflow is Overflow.DROP
    assert settings.transient == (
        pattern(Kind.DOTS, "metrics.>"),
        pattern(Kind.PREFIX, "live-"),
        pattern(Kind.EXACT, "frames"),
    )
    assert not settings.durable("metrics.cpu") and settings.durable("metrics")
    assert (settings.retention_bytes, settings.retention_age) == (100 * 10**9, 7 * 86_400)
    assert (settings.max_attempts, settings.ack_timeout, settings.direct.tenant_quotas) == (
        5,
        1.5,
        {"acme": 100},
    )
    assert not settings.fast_path.in_place and settings.pybroker == Settings().pybroker


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path):
    file = written(tmp_path, "[ttp]\nport = 1\n[pybroker]\nport = 1\n[rqueue]\nport = 1\n")
    environment = said(TRANSFER_BROKER__TTP__PORT="2", TRANSFER_BROKER__PYBROKER__PORT="2")
    settings = configured([ConfigValue("ttp.port", "3", "--ttp")], environment, file).settings
    assert (settings.ttp, settings.pybroker, settings.rqueue) == (3, 2, 1)


def test_names_of_other_brokers_are_understood():
    settings = configured(
        [],
        said(
            ADMIN_TOKEN=" secret ",
            WAL_ENABLED="false",
            ROUTE_CATALOG_PATH="/etc/routes.json",
            MAX_INFLIGHT_PER_CONSUMER="1",
            MAX_PER_TOPIC_QUEUE="2",
            MAX_QUEUED_DIRECT="3",
            MAX_GLOBAL_INGRESS="4",
            DELIVERY_TIMEOUT_MS="1500",
            FASTPATH_CUTOVER_BYTES="1024",
            FASTPATH_FALLBACK_TO_GO="true",
            FASTPATH_REQUIRE="true",
        ),
    ).settings
    assert (settings.token, settings.keep, settings.catalog) == ("secret", False, "/etc/routes.json")
    direct = settings.direct
    assert (direct.max_inflight_per_consumer, direct.max_per_topic_queue) == (1, 2)
    assert (direct.max_queued_direct, direct.max_global_ingress) == (3, 4)
    assert settings.ack_timeout == 1.5
    assert (settings.fast_path.cutover, settings.fast_path.in_place) == (1024, False)
    assert not settings.durable("any") and "secret" not in repr(settings)


def test_what_means_nothing_any_more_is_told_and_no_more():
    chosen = broker_environment(
        OTHER_NAMES, {"FASTPATH_SIDECAR_ENABLED": "true", "FASTPATH_SOCKET_PATH": "/tmp/x", "WAL_PATH": ""}
    )
    assert chosen.idle == BROKER_IDLE_NAMES and not chosen.options


def test_kubernetes_own_variables_are_not_ours():
    names = {"TRANSFER_BROKER_PORT": "tcp://10.0.0.1:9180", "TRANSFER_BROKER_SERVICE_HOST": "10.0.0.1"}
    assert not broker_environment(OTHER_NAMES, names).options


def test_wal_path_is_the_folder_unless_a_flag_says_another():
    environment = said(WAL_PATH="./data/direct.wal")
    assert configured([], environment).folder == Path("data/direct.wal")
    assert configured([ConfigValue("broker.data", "other", "--data")], environment).folder == Path("other")


def test_abtp_is_off_as_a_whole():
    assert configured([ConfigValue("abtp.router", "off", "--abtp")]).settings.abtp is None
    chosen = configured([ConfigValue("abtp.pub", "127.0.0.1:7002", "--abtp-pub")]).settings.abtp
    assert chosen is not None and chosen.pub == "tcp://127.0.0.1:7002"
    with pytest.raises(OptionError, match="--abtp-pub is 'off'"):
        configured([ConfigValue("abtp.pub", "off", "--abtp-pub")])


def test_all_sockets_off_is_no_native_front():
    names = ("requests", "pushes", "subscriptions")
    off = [ConfigValue(f"native.{name}", "off", f"--{name}") for name in names]
    assert configured(off).settings.native is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[tpp]\nport = 1", "there is no section [tpp]\n  hint: 'ttp' is the nearest that there is"),
        ("[ttp]\nprot = 1", "prot in [ttp]: there is no such option\n  hint: 'ttp.port' is the nearest"),
        (
            "[ttp]\nwonderful = 1",
            "wonderful in [ttp]: there is no such option\n  hint: in [ttp] there are ttp.port",
        ),
        (
            "port = 1",
            "port stands outside of any section\n  hint: port stands in [ttp], [pybroker], [rqueue], [http]",
        ),
        ("prot = 1", "hint: port stands in [ttp]"),
        ("wonderful = 1", "hint: sections are broker"),
        (
            "[ttp]\nport = 70000",
            "port in [ttp] is 70000\n  hint: it has to be a port from 0 to 65535, or off",
        ),
        ("[ttp]\nport = true", "port in [ttp] is True"),
        ("[delivery]\nmax_attempts = 0", "it has to be a whole number from 1 to 1000"),
        ("[retention]\nbytes = 'much'", "it has to be a size"),
        ("[retention]\nbytes = '0%'", "a share of the volume, such as 80%"),
        ("[retention]\nage = '7 years'", "it has to be a time"),
        ("[native]\nrequests = 'tcp://x'", "it has to be an endpoint"),
        (
            "[topics]\ntransient = 'prefx:live/'",
            "'prefix' is the nearest); that topic is 'exact:prefx:live/'",
        ),
        ("[topics]\ntransient = ['a', 'x:y']", "there are exact, prefix, dots, paths); that topic is"),
        ("[topics]\ntransient = ['dots:a..b']", "empty segment"),
        ("[topics]\nkeep = 'perhaps'", "it has to be true or false"),
        ("[broker]\ndata = 7", "data in [broker] is 7\n  hint: it has to be a folder"),
        ("[http]\ntoken = 7", "token in [http] is not a text\n"),
        ("[ttp\n", "is no TOML"),
    ],
)
def test_what_a_file_says_wrongly_is_told_with_its_place(tmp_path, text, problem):
    file = written(tmp_path, text)
    with pytest.raises(OptionError) as caught:
        configured([], (), file)
    assert str(caught.value).startswith(f"{file}") and problem in str(caught.value)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(OptionError, match=r"(?s)cannot be read: No such file.*BROKER_CONFIG names the file"):
        configured([], (), tmp_path / "none.toml")


def test_wrong_variables_and_flags_are_told_by_name():
    with pytest.raises(OptionError, match="the variable TRANSFER_BROKER__TTP__PROT: there is no such option"):
        configured([], said(TRANSFER_BROKER__TTP__PROT="1"))
    with pytest.raises(OptionError, match="the variable DELIVERY_TIMEOUT_MS is 'soonms'"):
        configured([], said(DELIVERY_TIMEOUT_MS="soon"))
    with pytest.raises(OptionError, match=r"--set ttp\.idle_timeout is 'x'"):
        configured([parse_flag("ttp.idle_timeout=x")])
    with pytest.raises(OptionError, match="has no '='"):
        parse_flag("ttp.idle_timeout")


def test_a_list_or_table_of_a_flag_is_read_as_in_the_file():
    flag = parse_flag('topics.transient=["orders", "prefix:live-"]')
    assert (
        configured([flag]).settings.transient
        == configured([parse_flag("topics.transient=orders,prefix:live-")]).settings.transient
    )
    queues = configured(
        [parse_flag('native.queues={orders = "tcp://127.0.0.1:5583"}')]
    ).settings.native.queues
    assert queues == {"orders": "tcp://127.0.0.1:5583"}
    with pytest.raises(OptionError, match=r"--set topics.transient: \[orders is no TOML"):
        parse_flag("topics.transient=[orders")


def test_an_option_that_two_flags_set_is_refused():
    with pytest.raises(OptionError, match=r"--set ttp\.port and --ttp: ttp\.port is set twice"):
        configured([parse_flag("ttp.port=1"), ConfigValue("ttp.port", "2", "--ttp")])
    with pytest.raises(OptionError, match=r"--set ttp\.port: ttp\.port is set twice"):
        configured([parse_flag("ttp.port=1"), parse_flag("ttp.port=2")])


@pytest.mark.parametrize(
    "choice", [one for one in OPTIONS if one.name != DATA], ids=lambda choice: choice.name
)
def test_each_choice_has_a_default_and_a_place(choice):
    default = default_of(choice)
    if isinstance(default, tuple):
        default = [f"{one.kind.value}:{one.text}" for one in default]
    if isinstance(default, Overflow):
        default = default.name.lower()
    if isinstance(default, VolumeShare):
        default = str(default)
    if default is None or default == "":
        default = "" if choice.name.startswith(("routes.", "security.")) else "off"
    found = configured([ConfigValue(choice.name, default, "here")]).settings
    assert found.security == (Security() if choice.path[0] == "security" else None)
    assert replace(found, security=None) == Settings()


def test_every_variable_of_a_broker_has_a_text():
    names = [*(name for name, _ in OTHER_NAMES), *BROKER_IDLE_NAMES]
    assert [name for name in names if name not in (transfer.config.__doc__ or "")] == []


@pytest.mark.parametrize("option", [one for one in OPTIONS if one.name != DATA], ids=lambda one: one.name)
def test_a_default_in_the_help_is_that_of_the_code(option):
    text, default = without_default(option)
    assert text.endswith(".")
    assert option.read(default) == default_of(option) if default else not default_of(option)


def test_what_is_chosen_of_security_and_the_variables_fit_together(tmp_path):
    other, key = tmp_path / "other.pem", tmp_path / "key.pem"
    other.touch()
    key.touch()
    environ = {
        "TRANSFER_TLS_CERT": str(other),
        "TRANSFER_TLS_KEY": str(key),
        "TRANSFER_TOKEN": "b1f04507892daa251f873b7fb74e47e7",
    }

    def secured(fields):
        return security(environ, given=fields)

    flags = [
        ConfigValue("security.cert", "cert.pem", "--set"),
        ConfigValue("security.token_file", "tokens", "--set"),
    ]
    found = configured(flags, secured=secured).settings.security
    assert found == Security(certificate="cert.pem", key=str(key), token_file="tokens")
    assert configured([], secured=secured).settings.security == security(environ)


def test_a_topic_with_a_colon_is_said_exactly(tmp_path):
    file = written(tmp_path, "[topics]\ntransient = ['exact:live:a', 'b']")
    durable = configured([], file=file).settings.durable
    assert [durable(topic) for topic in ("live:a", "b", "live:b")] == [False, False, True]


def test_a_file_with_a_secret_that_others_can_read_is_warned_of(tmp_path, caplog):
    file = tmp_path / "broker.toml"
    file.write_text("[http]\nhost = '127.0.0.1'\n")
    file.chmod(0o644)
    list(read_file(file))
    assert not caplog.messages, "there is no secret in it"
    file.write_text("[http]\ntoken = '55f4f56c59c9b7f34a4ab31e0a4a5d7a'\n")
    for _ in range(2):
        list(read_file(file))
    (chosen,) = caplog.messages
    assert f"every user of this host can read {file}\n  hint: chmod o-rwx {file}" in chosen
