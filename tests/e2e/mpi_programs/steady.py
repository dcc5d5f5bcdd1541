"""Writes a known pattern step by step. Usage: steady.py FILE STEPS; each step is a block of each rank."""
import sys
import time
from mpi4py import MPI

BLOCK = 32768
comm = MPI.COMM_WORLD
path, steps = sys.argv[1], int(sys.argv[2])


def block(step, rank):
    return bytes([(step * 7 + rank * 3 + 1) % 251]) * BLOCK


def main():
    file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
    for step in range(steps):
        if comm.rank == 0:
            print("step", step, flush=True)
        file.Write_at((step * comm.size + comm.rank) * BLOCK, block(step, comm.rank))
        if step % 8 == 7:
            file.Sync()
        time.sleep(0.02)
    file.Close()
    file = MPI.File.Open(comm, path, MPI.MODE_RDONLY)
    assert file.Get_size() == steps * comm.size * BLOCK, file.Get_size()
    got = bytearray(BLOCK)
    for step in range(steps):
        rank = (comm.rank + 1) % comm.size
        file.Read_at((step * comm.size + rank) * BLOCK, got)
        assert got == block(step, rank), (step, rank)
    file.Close()
    print("all values right", flush=True)


try:
    main()
except MPI.Exception as error:
    print("rank %d: %s" % (comm.rank, error.Get_error_string()), file=sys.stderr, flush=True)
    comm.Abort(1)
