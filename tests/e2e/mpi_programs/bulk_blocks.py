"""Writes and reads large blocks of a known pattern, and waits in the middle of both.

Usage: bulk_blocks.py FILE STEPS PAUSE [together]
           each step is a block of each rank. Before step PAUSE the program says "writing" or
           "reading", and waits for /srv/go-writing or /srv/go-reading. "together": where all ranks
           fail, the first one waits for the others
       bulk_blocks.py check FILE BLOCKS  checks a local file of one rank after the other
"""
import os
import sys
import time

BLOCK = 3 << 20
PATTERN = bytes(range(251)) * (BLOCK // 251 + 2)


def block(number):
    start = number * 7 % 251
    return PATTERN[start:start + BLOCK]


def wait(comm, phase):
    comm.Barrier()
    if comm.rank == 0:
        print(phase, flush=True)
    while not os.path.exists("/srv/go-" + phase):
        time.sleep(0.02)


def main(comm, path, steps, pause):
    file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
    for step in range(steps):
        if step == pause:
            wait(comm, "writing")
        number = step * comm.size + comm.rank
        file.Write_at(number * BLOCK, block(number))
    file.Sync()
    comm.Barrier()
    got = bytearray(BLOCK)
    for step in range(steps):
        if step == pause:
            wait(comm, "reading")
        number = step * comm.size + (comm.rank + 1) % comm.size
        file.Read_at(number * BLOCK, got)
        assert got == block(number), (step, number)
    file.Close()
    if comm.rank == 0:
        print("all values right", flush=True)


if sys.argv[1] == "check":
    with open(sys.argv[2], "rb") as local:
        for at in range(int(sys.argv[3])):
            assert local.read(BLOCK) == block(at), at
        assert not local.read(1)
else:
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    try:
        main(world, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    except MPI.Exception as error:
        print("rank %d: %s" % (world.rank, error.Get_error_string()), file=sys.stderr, flush=True)
        if "together" in sys.argv:
            world.Barrier()
        world.Abort(1)
