/* Ranks that open one file each by itself, and see the writes of the others after a sync of both.
 *
 *   two_opens FILE */
#include <mpi.h>
#include <stdio.h>

enum { COUNT = 1000, ROUNDS = 5 };

static int rank, ranks, wrong;

static int value(int round, int of, int at) { return (round * 100 + of) * COUNT + at; }

static void check(int good, const char *what, int round) {
  if (good)
    return;
  printf("rank %d, round %d: %s\n", rank, round, what);
  wrong = 1;
}

int main(int argc, char **argv) {
  MPI_File file;
  int words[COUNT], all;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 2 ||
      MPI_File_open(MPI_COMM_SELF, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file) != MPI_SUCCESS)
    MPI_Abort(MPI_COMM_WORLD, 1);
  for (int round = 0; round < ROUNDS; round++) {
    MPI_Offset own = (MPI_Offset)rank * (MPI_Offset)sizeof words, size;
    for (int i = 0; i < COUNT; i++)
      words[i] = value(round, rank, i);
    check(MPI_File_write_at(file, own, words, COUNT, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS, "a write", round);
    /* The standard's way: sync, barrier, sync. */
    check(MPI_File_sync(file) == MPI_SUCCESS, "a sync", round);
    MPI_Barrier(MPI_COMM_WORLD);
    check(MPI_File_sync(file) == MPI_SUCCESS, "a second sync", round);
    MPI_File_get_size(file, &size);
    check(size == (MPI_Offset)ranks * (MPI_Offset)sizeof words, "the size", round);
    for (int other = 0; other < ranks; other++) {
      int good = 1;
      MPI_Offset at = (MPI_Offset)other * (MPI_Offset)sizeof words;
      check(MPI_File_read_at(file, at, words, COUNT, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS, "a read", round);
      for (int i = 0; i < COUNT; i++)
        good &= words[i] == value(round, other, i);
      check(good, "what another wrote before its sync", round);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_File_close(&file);
  MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0 && !all)
    printf("all values right\n");
  MPI_Finalize();
  return all;
}
