"""Methods of an event loop that ours refuses, with the line of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from stepwell.model.errors import NotDurable
from stepwell.replay.places import line_of_user

_REFUSED = {
    "threads": ("run_in_executor", "call_soon_threadsafe", "set_default_executor"),
    "sockets": (
        "create_connection", "create_server", "create_unix_connection", "create_unix_server",
        "create_datagram_endpoint", "connect_accepted_socket", "start_tls", "sendfile", "sock_recv", "sock_recv_into",
        "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto", "sock_connect", "sock_accept",
        "sock_sendfile", "add_reader", "remove_reader", "add_writer", "remove_writer", "getaddrinfo", "getnameinfo",
    ),
    "processes": ("subprocess_shell", "subprocess_exec", "connect_read_pipe", "connect_write_pipe"),
    "operating system signals": ("add_signal_handler", "remove_signal_handler"),
    "a loop inside the loop": ("run_forever", "run_until_complete", "stop"),
    "a loop with other rules": ("set_task_factory", "set_exception_handler", "set_debug"),
}  # fmt: skip

_UNUSED = ("default_exception_handler", "get_exception_handler")


def refusing(loop: type[Any]) -> type[Any]:
    """Add the refusing methods to a loop class."""
    for what, verbs in _REFUSED.items():
        for verb in verbs:
            setattr(loop, verb, _refuse(verb, what))
    for verb in _UNUSED:
        setattr(loop, verb, lambda self, *_: None)
    loop.call_exception_handler = loop.unheard
    loop.__abstractmethods__ = frozenset()  # all abstract methods are set by now
    return loop


def _refuse(verb: str, what: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *args: Any, **_kwargs: Any) -> NoReturn:
        for given in args:
            if asyncio.iscoroutine(given):
                given.close()
        raise NotDurable(what, line_of_user())

    refuse.__name__ = verb
    return refuse
