"""Socket mixes its Python with the core's class: neither may overwrite a name of the other."""

from __future__ import annotations

import dis

import transfer
from transfer.asyncio import AsyncMethods
from transfer.sockets.socket import SocketMethods

HOOKS = {
    "_send_general",
    "_recv_general",
    "_deliver",
    "_admitted",
    "_take_back",
    "_give_again",
    "_no_message",
    "_on_control",
    "_on_long_wait",
    "_on_lost",
    "_on_refused",
    "_socket_thread",
    "_recv_multipart",
    "_send_multipart",
    "_send_orphans",
}
#: attributes of the core that the socket sets on purpose
SHARED = {
    "_turn",
    "_lent",
    "_general_send",
    "_general_recv",
    "_routes",
    "_with_identity",
    "receive_timeout",
    "socket_type",
    "send",
    "recv",
    "recv_multipart",
    "send_many",
    "recv_many",
    "send_multipart",
}


def test_no_name_of_the_socket_hides_one_of_the_core(context):
    core = context.core.SocketBase
    bare = core(int(transfer.PAIR), 1, 1, context.flusher, context.pool)
    of_core = {name for cls in core.__mro__[:-1] for name in vars(cls)} | set(getattr(bare, "__dict__", ()))
    bare._close_core()
    of_socket = {name for cls in AsyncMethods.__mro__[:-1] for name in vars(cls)}
    of_socket |= {
        step.argval for step in dis.get_instructions(SocketMethods.__init__) if step.opname == "STORE_ATTR"
    }
    both = {name for name in of_core & of_socket if not name.startswith("__")}
    assert both <= HOOKS | SHARED, both - HOOKS - SHARED
