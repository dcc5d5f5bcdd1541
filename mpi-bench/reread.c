/* Reads and verifies a file of one of the other programs, with any number of processes and
 * another view than the writers'. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *file;
static uint64_t size, block, transfer = 4 << 20, data_bytes = 1, period = 1, seed = 1;
static bool collective, any_holes;

static const struct option_spec specs[] = {
    {"file", OPTION_TEXT, &file, "the file"},
    {"size", OPTION_SIZE, &size, "its bytes"},
    {"block", OPTION_SIZE, &block, "read through a view of blocks of so many bytes, dealt out in "
                                   "turn; without: each process reads one stretch"},
    {"transfer", OPTION_SIZE, &transfer, "bytes of a call (4m)"},
    {"data", OPTION_SIZE, &data_bytes, "of every --period bytes, this many are data"},
    {"period", OPTION_SIZE, &period, "and the rest are zeros; without: all is data"},
    {"any-holes", OPTION_FLAG, &any_holes, "or anything"},
    {"collective", OPTION_FLAG, &collective, "collective calls"},
    {"seed", OPTION_SIZE, &seed, "of the contents (1)"},
    {NULL, OPTION_END, NULL, NULL}};

static uint64_t less(uint64_t a, uint64_t than) { return a < than ? a : than; }

int main(int argc, char **argv) {
  struct bench b;
  bench_start(&b, "reread", &argc, &argv, specs);
  if (file == NULL || size == 0 || transfer == 0 || transfer > INT32_MAX || block > INT32_MAX)
    bench_fail("options", "a --file, its --size, and calls and blocks of less than 2 GiB");
  uint64_t ranks = (uint64_t)b.ranks, rank = (uint64_t)b.rank;
  struct pattern p = {seed, data_bytes, period, any_holes};
  /* A stretch is a single block. */
  uint64_t each = block > 0 ? block : (size + ranks - 1) / ranks;
  uint64_t rounds = (size + each * ranks - 1) / (each * ranks), mine = 0;
  for (uint64_t i = 0; i < rounds; i++) {
    uint64_t from = (i * ranks + rank) * each;
    mine += from < size ? less(each, size - from) : 0;
  }
  uint64_t calls = (rounds * each + transfer - 1) / transfer;
  char *data = bench_buffer(mine);
  memset(data, 0x5a, mine);
  MPI_File f;
  MPI_Offset there = 0;
  phase_begin(&b);
  MUST(MPI_File_open(MPI_COMM_WORLD, file, MPI_MODE_RDONLY, MPI_INFO_NULL, &f));
  if (block > 0) {
    MPI_Datatype part, tile;
    MUST(MPI_Type_contiguous((int)block, MPI_BYTE, &part));
    MUST(MPI_Type_create_resized(part, 0, (MPI_Aint)(block * ranks), &tile));
    MUST(MPI_Type_commit(&tile));
    MUST(MPI_File_set_view(f, (MPI_Offset)(rank * block), MPI_BYTE, tile, "native", MPI_INFO_NULL));
    MPI_Type_free(&tile);
    MPI_Type_free(&part);
  } else {
    MUST(MPI_File_seek(f, (MPI_Offset)(rank * each), MPI_SEEK_SET));
  }
  phase_end(&b, REOPEN);
  MUST(MPI_File_get_size(f, &there));
  if ((uint64_t)there != size)
    bench_fail(file, "has another size");
  phase_begin(&b);
  for (uint64_t i = 0; i < calls; i++) {
    MPI_Status status;
    uint64_t at = less(i * transfer, mine);
    int n = (int)less(transfer, mine - at);
    MUST(collective ? MPI_File_read_all(f, data + at, n, MPI_BYTE, &status)
                    : MPI_File_read(f, data + at, n, MPI_BYTE, &status));
    bench_whole(&status, MPI_BYTE, n, "reading");
  }
  phase_end(&b, READ);
  MUST(MPI_File_close(&f));
  for (uint64_t at = 0; at < mine; at += each) {
    uint64_t place = (at / each * ranks + rank) * each, n = less(each, mine - at);
    size_t good = pattern_check(data + at, place, n, &p);
    if (good < n)
      bench_bad(&b, file, place + good);
  }
  free(data);
  b.bytes = mine;
  char detail[200];
  snprintf(detail, sizeof detail, "\"collective\":%s,\"block\":%llu,\"transfer\":%llu",
           collective ? "true" : "false", (unsigned long long)block, (unsigned long long)transfer);
  return bench_finish(&b, detail, true);
}
