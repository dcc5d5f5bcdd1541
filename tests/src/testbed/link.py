#!/usr/bin/env python3
"""A bad link, for tests: packets that the kernel routes to the device tun0 come back from it late, or
never. The kernel of a test machine may have no netem.

    link.py [delay=SECONDS] [rate=BYTES_PER_SECOND] [loss=FRACTION] [stall=SECONDS] [seed=NUMBER]

delay: of each packet, one way. rate: in each direction. loss: of packets. stall: once in so many
seconds, on average, a TCP connection stands still for 0.2 to 3 seconds while the others go on, and
then delivers all at once.
"""

import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
QUEUE_BYTES = 4 << 20

options = dict(delay=0.0, rate=0.0, loss=0.0, stall=0.0, seed=1.0)
for word in sys.argv[1:]:
    name, value = word.split("=")
    options[name] = float(value)
delay, rate, loss, stall = (options[name] for name in ("delay", "rate", "loss", "stall"))
rng = random.Random(options["seed"])

tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", b"tun0", IFF_TUN | IFF_NO_PI))

due_packets, count = [], 0
free_at, queued = {}, {}
# For each TCP connection: when its next stall begins, and when that ends.
stalls = {}


def find_stall(packet, now):
    """Returns the time before which a packet is not delivered."""
    if not stall or packet[9] != 6:
        return now
    ends = (packet[12:16] + packet[20:22], packet[16:20] + packet[22:24])
    begin, end = stalls.setdefault(tuple(sorted(ends)), (now + rng.expovariate(1 / stall), 0))
    if now >= begin and now >= end:
        end = now + rng.uniform(0.2, 3.0)
        stalls[tuple(sorted(ends))] = (end + rng.expovariate(1 / stall), end)
    return max(now, end)


while True:
    wait = max(0.0, due_packets[0][0] - time.monotonic()) if due_packets else None
    ready, _, _ = select.select([tun], [], [], wait)
    now = time.monotonic()
    for _ in range(64 if ready else 0):
        try:
            packet = os.read(tun, 65536)
        except BlockingIOError:
            break
        if packet[0] >> 4 != 4 or (loss and rng.random() < loss):
            continue
        way = packet[12:15]
        if queued.get(way, 0) > QUEUE_BYTES:
            continue
        due = max(now, free_at.get(way, now))
        if rate:
            due += len(packet) / rate
            free_at[way] = due
        due = max(due, find_stall(packet, now)) + delay
        count += 1
        queued[way] = queued.get(way, 0) + len(packet)
        heapq.heappush(due_packets, (due, count, packet))
    now = time.monotonic()
    while due_packets and due_packets[0][0] <= now:
        packet = heapq.heappop(due_packets)[2]
        queued[packet[12:15]] -= len(packet)
        try:
            os.write(tun, packet)
        except OSError:
            pass
