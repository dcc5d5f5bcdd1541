"""mpi4py: Python loads the MPI library where no other library sees it."""
import sys
from array import array

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, ranks = comm.rank, comm.size
path = sys.argv[1]
BLOCK, BLOCKS = 7, 30

values = array("i", (1000 * rank + i for i in range(BLOCK * BLOCKS)))
file = MPI.File.Open(comm, path, MPI.MODE_RDWR | MPI.MODE_CREATE)
block = MPI.INT.Create_contiguous(BLOCK)
spread = block.Create_resized(0, 4 * BLOCK * ranks)
spread.Commit()
file.Set_view(4 * BLOCK * rank, MPI.INT, spread)
status = MPI.Status()
file.Write_all([values, MPI.INT], status)
assert status.Get_count(MPI.INT) == len(values)
assert file.Get_position() == len(values)
file.Sync()
comm.Barrier()
file.Sync()
assert file.Get_size() == 4 * BLOCK * BLOCKS * ranks, file.Get_size()

neighbour = (rank + 1) % ranks
back = array("i", bytes(4 * len(values)))
file.Set_view(4 * BLOCK * neighbour, MPI.INT, spread)
request = file.Iread_at(0, [back, MPI.INT])
request.Wait(status)
assert list(back) == [1000 * neighbour + i for i in range(len(values))]

file.Set_view(0, MPI.INT, MPI.INT)
file.Seek_shared(0, MPI.SEEK_SET)
mine = array("i", [rank] * (rank + 1))
file.Write_ordered([mine, MPI.INT])
assert file.Get_position_shared() == ranks * (ranks + 1) // 2
assert file.amode == MPI.MODE_RDWR | MPI.MODE_CREATE
assert file.Get_group().Get_size() == ranks
try:
    file.Read_at(-1, [back, MPI.INT])
    raise AssertionError("a negative offset was taken")
except MPI.Exception as error:
    assert error.Get_error_class() == MPI.ERR_ARG, error
file.Close()
if rank == 0:
    print("all values right", MPI.Get_library_version().split(",")[0])
