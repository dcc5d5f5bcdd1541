"""Writes and reads a file of numbers or of noise on siteb, and says what compression was in force.

Usage: compressed_blocks.py FILE KIND MIB WISH|-  each rank has MIB mebibytes; KIND is numbers or noise
       compressed_blocks.py check FILE KIND MIB RANKS  checks a local file
Between the writes and the reads it says "written", and waits for /srv/go-on.
"""
import array
import os
import random
import sys
import time

STEP = 4 << 20


def content(kind, mib, rank):
    if kind == "noise":
        return random.Random(rank).randbytes(mib << 20)
    return array.array("d", (rank + at / 7 for at in range(mib << 17))).tobytes()


def main(comm, path, kind, mib, wish):
    info = MPI.Info.Create()
    info.Set("host", "siteb")
    if wish != "-":
        info.Set("tatami_compression", wish)
    data = memoryview(content(kind, mib, comm.rank))
    file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_RDWR, info)
    start = comm.rank * len(data)
    for at in range(0, len(data), STEP):
        file.Write_at(start + at, data[at:at + STEP])
    file.Sync()
    comm.Barrier()
    if comm.rank == 0:
        print("compression=" + file.Get_info().Get("tatami_compression"), flush=True)
        print("written", flush=True)
    while not os.path.exists("/srv/go-on"):
        time.sleep(0.02)
    got = bytearray(len(data))
    for at in range(0, len(data), STEP):
        file.Read_at(start + at, memoryview(got)[at:at + STEP])
    assert got == data
    file.Close()
    if comm.rank == 0:
        print("all values right", flush=True)


if sys.argv[1] == "check":
    with open(sys.argv[2], "rb") as local:
        for rank in range(int(sys.argv[5])):
            wanted = content(sys.argv[3], int(sys.argv[4]), rank)
            assert local.read(len(wanted)) == wanted, rank
        assert not local.read(1)
else:
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    try:
        main(world, sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
    except MPI.Exception as error:
        print("rank %d: %s" % (world.rank, error.Get_error_string()), file=sys.stderr, flush=True)
        world.Abort(1)
