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
    broker`, with metavar. help: for the flag and docs/reference/broker-options.md, with the default in
    brackets at its end. variable: another name, of other brokers.
    """

    name: str
    path: tuple[str, ...]
    read: Reader
    flag: str = ""
    metavar: str = ""
    help: str = ""
    variable: str = ""


def _part(section: str, part: str, read: Reader, **helps: str) -> list[BrokerOption]:
    """Options of a section whose keys are the names of fields of one part of Settings."""
    return [BrokerOption(f"{section}.{key}", (part, key), read, help=text) for key, text in helps.items()]


#: the option that is no setting: the data folder
DATA = "broker.data"
_PORT, _ENDPOINT = "PORT|off", "ENDPOINT|off"
_COUNT = number(1, 1 << 40)
_AGE = or_off(age)
_SPOOL_AGES = {
    "retention": "Age at which the spool (docs/spool.md) removes a run that all its groups have read. "
    "[default: off]",
    "staged": "Age at which the spool removes the rows of a job that sends nothing. [default: 1d]",
    "failed": "Age at which the spool removes a failed run. [default: 7d]",
    "group": "Age at which a group that neither reads nor acknowledges no longer holds rows. [default: 30d]",
    "unread": "Age at which the spool removes a run or rows that no group reads. [default: 90d]",
}
_DIRECT = {
    "max_inflight_per_consumer": "Sent and unacknowledged messages of a consumer. [default: 1024]",
    "max_per_topic_queue": "Messages of a topic that wait for one destination. [default: 256]",
    "max_queued_direct": "Messages of direct delivery that wait, at most half of them delayed ones. "
    "[default: 4096]",
    "max_global_ingress": "Accepted and unfinished messages of direct delivery. [default: 8192]",
}

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
    BrokerOption("native.requests", ("native", "requests"), values.endpoint_or_off, "requests", _ENDPOINT,
        "Endpoint for transfer's DEALER and REQ. [default: tcp://127.0.0.1:5580]"),
    BrokerOption("native.pushes", ("native", "pushes"), values.endpoint_or_off, "pushes", _ENDPOINT,
        "Endpoint for transfer's PUSH and PUB. [default: tcp://127.0.0.1:5581]"),
    BrokerOption("native.subscriptions", ("native", "subscriptions"), values.endpoint_or_off, "subscriptions",
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
    BrokerOption("broker.drain_timeout", ("drain_timeout",), seconds, "drain-timeout", "TIME",
        "Time that a clean stop waits for unfinished work. [default: 10s]"),
    *_part("native", "native", values.endpoints,
        queues="Endpoints for PULL, one per topic: orders=tcp://127.0.0.1:5583."),
    *_part("native", "native", size,
        max_message="Largest message that a program of transfer sends whole, at least 2 MiB. [default: 4GiB]",
        max_message_in_pieces="Largest message that a program of transfer sends in pieces. [default: 64GiB]"),
    *_part("native", "native", seconds,
        stall_timeout="Seconds that a program of transfer may pause within a message in pieces. "
        "[default: 30]"),
    *_part("ttp", "ttp_limits", size,
        max_meta="Largest metadata of a frame of TTP. [default: 64KiB]",
        max_data="Largest data of a frame of TTP, and largest kept stream. [default: 64GiB]",
        max_stream_memory="Memory of one stream of TTP; of a kept topic, memory for its list of chunks. "
        "[default: 64MiB]",
        max_memory="Memory of all streams of TTP, and 2 KiB for each open one. [default: 1GiB]"),
    *_part("ttp", "ttp_limits", number(1),
        max_streams="Open streams of a connection of TTP. [default: 256]",
        max_subscriptions="Subscriptions of a connection of TTP. [default: 1000000]"),
    *_part("ttp", "ttp_limits", number(0),
        max_pattern_shapes="Shapes of wildcard patterns (docs/protocols/ttp.md) of a connection. "
        "[default: 128]",
        max_pattern_shapes_total="Shapes of wildcard patterns of all connections of TTP. [default: 1024]"),
    *_part("ttp", "ttp_limits", seconds,
        idle_timeout="Seconds of silence after which a connection of TTP is closed. [default: 60]"),
    *_part("pybroker", "pybroker_limits", size,
        max_payload="Largest payload of PyBroker. [default: 4294967295]",
        max_pending="Bytes of answers that may wait for a peer of PyBroker. [default: 4MiB]"),
    *_part("pybroker", "pybroker_limits", seconds,
        stall_timeout="Seconds that a peer of PyBroker may pause within a message. [default: 30]"),
    *_part("rqueue", "rqueue_limits", size,
        max_payload="Largest payload of rqueue. [default: 4294967295]",
        max_pending="Bytes that may wait for a subscriber of rqueue. [default: 64MiB]"),
    *_part("rqueue", "rqueue_limits", seconds,
        stall_timeout="Seconds that a peer of rqueue may pause within a message. [default: 30]"),
    *_part("rqueue", "rqueue_limits", values.overflow,
        overflow="What happens above rqueue.max_pending: spill (it reads on from the log), drop or close. "
        "[default: spill]"),
    *_part("rqueue", "rqueue_limits", number(1),
        max_subscriptions="Subscriptions of a connection of rqueue. [default: 1000000]"),
    *_part("abtp", "abtp", values.flag,
        signed="Consumers of abtp must sign control messages (docs/protocols/abtp.md). [default: false]"),
    *(BrokerOption(f"spool.{age}_age", ("spool_ages", age), _AGE, help=text)
        for age, text in _SPOOL_AGES.items()),
    BrokerOption("http.host", ("http_host",), or_off(values.text),
        help="Address of HTTP, if it is not broker.host."),
    BrokerOption("http.token", ("token",), or_off(values.text), variable="ADMIN_TOKEN",
        help="Token for operator calls; set it in a file, since all users see command lines."),
    BrokerOption("security.cert", ("security", "certificate"), values.text,
        help="As TRANSFER_TLS_CERT (docs/security.md): PEM file of the broker's certificate."),
    BrokerOption("security.ca", ("security", "authority"), values.text,
        help="As TRANSFER_TLS_CA: PEM file of the trusted authorities."),
    *_part("security", "security", values.text,
        key="As TRANSFER_TLS_KEY: PEM file of the certificate's key.",
        server_name="As TRANSFER_TLS_SERVER_NAME: the name in a server's certificate.",
        token_file="As TRANSFER_TOKEN_FILE: file of the token that both sides prove to know."),
    *_part("security", "security", values.word("", *CLIENTS),
        clients="As TRANSFER_TLS_CLIENTS: certificate or token, what clients must show."),
    *_part("security", "security", values.word(*ENCRYPT),
        encrypt="As TRANSFER_ENCRYPT: all excludes rdma and ucx. [default: tcp]"),
    *_part("security", "security", values.allowed,
        unauthenticated="As TRANSFER_UNAUTHENTICATED: allow accepts connections without authentication.",
        tokenless="As TRANSFER_TOKENLESS: allow lets protocols without a token listen on this machine."),
    *_part("security", "security", number(1),
        max_connections="Connections of one port. [default: 100000]",
        max_unauthenticated="Unauthenticated connections of one port; one more closes the oldest. "
        "[default: 4096]"),
    BrokerOption("security.handshake_timeout", ("handshake_timeout",), seconds,
        help="Seconds for authentication. [default: 10]"),
    BrokerOption("topics.keep", ("keep",), values.flag, variable="WAL_ENABLED",
        help="Topics keep their messages. [default: true]"),
    BrokerOption("topics.transient", ("transient",), values.patterns, help="Topics that keep nothing."),
    BrokerOption("topics.max_topics", ("max_topics",), number(1),
        help="Known topics. A kept one takes 1.6 KB of memory and 250 bytes of each log file. "
        "[default: 100000]"),
    BrokerOption("publish.max_announced_per_connection", ("announced", "per_connection"), size,
        help="Announced and unsent bytes of kept payloads, of one connection. "
        "[default: 64GiB]"),
    BrokerOption("publish.max_announced", ("announced", "total"), size,
        help="Announced and unsent bytes of kept payloads, of all. [default: 256GiB]"),
    BrokerOption("groups.idle_age", ("group_idle_age",), _AGE,
        help="Time without a consumer after which a group is removed. [default: off]"),
    BrokerOption("groups.max_groups", ("max_groups",), number(1),
        help="Groups; one more is refused (UsageError). [default: 10000]"),
    BrokerOption("delivery.max_attempts", ("max_attempts",), number(1, 1000),
        help="Attempts before a message becomes a dead letter. [default: 3]"),
    BrokerOption("delivery.first_delay", ("first_delay",), values.up_to(30),
        help="Seconds before the second attempt. [default: 0.1]"),
    BrokerOption("delivery.stall_timeout", ("stall_timeout",), seconds,
        help="Seconds after which a peer that blocks others in a large message is disconnected: a receiver "
        "that takes nothing, a publisher below 64 KiB a second. [default: 10]"),
    BrokerOption("direct.ack_timeout", ("ack_timeout",), seconds, variable="DELIVERY_TIMEOUT_MS",
        help="Seconds that a consumer of direct delivery has for its ACK. [default: 30]"),
    BrokerOption("direct.route_grace", ("route_grace",), seconds,
        help="Seconds that a message without a route waits for a consumer that just left; 0: none. "
        "[default: 5]"),
    *(BrokerOption(f"direct.{key}", ("direct", key), _COUNT, variable=key.upper(), help=text)
        for key, text in _DIRECT.items()),
    *_part("direct", "direct", _COUNT,
        tenant_quota="Accepted and unfinished messages of one tenant. [default: 8192]"),
    *_part("direct", "direct", seconds,
        max_delay="Longest delay of a message; a longer one is refused (dropped). [default: 30d]"),
    *_part("direct", "direct", values.quotas, tenant_quotas="The quotas of single tenants."),
    BrokerOption("routes.catalog", ("catalog",), values.text, variable="ROUTE_CATALOG_PATH",
        help="File of routes for direct delivery, read at each start."),
    BrokerOption("large.cutover", ("fast_path", "cutover"), size, variable="FASTPATH_CUTOVER_BYTES",
        help="Size from which a thread, not the loop, decodes and compresses abtp messages. "
        "[default: 256KiB]"),
    BrokerOption("large.in_place", ("fast_path", "in_place"), values.flag,
        variable="FASTPATH_FALLBACK_TO_GO",
        help="If that thread fails, the loop processes the message; false: the message is refused. "
        "[default: true]"),
)
# fmt: on
BY_NAME = {option.name: option for option in OPTIONS}
#: (variable, option), of other brokers
OTHER_NAMES = tuple((option.variable, option.name) for option in OPTIONS if option.variable)
