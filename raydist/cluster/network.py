"""How train workers reach each other: through the addresses of Ray's nodes."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from typing import Any

from ray.train.torch import TorchConfig

ASK_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


@dataclass
class NodeAddresses(TorchConfig):
    """Makes workers listen on the interface of their node's address. By default gloo resolves the host's name: on many hosts
    to 127.0.0.1, which no other node can reach.
    """

    @property
    def backend_cls(self) -> Any:
        class Backend(super().backend_cls):  # type: ignore[misc]
            def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
                if len(worker_group) == 1 and backend_config.backend == "gloo":
                    return  # no peers: no listening threads
                worker_group.execute(listen_on_own_address)
                super().on_start(worker_group, backend_config)

        return Backend


def listen_on_own_address() -> None:
    """Set the interface for this process's gloo, unless the user did."""
    import ray

    interface = interface_of(ray.util.get_node_ip_address())
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def interface_of(address: str) -> str | None:
    """The name of the interface with this address; None if unavailable (not Linux, or IPv6)."""
    try:
        import fcntl

        wanted = socket.inet_aton(address)
    except (ImportError, OSError):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking.fileno(), ASK_ADDRESS, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no address
                continue
            if answer[20:24] == wanted:
                return name
    return None
