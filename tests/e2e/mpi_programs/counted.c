/* Does one operation COUNT times with all ranks. Two runs with two counts show its cost.
 *
 *   counted FILE COUNT open     makes FILE.0, FILE.1, ..., and closes each
 *   counted FILE COUNT write    the same, and each rank writes a block to each
 *   counted FILE COUNT last     the same, and the last rank writes a block to each
 *   counted FILE COUNT shared   each rank writes COUNT blocks to FILE by the shared pointer
 *   counted FILE COUNT atomic   each rank writes and reads the same block COUNT times in atomic mode
 *
 * The program checks that all bytes are there. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCK = 16 };

static int rank, ranks;

static void must(int good, const char *what)
{
  if (good)
    return;
  printf("rank %d: %s\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static MPI_File begin(const char *name, int mode)
{
  MPI_File file;
  must(MPI_File_open(MPI_COMM_WORLD, name, mode, MPI_INFO_NULL, &file) == MPI_SUCCESS, "open");
  return file;
}

/* A block contains the rank that wrote it, and its number. */
static void fill(long long block[2], int of, int at)
{
  block[0] = of + 1;
  block[1] = at;
}

static void open_all(const char *name, int count, int writes) /* does this rank write? */
{
  char one[4096];
  long long block[2];
  /* The mounts of all ranks have just looked at the directory. For a second after that no mount gets
   * a delegation of it. The files are to be counted, not the beginning of a job. */
  MPI_Barrier(MPI_COMM_WORLD);
  nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 300000000}, NULL);
  MPI_Barrier(MPI_COMM_WORLD);
  for (int k = 0; k < count; k++) {
    snprintf(one, sizeof one, "%s.%d", name, k);
    MPI_File file = begin(one, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY);
    fill(block, rank, k);
    if (writes)
      must(MPI_File_write_at(file, (MPI_Offset)rank * BLOCK, block, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE) == MPI_SUCCESS,
           "write");
    must(MPI_File_close(&file) == MPI_SUCCESS, "close");
  }
}

static void write_shared(const char *name, int count)
{
  MPI_File file = begin(name, MPI_MODE_CREATE | MPI_MODE_RDWR);
  long long block[2];
  for (int k = 0; k < count; k++) {
    fill(block, rank, k);
    must(MPI_File_write_shared(file, block, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE) == MPI_SUCCESS, "write_shared");
  }
  must(MPI_File_sync(file) == MPI_SUCCESS, "sync");
  int all = count * ranks;
  long long *found = malloc((size_t)all * BLOCK + BLOCK);
  char *seen = calloc((size_t)all + 1, 1);
  MPI_Status status;
  int bytes;
  must(MPI_File_read_at_all(file, 0, found, all * BLOCK + BLOCK, MPI_BYTE, &status) == MPI_SUCCESS, "read");
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  must(bytes == all * BLOCK, "the size is wrong");
  for (int i = 0; i < all; i++) {
    long long of = found[2 * i] - 1, at = found[2 * i + 1];
    must(of >= 0 && of < ranks && at >= 0 && at < count && !seen[of * count + at]++, "a block is wrong");
  }
  free(found);
  free(seen);
  must(MPI_File_close(&file) == MPI_SUCCESS, "close");
}

/* All ranks write the same range: in atomic mode all its bytes are those of one write. */
static void write_atomic(const char *name, int count)
{
  enum { LONG = 4096 };
  static char own[LONG], found[LONG];
  MPI_File file = begin(name, MPI_MODE_CREATE | MPI_MODE_RDWR);
  must(MPI_File_set_atomicity(file, 1) == MPI_SUCCESS, "set_atomicity");
  for (int k = 0; k < count; k++) {
    memset(own, 1 + (rank * 31 + k) % 250, LONG);
    must(MPI_File_write_at(file, 0, own, LONG, MPI_BYTE, MPI_STATUS_IGNORE) == MPI_SUCCESS, "write_at");
    must(MPI_File_read_at(file, 0, found, LONG, MPI_BYTE, MPI_STATUS_IGNORE) == MPI_SUCCESS, "read_at");
    must(found[0] != 0 && memcmp(found, found + 1, LONG - 1) == 0, "a write is not whole");
  }
  must(MPI_File_close(&file) == MPI_SUCCESS, "close");
}

int main(int argc, char **argv)
{
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  must(argc == 4, "usage: counted FILE COUNT WHAT");
  int count = atoi(argv[2]);
  if (strcmp(argv[3], "shared") == 0)
    write_shared(argv[1], count);
  else if (strcmp(argv[3], "atomic") == 0)
    write_atomic(argv[1], count);
  else
    open_all(argv[1], count, strcmp(argv[3], "write") == 0 || (strcmp(argv[3], "last") == 0 && rank == ranks - 1));
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0)
    printf("all values right\n");
  MPI_Finalize();
  return 0;
}
