/* Opens a file with a wish for a back end of the other site, and says what it got:
 *
 *   site_backend FILE WISH|- MIB
 *
 * Each process writes blocks that lie far apart. Then all make the file MIB mebibytes long, and
 * read what the others have written, and that all else is zero. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 50000, BLOCKS = 40, PART = 1 << 20 };

static int rank, ranks;

static void must(int code, const char *what) {
  if (code != MPI_SUCCESS) {
    fprintf(stderr, "process %d: %s failed with %d\n", rank, what, code);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}
#define MUST(call) must((call), #call)

static unsigned char value(long block, long at) { return (unsigned char)(1 + (block * 7 + at) % 251); }

/* The byte that must be at an offset. */
static unsigned char expected(MPI_Offset offset) {
  MPI_Offset stride = 2 * BLOCK, block = offset / stride, at = offset % stride;
  return block < BLOCKS && at < BLOCK ? value((long)block, (long)at) : 0;
}

static void say_info(MPI_File file) {
  MPI_Info info;
  MUST(MPI_File_get_info(file, &info));
  const char *keys[] = {"tatami_site", "tatami_backend"};
  for (int i = 0; rank == 0 && i < 2; i++) {
    char text[256] = "";
    int found = 0;
    MPI_Info_get(info, keys[i], sizeof text - 1, text, &found);
    printf("%s=%s\n", keys[i], found ? text : "nothing");
  }
  MPI_Info_free(&info);
}

int main(int argc, char **argv) {
  MPI_File file;
  MPI_Info info;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 4)
    MPI_Abort(MPI_COMM_WORLD, 2);
  MPI_Info_create(&info);
  if (strcmp(argv[2], "-") != 0)
    MPI_Info_set(info, "tatami_backend", argv[2]);
  int code = MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file);
  MPI_Info_free(&info);
  if (code != MPI_SUCCESS) {
    if (rank == 0)
      printf("refused\n");
    MPI_Finalize();
    return 0;
  }
  say_info(file);
  unsigned char *bytes = malloc(PART);
  MPI_Datatype type;
  /* Every other block of the file belongs to nobody. */
  MUST(MPI_Type_vector(BLOCKS, BLOCK, 2 * BLOCK * ranks, MPI_BYTE, &type));
  MUST(MPI_Type_commit(&type));
  MUST(MPI_File_set_view(file, (MPI_Offset)rank * 2 * BLOCK, MPI_BYTE, type, "native", MPI_INFO_NULL));
  int own = (BLOCKS - rank + ranks - 1) / ranks;
  unsigned char *all = malloc((size_t)own * BLOCK);
  for (long i = 0; i < own; i++)
    for (long at = 0; at < BLOCK; at++)
      all[i * BLOCK + at] = value(i * ranks + rank, at);
  MUST(MPI_File_write(file, all, own * BLOCK, MPI_BYTE, MPI_STATUS_IGNORE));
  MUST(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
  MPI_Offset size = (MPI_Offset)atol(argv[3]) << 20, found = 0;
  MUST(MPI_File_preallocate(file, size));
  MUST(MPI_File_sync(file));
  MUST(MPI_File_get_size(file, &found));
  long wrong = found != size;
  for (MPI_Offset at = (MPI_Offset)rank * PART; at < size; at += (MPI_Offset)ranks * PART) {
    MUST(MPI_File_read_at(file, at, bytes, PART, MPI_BYTE, MPI_STATUS_IGNORE));
    for (long i = 0; i < PART; i++)
      wrong += bytes[i] != expected(at + i);
  }
  MUST(MPI_File_close(&file));
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    printf("%ld bytes are wrong\n", wrong);
  MPI_Finalize();
  return wrong != 0;
}
