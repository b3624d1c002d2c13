"""How train workers find each other: by the addresses that Ray's nodes go by."""

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
    """Workers listen on the interface of their node's address. Left to itself, gloo takes what the host's name stands for: on
    many hosts 127.0.0.1, where nobody else can reach it.
    """

    @property
    def backend_cls(self) -> Any:
        class Backend(super().backend_cls):  # type: ignore[misc]
            def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
                if len(worker_group) == 1 and backend_config.backend == "gloo":
                    return  # nobody to talk to: no threads that listen
                worker_group.execute(listen_on_own_address)
                super().on_start(worker_group, backend_config)

        return Backend


def listen_on_own_address() -> None:
    """Tell gloo of this process which interface to use, unless the user did."""
    import ray

    interface = interface_of(ray.util.get_node_ip_address())
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def interface_of(address: str) -> str | None:
    """The name of the interface with this address; None where the system does not say (not Linux, IPv6)."""
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
