"""Stands for ssh(1). One side speaks at a time, until it is silent: each turn of this side is a
round trip of a link with a long delay. Their number is written to /tmp/turns at the end."""
import os
import select
import subprocess
import sys

SSH = "/usr/bin/ssh"
SILENCE = 0.1

arguments = [SSH] + sys.argv[1:]
if "-G" in arguments or not arguments[-1].rstrip("'").endswith("gateway"):
    os.execv(SSH, arguments)
ssh = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
near, far = sys.stdin.fileno(), ssh.stdout.fileno()


def read_turn(source):
    """Returns the bytes until the source is silent, and whether it has ended."""
    parts = []
    while select.select([source], [], [], SILENCE)[0]:
        part = os.read(source, 1 << 20)
        if not part:
            return b"".join(parts), True
        parts.append(part)
    return b"".join(parts), False


def write_all(target, data):
    while data:
        data = data[os.write(target, data):]


turns, has_ended = 0, False
while not has_ended:
    ready = select.select([near, far], [], [])[0]
    if far in ready:
        data, has_ended = read_turn(far)
        write_all(sys.stdout.fileno(), data)
    else:
        data, has_ended = read_turn(near)
        turns += 1 if data else 0
        write_all(ssh.stdin.fileno(), data)
ssh.stdin.close()
ssh.wait()
with open("/tmp/turns.new", "w") as file:
    file.write(f"{turns}\n")
os.rename("/tmp/turns.new", "/tmp/turns")
