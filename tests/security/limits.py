"""The limits on what peers can use: their values in the code, and their tests."""

from __future__ import annotations

import inspect

from aiohttp.web_protocol import MAX_MSG_QUEUE_SIZE, RequestHandler

from tests.broker.test_connection_floods import MOST_OF_A_HANDSHAKE
from tests.broker.test_http_heads import MOST_OF_A_HEAD
from transfer.broker.core.registry import RegistryLimits
from transfer.broker.delivery.streaming_publish import MOST_GATHERED
from transfer.broker.fronts import (
    abtp_pub,
    abtp_relay,
    abtp_subscription_limits,
    abtp_unrouted as abtp_awaiting,
    native_backlog,
    native_catch_up as own_catch_up,
    native_consumers as own_consumers,
    native_downloads as own_offers,
    native_queue as own_queue,
)
from transfer.broker.fronts.abtp import AbtpSettings
from transfer.broker.http import request_head_limit as heads, server as http
from transfer.broker.http.app import MAX_BODY
from transfer.broker.protocols import abtp, abtp_words, zmtp
from transfer.cli import app, health
from transfer.cli.options import Reached
from transfer.http import client as http_client
from transfer.metrics import http_server as scraping
from transfer.patterns import pub_sub
from transfer.sockets.connections import control
from transfer.sockets.defaults import TRANSFER
from transfer.spool.format import protocol
from transfer.spool.server import group, reader, row_requests
from transfer.tensors import pinned
from transfer.transports import descriptors
from transfer.transports.connect import pending
from transfer.transports.core import python_tls as tls
from transfer.transports.core.first_record import LARGEST_HELLO
from transfer.transports.core.pure import receiving
from transfer.transports.discovery import membership
from transfer.transports.handshake import authentication, hello, upgrade
from transfer.transports.shm import mappings, unix_listener


def size(number):
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if number >= _UNITS[unit]), "")
    return f"{-(-number // _UNITS[unit]):,} {unit}" if unit else f"{number:,}"


def number(value):
    return f"{value:,}"


def seconds(value):
    return f"{value:g} s"


def _default(function, name):
    return inspect.signature(function).parameters[name].default


def _of_aiohttp(name):
    """Its default, which nothing here changes, for a request line and for a header."""
    defaults = inspect.signature(RequestHandler).parameters
    assert defaults["max_line_size"].default == defaults["max_field_size"].default
    return defaults[name].default


_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_ABTP, _REGISTRY = AbtpSettings(), RegistryLimits()

#: by port and limit, as docs/reference/limits.md shows them: the code's value, and its tests
LIMITS = {
    (
        "all TCP ports of a process together",
        "connections not yet authenticated; the oldest ends for the newest",
    ): (
        f"{number(pending.MOST)}, or a quarter of the descriptors",
        "transports/test_pending.py::test_a_listener_may_have_more_by_itself_but_not_of_the_descriptors",
    ),
    (
        "all TCP ports of a process together",
        "descriptors reserved for files, which no connection takes (an eighth if there are fewer than 1,024)",
    ): (
        f"{number(descriptors.RESERVE)}, or an eighth",
        "broker/test_connection_floods.py::test_no_message_of_a_good_peer_is_lost",
    ),
    (
        "names that have many members: `dns://`, `registry://`",
        "addresses that are followed; the rest is left out, with a WARNING",
    ): (
        f"{number(membership.MOST)}, or half of the descriptors",
        "discovery/test_many_addresses.py::test_an_answer_with_many_addresses_leaves_descriptors_for_files",
    ),
    (
        "each port of a broker or spool, each bound endpoint",
        "memory of an unfinished TLS handshake; bytes of it",
    ): (
        "; ".join((size(MOST_OF_A_HANDSHAKE), size(tls._MAX_HANDSHAKE))),
        "broker/test_connection_floods.py::test_an_unfinished_handshake_takes_little_memory",
        "core/test_tls_peers.py::test_certificates_without_end",
    ),
    (
        "each port of a broker or spool, each bound endpoint",
        "bytes of a ClientHello, which must be one record; of a peer's certificates, in the compiled core",
    ): (
        # 24 KiB: CERTIFICATES in native/tls.pxd
        "; ".join((size(LARGEST_HELLO), "24 KiB")),
        "core/test_tls_peers.py::test_a_client_hello_in_pieces_is_refused",
        "core/test_tls_peers.py::test_certificates_without_end",
    ),
    (
        "each port of a broker or spool, each bound endpoint",
        "bytes of TLS records without data, in sequence; inside TLS before hello and proof are complete",
    ): (
        "; ".join((size(tls._MAX_BARREN), size(tls._MAX_STRANGE))),
        "core/test_tls_peers.py::test_new_keys_without_end_are_refused",
        "security/test_limits.py::test_bytes_of_a_peer_that_does_not_say_who_it_is",
    ),
    (
        "native sockets, spool, registry: tcp, ipc",
        "bytes of a hello; of a step to a faster transport; of a message",
    ): (
        "; ".join((size(hello.MAX_HELLO), size(upgrade.MAX_STEP), size(TRANSFER.maxmsgsize))),
        "transports/test_hello.py::test_a_hello_has_a_limit",
        "shm/test_upgrade.py::test_a_body_that_is_no_step_is_refused",
        "sockets/test_options.py::test_a_limit_on_arriving_messages",
    ),
    ("native sockets, spool, registry: tcp, ipc", "bytes of credentials of PLAIN or CURVE"): (
        size(authentication.MAX_FRAME),
        "security/test_mechanisms.py::test_anything_else_than_credentials_is_refused",
    ),
    ("native sockets, spool, registry: tcp, ipc", "subscriptions of a SUB; their bytes"): (
        f"{number(pub_sub.MAX_SUBSCRIPTIONS)}; {size(pub_sub.MAX_SUBSCRIBED)}",
        "faults/test_bad_peer.py::test_a_subscription_too_long_or_too_many",
    ),
    (
        "native sockets, spool, registry: tcp, ipc",
        (
            "control frames of one peer that are read before other peers' turn; frames not for the program "
            "that one receive skips"
        ),
    ): (
        f"{control.TURN_FRAMES}; {receiving.MOST_UNWANTED}",
        "core/test_receiving.py::test_control_frames_without_end_hold_up_no_call_and_nobody_else",
    ),
    ("native sockets, spool, registry: tcp, ipc", "time for the handshake and hello (`handshake_ivl`)"): (
        seconds(TRANSFER.handshake_ivl / 1000),
        "security/test_unauthenticated_peers.py::test_one_byte_after_the_other",
    ),
    ("one host", "connections to the Unix socket that no peer announced"): (
        number(unix_listener._MOST_WAITING),
        "shm/test_unix_listener.py::test_who_never_greets_is_shut_out_in_the_end",
    ),
    ("one host", "shared segments, and blocks, of one peer"): (
        f"{number(mappings.MOST_SEGMENTS)}; {number(mappings.MOST_BLOCKS)}",
        "shm/test_shm_stream.py::test_a_flood_of_announcements_is_refused",
    ),
    (
        "native front",
        (
            "bytes of programs whose batch takes longer than a turn of 4 ms, if their connection cannot be "
            "paused (rdma, ucx, the Python core); above it the front receives nothing"
        ),
    ): (
        size(native_backlog._MOST_WAITING),
        "broker/test_native_backlog.py::test_what_cannot_be_held_waits_within_limits",
    ),
    (
        "native front",
        (
            "bytes that wait for one program: above it its consumers pause; what one read, or one message, "
            "may add"
        ),
    ): (
        f"{size(own_consumers.MOST_WAITING)}; {size(own_offers.MOST_ASKED)}",
        "broker/test_native_unread.py::test_what_waits_for_a_program_has_a_limit_in_bytes",
    ),
    ("native front", "messages on their way to all PULLs of a topic's endpoint; their bytes"): (
        f"{number(own_queue._WINDOW)}; {size(own_queue.MOST_WAITING)}",
        "broker/test_native_unread.py::test_what_waits_for_all_who_pull_has_a_limit_in_bytes",
    ),
    (
        "native front",
        "bytes that wait for one SUB (no sum over SUBs); for one with `?begin=`, which reads on from the log",
    ): (
        "; ".join((size(TRANSFER.sndhwm_bytes), size(own_catch_up.MAX_QUEUED_BYTES))),
        "broker/test_native_unread.py::test_what_waits_for_a_sub_has_a_limit_in_bytes",
        "broker/test_catch_up.py::test_a_slow_one_loses_nothing_and_little_waits_for_it",
    ),
    (
        "native front",
        "positions that a SUB with `?begin=` sends; its subscriptions not yet handled; bytes of both",
    ): (
        "; ".join(
            (
                number(own_catch_up.MAX_POSITIONS),
                number(own_catch_up.MAX_REQUESTS),
                size(own_catch_up.MAX_REQUEST_BYTES),
            )
        ),
        "broker/test_catch_up.py::test_floods_end_their_connection",
    ),
    ("abtp", "bytes of a payload; of a message unpacked; of an envelope without its payload"): (
        "; ".join((size(_ABTP.max_payload), size(_ABTP.max_payload), size(abtp_words.MAX_CONTROL))),
        "broker/test_abtp_fanout.py::test_what_is_too_large_for_the_pub_socket",
        "broker/test_abtp_control.py::test_decompression_is_bounded",
        "broker/test_abtp_limits.py::test_an_envelope_without_its_payload",
    ),
    ("abtp", "bytes of READY; bytes of an identity"): (
        f"{size(zmtp.LONGEST_READY)}; {number(zmtp.LONGEST_IDENTITY)}",
        "broker/test_zmtp.py::test_what_is_no_ready",
    ),
    ("abtp", "messages that wait for the disk; their bytes"): (
        f"{number(_ABTP.unkept)}; {size(_ABTP.unkept_bytes)}",
        "broker/test_abtp_front.py::test_too_much_that_waits_for_the_disk",
    ),
    ("abtp", "bytes of a control message or of headers; subscriptions of a consumer"): (
        f"{size(abtp_words.MAX_CONTROL)}; {number(abtp.MAX_SUBSCRIPTIONS)}",
        "broker/test_abtp_limits.py::test_a_control_message_and_its_subscriptions",
    ),
    (
        "abtp",
        (
            "bytes that are published before a blocked subscriber is disconnected; half of the free memory if"
            " that is more"
        ),
    ): (
        size(abtp_relay._SLOW_SUBSCRIBER_BYTES),
        "broker/test_abtp_unread.py::test_a_subscriber_that_does_not_catch_up",
    ),
    ("abtp", "messages and bytes that wait for a peer that does not read"): (
        f"{number(_ABTP.peer_queue)}; {size(_ABTP.peer_bytes)}",
        "broker/test_abtp_unread.py::test_a_consumer_that_beats_and_does_not_read",
    ),
    ("abtp", "messages that wait for a consumer; those of one topic; their bytes"): (
        "; ".join((number(_ABTP.awaiting), number(_ABTP.awaiting_of_topic), size(abtp_awaiting._MOST_BYTES))),
        "broker/test_abtp_limits.py::test_messages_that_wait_for_a_consumer",
    ),
    (
        "abtp",
        (
            "subscriptions of a SUB; their bytes (more end its connection); bytes of all SUBs (more end the "
            "largest SUB's connection)"
        ),
    ): (
        "; ".join(
            (
                number(abtp_subscription_limits.MAX_SUBSCRIPTIONS),
                size(abtp_subscription_limits.MAX_BYTES),
                size(abtp_subscription_limits.MAX_TOTAL_BYTES),
            )
        ),
        "broker/test_abtp_subscription_limits.py::test_the_limits_of_one_and_of_all",
    ),
    ("abtp", "changes of subscriptions read in a second, of all SUBs; at once"): (
        "; ".join((number(abtp_subscription_limits.MAX_CHANGES), number(abtp_subscription_limits.MAX_BURST))),
        "broker/test_abtp_subscription_limits.py::test_changes_are_read_at_a_bounded_rate",
    ),
    ("abtp", "prefixes of subscribers; more count as all topics"): (
        number(abtp_pub.MOST_PREFIXES),
        "broker/test_abtp_limits.py::test_more_prefixes_than_are_told_apart",
    ),
    ("HTTP of a broker", "bytes of a body; of a request line or a header"): (
        "; ".join((size(MAX_BODY), number(_of_aiohttp("max_line_size")))),
        "broker/test_admin.py::test_other_requests_are_refused_as_json",
        "security/test_limits.py::test_a_header_without_end",
    ),
    (
        "HTTP of a broker",
        "bytes of a request's head and of a body's trailers; lines of each (answered 431, 400)",
    ): (
        f"{size(heads.MOST)}; {number(heads.MOST_HEADERS)}",
        "broker/test_http_heads.py::test_a_head_that_is_whole_has_a_limit",
    ),
    ("HTTP of a broker", "memory of an unfinished head, TLS included"): (
        size(MOST_OF_A_HEAD),
        "broker/test_http_heads.py::test_an_unfinished_head_takes_little_memory",
    ),
    ("HTTP of a broker", "bytes of an unfinished head that may arrive with the end of the request before"): (
        size(heads.AT_ONCE),
        "broker/test_http_heads.py::test_a_head_behind_another_request_has_a_limit",
    ),
    ("HTTP of a broker", "requests that wait behind one being answered; no more are read"): (
        number(MAX_MSG_QUEUE_SIZE),
        "broker/test_http_heads.py::test_who_asks_on_and_reads_no_answer_is_not_read",
    ),
    (
        "HTTP of a broker",
        "time between two requests of a connection; until the head of a later request is complete",
    ): (
        f"{seconds(http.KEEP_ALIVE)}; {seconds(http.KEEP_ALIVE)}",
        "security/test_limits.py::test_a_connection_that_asks_no_more",
        "broker/test_http_heads.py::test_a_later_head_has_a_limit_in_time",
    ),
    (
        "HTTP of metrics",
        (
            "connections with a begun request: unauthenticated; authenticated. The oldest of its kind ends "
            "for the newest. Silent ones count as at other TCP ports"
        ),
    ): (
        f"{number(scraping._MOST)}; {number(scraping._MOST)}",
        "metrics/test_https_server.py::test_who_is_known_is_answered_to_the_end",
    ),
    ("HTTP of metrics", "bytes of a request's head (answered 431); time for handshake and head together"): (
        "; ".join((size(scraping.MOST_HEAD), seconds(scraping._PATIENCE))),
        "metrics/test_https_server.py::test_the_head_of_a_request_has_a_limit",
        "metrics/test_https_server.py::test_a_head_has_a_limit_in_time",
    ),
    (
        "answers that the `transfer` commands read over HTTP",
        "bytes of an answer, or of a line of `audit export`; of health",
    ): (
        f"{size(http_client.MOST)}; {size(health._MOST)}",
        "cli/test_http_answers.py::test_an_answer_without_end_is_given_up",
    ),
    (
        "answers that the `transfer` commands read over HTTP",
        "time for an answer, or for a line of `audit export`; for health (`--timeout`)",
    ): (
        f"{seconds(Reached().timeout)}; {seconds(_default(app.health, 'timeout'))}",
        "cli/test_http_answers.py::test_an_answer_that_drips_is_given_up",
    ),
    ("spool", "bytes of a request; of an answer; of answers that wait for a reader"): (
        "; ".join((size(protocol.MAX_REQUEST), size(protocol.MAX_ANSWER), size(reader._MOST_UNSENT))),
        "spool/test_server.py::test_a_request_that_is_too_large_ends_its_connection",
        "spool/test_chosen_columns.py::test_limits_count_the_chosen_columns",
        "spool/test_server.py::test_a_slow_reader_stops_nobody_and_takes_no_memory",
    ),
    ("spool", "fetches of a reader that wait; shards of a group"): (
        "; ".join((number(row_requests._MAX_WAITING), number(group.MAX_SHARDS))),
        "spool/test_server.py::test_too_many_fetches_are_refused",
        "spool/test_shards.py::test_shards_that_are_none_are_refused",
    ),
    ("registry", "names; members of a name; registrations of one program; of all programs; watches"): (
        "; ".join(
            (
                "; ".join(map(number, (_REGISTRY.names, _REGISTRY.members, _REGISTRY.each, _REGISTRY.all))),
                number(_REGISTRY.watchers),
            )
        ),
        "discovery/test_registry_model.py::test_there_is_a_limit_to_everything",
        "discovery/test_registry_model.py::test_there_is_a_limit_to_watchers",
    ),
    (
        "all fronts",
        "bytes of large payloads on topics that keep nothing, held for subscribers that receive another one",
    ): (
        size(MOST_GATHERED),
        "broker/test_ttp_routing.py::test_large_payloads_of_two_publishers_arrive_where_nothing_is_kept",
    ),
    (
        "tensors on a GPU",
        "pinned memory of a process for tensors above 256 MiB; time until unused memory is given back",
    ): (
        f"{size(pinned.LIMIT)}, or a quarter of what is available; {seconds(2 * pinned._REST)}",
        "tensors/test_pinned.py::test_no_more_is_pinned_than_the_limit",
        "tensors/test_pinned.py::test_the_limit_is_of_the_environment_or_of_the_machine",
        "tensors/test_pinned.py::test_what_is_not_used_goes_back_to_the_system",
    ),
}
#: options of the broker that are limits, and the tests that reach them
OPTIONS = {
    "security.max_unauthenticated": (
        "broker/test_secure_connections.py::test_those_who_say_nothing_keep_nobody_out",
        "broker/test_unfinished_connections.py::test_a_port_that_is_full_of_silent_connections_serves_the_next",
        "broker/test_http_unfinished_connections.py::test_a_body_that_never_comes_holds_no_place",
    ),
    "security.max_connections": (
        "broker/test_secure_connections.py::test_no_more_are_let_in_than_are_allowed",
    ),
    "security.handshake_timeout": ("broker/test_secure_connections.py::test_who_takes_too_long_is_put_out",),
    "native.max_message_in_pieces": (
        "broker/test_native_large_refusals.py::test_what_cannot_be_begun_is_refused",
    ),
    "native.max_message": ("broker/test_native_front.py::test_too_large_a_message_ends_its_connection_only",),
    "native.stall_timeout": ("broker/test_native_large.py::test_who_stops_in_the_middle_is_told",),
    "ttp.max_meta": (
        "broker/test_ttp_front.py::test_bytes_that_are_no_frames_end_the_connection_with_a_word_and_nobody_elses",
    ),
    "ttp.max_data": (
        "broker/test_ttp_streams.py::test_a_stream_that_cannot_be_is_refused_once_and_the_rest_of_it_passed_over",
    ),
    "ttp.max_streams": ("broker/test_ttp_streams.py::test_streams_are_limited_in_number_and_together",),
    "ttp.max_memory": ("broker/test_ttp_streams.py::test_streams_are_limited_in_number_and_together",),
    "ttp.max_subscriptions": (
        "broker/test_turns.py::test_one_shape_too_many_is_refused_by_ttp_and_the_connection_goes_on",
    ),
    "ttp.max_pattern_shapes": (
        "broker/test_turns.py::test_one_shape_too_many_is_refused_by_ttp_and_the_connection_goes_on",
    ),
    "ttp.max_pattern_shapes_total": (
        "broker/test_turns.py::test_one_shape_too_many_is_refused_by_ttp_and_the_connection_goes_on",
    ),
    "ttp.idle_timeout": (
        "broker/test_ttp_front.py::test_idle_connections_are_ended_but_subscribers_only_if_they_miss_heartbeats",
    ),
    "pybroker.max_payload": (
        "broker/test_pybroker_front.py::test_who_breaks_the_protocol_is_cut_off_and_others_are_not",
    ),
    "pybroker.max_pending": ("broker/test_pybroker_front.py::test_answers_that_nobody_reads_are_bounded",),
    "pybroker.stall_timeout": ("broker/test_pybroker_front.py::test_who_stops_in_the_middle_is_cut_off",),
    "rqueue.max_payload": (
        "broker/test_rqueue_front.py::test_who_breaks_the_protocol_is_cut_off_and_others_are_not",
    ),
    "rqueue.max_pending": (
        "broker/test_rqueue_front.py::test_who_never_reads_costs_a_bounded_number_of_bytes_and_nobody_else",
    ),
    "rqueue.max_subscriptions": (
        "broker/test_rqueue_front.py::test_who_breaks_the_protocol_is_cut_off_and_others_are_not",
    ),
    "rqueue.stall_timeout": ("broker/test_rqueue_front.py::test_who_stops_in_the_middle_is_cut_off",),
    "publish.max_announced_per_connection": (
        "broker/test_announced.py::test_the_limits_are_of_each_and_of_all",
    ),
    "publish.max_announced": ("broker/test_announced.py::test_the_limits_are_of_each_and_of_all",),
    "topics.max_topics": ("broker/test_store.py::test_too_many_topics",),
    "groups.max_groups": ("broker/test_many_groups.py::test_one_group_too_many_is_refused",),
}
#: the port of each section of options that holds all limits of that port
SECTIONS = {"ttp": "TTP", "pybroker": "PyBroker", "rqueue": "rqueue"}
