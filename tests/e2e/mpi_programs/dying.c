/*
 * A job that dies: each rank writes every n-th block through a view, no rank closes or syncs,
 * and then all are killed.
 * Usage: dying PATH BLOCKS
 */
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 1000 };

int main(int argc, char **argv)
{
  int rank, ranks;
  MPI_File file;
  MPI_Datatype every;
  char block[BLOCK];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < 3 || MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file))
    MPI_Abort(MPI_COMM_WORLD, 2);
  MPI_Type_vector(1, BLOCK, BLOCK, MPI_BYTE, &every);
  MPI_Type_create_resized(every, 0, (MPI_Aint)ranks * BLOCK, &every);
  MPI_Type_commit(&every);
  MPI_File_set_view(file, (MPI_Offset)rank * BLOCK, MPI_BYTE, every, "native", MPI_INFO_NULL);
  for (int i = 0; i < atoi(argv[2]); i++) {
    memset(block, 'a' + (i * ranks + rank) % 26, sizeof block);
    if (MPI_File_write(file, block, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      MPI_Abort(MPI_COMM_WORLD, 3);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  kill(getpid(), SIGKILL);
}
