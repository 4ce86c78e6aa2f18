"""A connection that can be cut: bytes are passed on to a server until it is."""

import socket
import threading
from contextlib import contextmanager, suppress


class Severed:
    """Passes on what comes to ``port``; :meth:`cut` closes every connection there is."""

    def __init__(self, port):
        self._target = port
        self._open = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass(one, other):
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        one.close()

    def cut(self):
        self.cuts += 1
        ends, self._open = self._open, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listener.close()
        self.cut()


@contextmanager
def severed(port):
    """Yield what passes on to a port of this machine."""
    passing = Severed(port)
    try:
        yield passing
    finally:
        passing.close()
