"""One file, written by all processes in several ways, and read back by others.

    mpi4py_shared.py FILE
"""

import array
import sys

from mpi4py import MPI

COUNT = 1000
BLOCK = 7

comm = MPI.COMM_WORLD
rank, ranks = comm.Get_rank(), comm.Get_size()


def value(place):
    return (place * 2654435761) % 2147483647


def mine(owner):
    """The numbers that a process owns, in the order of the file."""
    return array.array(
        "i", (value((i * ranks + owner) * BLOCK + k) for i in range(COUNT) for k in range(BLOCK))
    )


def view(file, owner):
    etype = MPI.INT
    filetype = etype.Create_vector(COUNT, BLOCK, BLOCK * ranks).Commit()
    file.Set_view(owner * BLOCK * etype.Get_size(), etype, filetype)
    filetype.Free()


file = MPI.File.Open(comm, sys.argv[1], MPI.MODE_CREATE | MPI.MODE_RDWR)
view(file, rank)
file.Write_all(mine(rank))
# A tail in the order of the processes: the shared pointer, over a plain view.
end = COUNT * BLOCK * ranks * 4
file.Set_view(end, MPI.BYTE, MPI.BYTE)
file.Write_ordered(bytearray(b"process %03d\n" % rank))
request = file.Iwrite_at(12 * ranks + rank, bytearray([65 + rank]))
request.Wait()
file.Sync()
comm.Barrier()
assert file.Get_size() == end + 13 * ranks, file.Get_size()
file.Close()

file = MPI.File.Open(comm, sys.argv[1], MPI.MODE_RDONLY)
owner = (rank + 1) % ranks
view(file, owner)
got = array.array("i", bytes(4 * COUNT * BLOCK))
file.Read_all(got)
assert got == mine(owner), "wrong numbers"
file.Set_view(end, MPI.BYTE, MPI.BYTE)
tail = bytearray(13 * ranks)
file.Read_at_all(0, tail)
wanted = b"".join(b"process %03d\n" % r for r in range(ranks))
assert tail == wanted + bytes(65 + r for r in range(ranks)), bytes(tail)
file.Close()
if rank == 0:
    print("all values right")
