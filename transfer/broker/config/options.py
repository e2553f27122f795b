"""The table of a broker's options: what each is called in a file, a variable and a flag. Pure.

An option is named `section.key`, as in the file: `ttp.port` is `port` under `[ttp]`, and in the environment
TRANSFER_BROKER__TTP__PORT. The command line reads this table at each start: it imports no other part of the
broker.
"""

from __future__ import annotations

from typing import NamedTuple

from transfer.broker.config import values
from transfer.broker.config.values import Reader, age, number, seconds, size
from transfer.transports.security.settings import CLIENTS, ENCRYPT
from transfer.units import or_off


class BrokerOption(NamedTuple):
    """One option.

    name: `section.key`. path: of its field in Settings; empty: it is the data folder. flag: of `transfer
    broker`, with metavar and help. variable: another name, of other brokers.
    """

    name: str
    path: tuple[str, ...]
    read: Reader
    flag: str = ""
    metavar: str = ""
    help: str = ""
    variable: str = ""


def _part(section: str, part: str, read: Reader, *keys: str) -> list[BrokerOption]:
    """Options of a section whose keys are the names of fields of one part of Settings."""
    return [BrokerOption(f"{section}.{key}", (part, key), read) for key in keys]


#: the option that is no setting: the data folder
DATA = "broker.data"
_PORT, _ENDPOINT = "PORT|off", "ENDPOINT|off"
_COUNT = number(1, 1 << 40)
_AGE = or_off(age)
_AGES = ("retention", "staged", "failed", "group", "unread")

# fmt: off
OPTIONS = (
    BrokerOption(DATA, (), values.text, "data", "DIR",
        "Folder for all data; it is created if it is missing. [required, here or in the file]", "WAL_PATH"),
    BrokerOption("broker.host", ("host",), values.text, "host", "HOST",
        "Address of TTP, PyBroker, rqueue and HTTP. [default: 127.0.0.1]"),
    BrokerOption("ttp.port", ("ttp",), values.port, "ttp", _PORT, "Port of TTP v2. [default: 59321]"),
    BrokerOption("pybroker.port", ("pybroker",), values.port, "pybroker", _PORT,
        "Port of PyBroker's protocol. [default: 9099]"),
    BrokerOption("rqueue.port", ("rqueue",), values.port, "rqueue", _PORT,
        "Port of rqueue's protocol. [default: 6567]"),
    BrokerOption("http.port", ("http",), values.port, "http", _PORT,
        "Port of health, metrics, the console and operators' calls. [default: 9180]"),
    BrokerOption("own.requests", ("own", "requests"), values.endpoint_or_off, "requests", _ENDPOINT,
        "Endpoint for transfer's DEALER and REQ. [default: tcp://127.0.0.1:5580]"),
    BrokerOption("own.pushes", ("own", "pushes"), values.endpoint_or_off, "pushes", _ENDPOINT,
        "Endpoint for transfer's PUSH and PUB. [default: tcp://127.0.0.1:5581]"),
    BrokerOption("own.subscriptions", ("own", "subscriptions"), values.endpoint_or_off, "subscriptions",
        _ENDPOINT, "Endpoint for transfer's SUB. [default: tcp://127.0.0.1:5582]"),
    BrokerOption("abtp.router", ("abtp", "router"), values.endpoint_or_off, "abtp", _ENDPOINT,
        "Endpoint for abtp's DEALER and REQ; off: no abtp. [default: tcp://127.0.0.1:5555]"),
    BrokerOption("abtp.pub", ("abtp", "pub"), values.endpoint, "abtp-pub", "ENDPOINT",
        "Endpoint for abtp's SUB. [default: tcp://127.0.0.1:5556]"),
    BrokerOption("spool.endpoint", ("spool",), or_off(values.endpoint), "spool", _ENDPOINT,
        "Endpoint of the spool for Spark and PyTorch. [default: tcp://127.0.0.1:5570]"),
    BrokerOption("retention.bytes", ("retention_bytes",), or_off(values.log_limit), "retention-bytes",
        "SIZE|SHARE%|off", "Most bytes of the log (at least 1 MiB), or a share of the volume's free space "
        "plus the log; off: no limit. [default: 80%]"),
    BrokerOption("retention.age", ("retention_age",), _AGE, "retention-age", "TIME|off",
        "Age at which messages are removed that no group needs; off: never. [default: off]"),
    BrokerOption("large.threads", ("fast_path", "threads"), number(1, 64), "threads", "N",
        "Threads that decode and compress large messages of abtp. [default: 1]"),
    BrokerOption("broker.drain", ("drain",), seconds, "drain", "TIME",
        "Time that a clean stop waits for unfinished work. [default: 10s]"),
    *_part("own", "own", values.endpoints, "queues"),
    *_part("own", "own", size, "largest", "largest_in_pieces"),
    *_part("own", "own", seconds, "stalled"),
    *_part("ttp", "ttp_limits", size,
        "most_meta", "most_data", "most_gathered", "most_gathered_together"),
    *_part("ttp", "ttp_limits", number(1), "most_streams", "most_subscriptions"),
    *_part("ttp", "ttp_limits", number(0), "most_shapes", "most_shapes_together"),
    *_part("ttp", "ttp_limits", seconds, "idle"),
    *_part("pybroker", "pybroker_limits", size, "largest", "answers"),
    *_part("pybroker", "pybroker_limits", seconds, "stalled"),
    *_part("rqueue", "rqueue_limits", size, "largest", "limit"),
    *_part("rqueue", "rqueue_limits", seconds, "stalled"),
    *_part("rqueue", "rqueue_limits", values.overflow, "overflow"),
    *_part("rqueue", "rqueue_limits", number(1), "subscriptions"),
    *_part("abtp", "abtp", values.flag, "signed"),
    *(BrokerOption(f"spool.{age}_age", ("spool_ages", age), _AGE) for age in _AGES),
    BrokerOption("http.host", ("http_host",), or_off(values.text)),
    BrokerOption("http.token", ("token",), or_off(values.text), variable="ADMIN_TOKEN"),
    BrokerOption("security.cert", ("security", "certificate"), values.text),
    BrokerOption("security.ca", ("security", "authority"), values.text),
    *_part("security", "security", values.text, "key", "server_name", "token_file"),
    *_part("security", "security", values.word("", *CLIENTS), "clients"),
    *_part("security", "security", values.word(*ENCRYPT), "encrypt"),
    *_part("security", "security", values.allowed, "unauthenticated", "tokenless"),
    *_part("security", "security", number(1), "connections", "unfinished"),
    BrokerOption("security.handshake", ("handshake",), seconds),
    BrokerOption("topics.keep", ("keep",), values.flag, variable="WAL_ENABLED"),
    BrokerOption("topics.transient", ("transient",), values.patterns),
    BrokerOption("topics.most", ("most_topics",), number(1)),
    BrokerOption("publish.announced_per_connection", ("announced", "per_connection"), size),
    BrokerOption("publish.announced_total", ("announced", "total"), size),
    BrokerOption("groups.expire", ("group_expire",), _AGE),
    BrokerOption("groups.most", ("most_groups",), number(1)),
    BrokerOption("delivery.attempts", ("attempts",), number(1, 1000)),
    BrokerOption("delivery.first_delay", ("first_delay",), values.up_to(30)),
    BrokerOption("delivery.patience", ("patience",), seconds),
    BrokerOption("direct.ack_timeout", ("ack_timeout",), seconds, variable="DELIVERY_TIMEOUT_MS"),
    BrokerOption("direct.route_grace", ("route_grace",), seconds),
    *(BrokerOption(f"direct.{key}", ("direct", key), _COUNT, variable=key.upper()) for key in (
        "max_inflight_per_consumer", "max_per_topic_queue", "max_queued_direct", "max_global_ingress")),
    *_part("direct", "direct", _COUNT, "tenant_quota"),
    *_part("direct", "direct", seconds, "longest_delay"),
    *_part("direct", "direct", values.quotas, "tenant_quotas"),
    BrokerOption("routes.catalog", ("catalog",), values.text, variable="ROUTE_CATALOG_PATH"),
    BrokerOption("large.cutover", ("fast_path", "cutover"), size, variable="FASTPATH_CUTOVER_BYTES"),
    BrokerOption("large.in_place", ("fast_path", "in_place"), values.flag,
        variable="FASTPATH_FALLBACK_TO_GO"),
)
# fmt: on
BY_NAME = {option.name: option for option in OPTIONS}
#: (variable, option), of other brokers
OTHER_NAMES = tuple((option.variable, option.name) for option in OPTIONS if option.variable)
