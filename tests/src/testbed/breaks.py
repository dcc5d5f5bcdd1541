#!/usr/bin/python3
"""The way of an ssh (its ProxyCommand) that breaks after a random number of bytes.

Usage: breaks.py HOST PORT LOG SEED COUNT. Each break of any such way adds a line to the file LOG.
When it has COUNT lines, no way breaks any more. Each third break leaves the connection to the host
half open for some seconds.
"""
import fcntl
import os
import random
import select
import socket
import sys
import time

# More than a login takes: the first one of a program is not repeated.
LEAST, MOST = 10_000, 40_000


def count_break(log, count):
    """Adds a line to the log; returns the number of lines, or 0 if there are enough of them."""
    with open(log, "a+") as lines:
        fcntl.flock(lines, fcntl.LOCK_EX)
        lines.seek(0)
        number = len(lines.readlines()) + 1
        if number > count:
            return 0
        lines.write(f"{number}\n")
        return number


def main():
    host, port, log, seed, count = sys.argv[1], *map(str, sys.argv[2:4]), *map(int, sys.argv[4:6])
    left = random.Random(seed * 1_000_003 + os.getpid()).randrange(LEAST, MOST)
    there = socket.create_connection((host, int(port)))
    while True:
        for ready in select.select([0, there], [], [])[0]:
            size = min(65536, left)
            some = os.read(0, size) if ready == 0 else there.recv(size)
            if not some:
                return
            if ready == 0:
                there.sendall(some)
            else:
                while some:
                    wrote = os.write(1, some)
                    left, some = left - wrote, some[wrote:]
                continue
            left -= len(some)
        if left < 1:
            number = count_break(log, count)
            if not number:
                left = 1 << 60
                continue
            if number % 3 == 0 and os.fork() == 0:
                for stream in range(3):
                    os.close(stream)
                time.sleep(4)
            return


main()
