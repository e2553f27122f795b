"""The cases by name. Each module holds one family: which messages, what each process does."""

from __future__ import annotations

from importlib import import_module

from bench.work import Case

ZMQ_LOOPS = (
    *("send", "send_1k", "keyword", "parts", "multipart", "poller_1", "poller_2", "poller_16"),
    *("router_echo", "dealer_router", "req_rep", "pub_sub", "many", "inproc", "miss", "lives"),
    *("awaiting", "hoisted", "batches"),
)
#: name -> module; a module's CASES holds its cases by name
MODULES = {
    "push_pull": "stream",
    "pair": "stream",
    "tls_push_pull": "tls",
    "tls_connections": "tls",
    "asyncio": "async_stream",
    "req_rep": "roundtrip",
    "req_rep_under_load": "under_load",
    "interface_push": "interface",
    "interface_request": "interface",
    "interface_futures": "futures",
    "pub_fanout": "fanout",
    "tensors": "tensors",
    "burst_tail": "burst",
    "memory": "memory",
    "connections": "connections",
    "import": "import_time",
    "netem": "netem",
    "ucx_push_pull": "ucx",
    "ucx_req_rep": "ucx",
    "local_push_pull": "local",
    "local_tensors": "local",
    "local_empty": "local",
    "local_idle": "local",
    "log_append": "log",
    **{f"zmq_{name}": "zmq_programs" for name in ZMQ_LOOPS},
}


def case_named(name: str) -> Case:
    """Returns the case of that name. Raises KeyError for a name that is not in MODULES."""
    cases: dict[str, Case] = import_module(f"bench.cases.{MODULES[name]}").CASES
    return cases[name]
