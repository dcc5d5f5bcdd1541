#!/usr/bin/env python3
"""A long way to a port of this host, for measurements: what arrives at PORT is passed on to TARGET
after SECONDS, and so are the answers. The kernel of a test machine may have no netem.

    delay.py PORT TARGET SECONDS [PORT TARGET SECONDS ...]
"""

import queue
import socket
import sys
import threading
import time


def pump(source, sink, seconds):
    """Passes bytes on in one direction, each when it is due."""
    due_parts = queue.Queue(512)

    def receive():
        data = b"x"
        while data:
            try:
                data = source.recv(1 << 17)
            except OSError:
                data = b""
            due_parts.put((time.monotonic() + seconds, data))

    def send():
        broken = False
        while True:
            due, data = due_parts.get()
            time.sleep(max(0, due - time.monotonic()))
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                elif not broken:
                    sink.sendall(data)
            except OSError:
                broken = True
            if not data:
                return

    for body in (receive, send):
        threading.Thread(target=body, daemon=True).start()


def serve(port, target, seconds):
    listener = socket.create_server(("", port), backlog=128)
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", target))
        except OSError:
            near.close()
            continue
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pump(near, far, seconds)
        pump(far, near, seconds)


words = sys.argv[1:]
for at in range(0, len(words), 3):
    facts = (int(words[at]), int(words[at + 1]), float(words[at + 2]))
    threading.Thread(target=serve, args=facts).start()
