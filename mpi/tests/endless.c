/*
 * Writes until it is killed, or until all blocks are written, and records each write that returned.
 * Usage:
 *   endless PATH LOG BLOCKS HOW [SYNC]
 * Rank r of n writes the blocks r, r+n, r+2n, … of PATH, BLOCKS of them: through a view (HOW
 * "view") or at explicit offsets ("bytes", and "atomic" in atomic mode). LOG.r has two numbers of 8
 * bytes: the process, and its number of written blocks. After every SYNC blocks all ranks sync.
 * With all blocks written it reads the blocks of its neighbour, and closes the file.
 */
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCK = 1000 };

static void fill(unsigned char *bytes, uint64_t at)
{
  for (uint64_t i = at; i < at + BLOCK; i++)
    *bytes++ = (unsigned char)((i * 2654435761u) >> 13);
}

static volatile uint64_t *log_of(const char *prefix, int rank)
{
  char name[4096];
  snprintf(name, sizeof name, "%s.%d", prefix, rank);
  int file = open(name, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, 16) != 0)
    exit(3);
  volatile uint64_t *words = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (words == MAP_FAILED)
    exit(3);
  words[0] = (uint64_t)getpid();
  return words;
}

int main(int argc, char **argv)
{
  int rank, ranks, wrong = 0;
  unsigned char bytes[BLOCK], expected[BLOCK];
  MPI_File file;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < 5)
    MPI_Abort(MPI_COMM_WORLD, 2);
  uint64_t blocks = strtoull(argv[3], NULL, 10), every = argc > 5 ? strtoull(argv[5], NULL, 10) : 0;
  int by_view = strcmp(argv[4], "view") == 0;
  volatile uint64_t *log = log_of(argv[2], rank);
  if (MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file) != MPI_SUCCESS)
    MPI_Abort(MPI_COMM_WORLD, 2);
  if (strcmp(argv[4], "atomic") == 0)
    MPI_File_set_atomicity(file, 1);
  if (by_view) {
    MPI_Datatype block, spread;
    MPI_Type_contiguous(BLOCK, MPI_BYTE, &block);
    MPI_Type_create_resized(block, 0, (MPI_Aint)ranks * BLOCK, &spread);
    MPI_Type_commit(&spread);
    MPI_File_set_view(file, (MPI_Offset)rank * BLOCK, MPI_BYTE, spread, "native", MPI_INFO_NULL);
  }
  for (uint64_t k = 0; k < blocks && wrong == 0; k++) {
    uint64_t at = (k * (uint64_t)ranks + (uint64_t)rank) * BLOCK;
    fill(bytes, at);
    MPI_Offset place = (MPI_Offset)(by_view ? k * BLOCK : at);
    wrong += MPI_File_write_at(file, place, bytes, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE) != MPI_SUCCESS;
    if (wrong == 0)
      log[1] = k + 1;
    if (every != 0 && (k + 1) % every == 0)
      wrong += MPI_File_sync(file) != MPI_SUCCESS;
  }
  wrong += MPI_File_sync(file) != MPI_SUCCESS;
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
  for (uint64_t k = 0; k < blocks && wrong == 0; k += 1 + blocks / 50) {
    uint64_t at = (k * (uint64_t)ranks + (uint64_t)((rank + 1) % ranks)) * BLOCK;
    fill(expected, at);
    MPI_File_read_at(file, (MPI_Offset)at, bytes, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE);
    wrong += memcmp(bytes, expected, BLOCK) != 0;
  }
  wrong += MPI_File_close(&file) != MPI_SUCCESS;
  if (wrong != 0)
    printf("rank %d: %d wrong\n", rank, wrong);
  MPI_Finalize();
  return wrong != 0;
}
