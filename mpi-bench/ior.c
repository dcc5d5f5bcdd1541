/* The access pattern of LLNL's IOR: a file of segments, each with a block for
 * every process, which the process writes in transfers:
 *
 *   segment 0: | block of 0 | block of 1 | … | segment 1: | block of 0 | …
 *
 * Shared by all, or a file per process, in which the blocks of one process
 * lie one behind the other. By MPI-IO or by POSIX calls. */
#define _POSIX_C_SOURCE 200809L
#include "bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *file, *api = "mpi", *hints;
static uint64_t block = 1 << 20, transfer = 256 << 10, segments = 16, shift, seed = 1;
static bool collective, view, strided, per_process, sync_too, write_only, read_only;

static const struct option_spec specs[] = {
    {"file", OPTION_TEXT, &file, "the file; with --file-per-process a dot and the rank are added"},
    {"block", OPTION_SIZE, &block, "bytes of a process in a segment (1m)"},
    {"transfer", OPTION_SIZE, &transfer, "bytes of a call (256k)"},
    {"segments", OPTION_SIZE, &segments, "number of segments (16)"},
    {"collective", OPTION_FLAG, &collective, "collective calls"},
    {"view", OPTION_FLAG, &view, "a file view instead of offsets"},
    {"strided", OPTION_FLAG, &strided, "all segments in one call through the view"},
    {"file-per-process", OPTION_FLAG, &per_process, "N files"},
    {"api", OPTION_TEXT, &api, "mpi or posix (mpi)"},
    {"sync", OPTION_FLAG, &sync_too, "MPI_File_sync or fsync before the close"},
    {"write-only", OPTION_FLAG, &write_only, "no reading"},
    {"read-only", OPTION_FLAG, &read_only, "a file that is there is read"},
    {"shift", OPTION_SIZE, &shift, "process r reads what r + shift wrote (0)"},
    {"hints", OPTION_TEXT, &hints, "key=value,…"},
    {"seed", OPTION_SIZE, &seed, "of the contents (1)"},
    {NULL, OPTION_END, NULL, NULL}};

static bool posix;
static struct bench b;

/* Returns the position of a transfer in the file. */
static uint64_t place(uint64_t rank, uint64_t at) {
  if (per_process)
    return at;
  return (at / block * (uint64_t)b.ranks + rank) * block + at % block;
}

static MPI_Info info(void) {
  MPI_Info info = MPI_INFO_NULL;
  if (hints == NULL)
    return info;
  MPI_Info_create(&info);
  char *copy = strdup(hints), *rest = NULL;
  for (char *word = strtok_r(copy, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
    char *value = strchr(word, '=');
    if (value == NULL)
      bench_fail("--hints", "key=value,…");
    *value++ = 0;
    MPI_Info_set(info, word, value);
  }
  free(copy);
  return info;
}

static MPI_Comm group(void) { return per_process ? MPI_COMM_SELF : MPI_COMM_WORLD; }

static MPI_File open_mpi(const char *name, int mode, uint64_t rank) {
  MPI_File f;
  MPI_Info with = info();
  MUST(MPI_File_open(group(), name, mode, with, &f));
  if (with != MPI_INFO_NULL)
    MPI_Info_free(&with);
  if (view && !per_process) {
    MPI_Datatype mine, tile;
    MUST(MPI_Type_contiguous((int)block, MPI_BYTE, &mine));
    MUST(MPI_Type_create_resized(mine, 0, (MPI_Aint)(block * (uint64_t)b.ranks), &tile));
    MUST(MPI_Type_commit(&tile));
    MUST(MPI_File_set_view(f, (MPI_Offset)(rank * block), MPI_BYTE, tile, "native", MPI_INFO_NULL));
    MPI_Type_free(&tile);
    MPI_Type_free(&mine);
  }
  return f;
}

static void one(MPI_File f, uint64_t rank, uint64_t at, char *buffer, int n, bool write) {
  MPI_Status status;
  MPI_Offset offset = (MPI_Offset)place(rank, at);
  int code;
  if (view)
    code = write ? (collective ? MPI_File_write_all(f, buffer, n, MPI_BYTE, &status)
                               : MPI_File_write(f, buffer, n, MPI_BYTE, &status))
                 : (collective ? MPI_File_read_all(f, buffer, n, MPI_BYTE, &status)
                               : MPI_File_read(f, buffer, n, MPI_BYTE, &status));
  else
    code = write ? (collective ? MPI_File_write_at_all(f, offset, buffer, n, MPI_BYTE, &status)
                               : MPI_File_write_at(f, offset, buffer, n, MPI_BYTE, &status))
                 : (collective ? MPI_File_read_at_all(f, offset, buffer, n, MPI_BYTE, &status)
                               : MPI_File_read_at(f, offset, buffer, n, MPI_BYTE, &status));
  bench_must(code, write ? "writing" : "reading");
  bench_whole(&status, MPI_BYTE, n, write ? "writing" : "reading");
}

static void move(MPI_File f, int fd, uint64_t rank, char *data, bool write) {
  uint64_t step = strided ? block * segments : transfer;
  for (uint64_t at = 0; at < block * segments; at += step) {
    if (!posix) {
      one(f, rank, at, data + at, (int)step, write);
      continue;
    }
    off_t offset = (off_t)place(rank, at);
    ssize_t n = write ? pwrite(fd, data + at, step, offset) : pread(fd, data + at, step, offset);
    if (n != (ssize_t)step)
      bench_fail(file, write ? "short write" : "short read");
  }
}

static void write_file(const char *name, char *data) {
  MPI_File f = MPI_FILE_NULL;
  int fd = -1;
  phase_begin(&b);
  if (!posix)
    f = open_mpi(name, MPI_MODE_CREATE | MPI_MODE_RDWR, (uint64_t)b.rank);
  else if ((fd = open(name, O_CREAT | O_RDWR, 0666)) < 0)
    bench_fail(name, "does not open");
  phase_end(&b, OPEN);
  phase_begin(&b);
  move(f, fd, (uint64_t)b.rank, data, true);
  phase_end(&b, WRITE);
  if (sync_too) {
    phase_begin(&b);
    if (!posix)
      MUST(MPI_File_sync(f));
    else if (fsync(fd) != 0)
      bench_fail(name, "fsync");
    phase_end(&b, SYNC);
  }
  phase_begin(&b);
  if (!posix)
    MUST(MPI_File_close(&f));
  else if (close(fd) != 0)
    bench_fail(name, "close");
  phase_end(&b, CLOSE);
}

static void read_file(const char *name, char *data, uint64_t rank) {
  MPI_File f = MPI_FILE_NULL;
  int fd = -1;
  phase_begin(&b);
  if (!posix)
    f = open_mpi(name, MPI_MODE_RDONLY, rank);
  else if ((fd = open(name, O_RDONLY)) < 0)
    bench_fail(name, "does not open");
  phase_end(&b, REOPEN);
  phase_begin(&b);
  move(f, fd, rank, data, false);
  phase_end(&b, READ);
  if (!posix)
    MUST(MPI_File_close(&f));
  else
    close(fd);
}

int main(int argc, char **argv) {
  bench_start(&b, "ior", &argc, &argv, specs);
  posix = strcmp(api, "posix") == 0;
  if (file == NULL || transfer == 0 || block % transfer != 0 || (strided && !view))
    bench_fail("options", "a --file, a block of whole transfers, and --strided with --view only");
  if (block * (strided ? segments : 1) > INT32_MAX)
    bench_fail("options", "a call moves less than 2 GiB");
  uint64_t rank = (uint64_t)b.rank, other = (rank + shift) % (uint64_t)b.ranks;
  uint64_t mine = block * segments;
  char *data = bench_buffer(mine), name[4096];
  b.bytes = mine;
  if (!read_only) {
    uint64_t by = per_process ? seed + rank + 1 : seed;
    for (uint64_t at = 0; at < mine; at += transfer)
      contents_fill(data + at, place(rank, at), transfer, by);
    snprintf(name, sizeof name, per_process ? "%s.%d" : "%s", file, b.rank);
    write_file(name, data);
  }
  if (!write_only) {
    memset(data, 0x5a, mine);
    uint64_t by = per_process ? seed + other + 1 : seed;
    snprintf(name, sizeof name, per_process ? "%s.%d" : "%s", file, (int)other);
    read_file(name, data, other);
    for (uint64_t at = 0; at < mine; at += transfer) {
      size_t good = contents_check(data + at, place(other, at), transfer, by);
      if (good < transfer)
        bench_bad(&b, name, place(other, at) + good);
    }
  }
  char detail[300];
  snprintf(detail, sizeof detail,
           "\"api\":\"%s\",\"shared\":%s,\"collective\":%s,\"view\":%s,\"strided\":%s,"
           "\"block\":%llu,\"transfer\":%llu,\"segments\":%llu",
           posix ? "posix" : "mpi", per_process ? "false" : "true", collective ? "true" : "false",
           view ? "true" : "false", strided ? "true" : "false", (unsigned long long)block,
           (unsigned long long)transfer, (unsigned long long)segments);
  free(data);
  return bench_finish(&b, detail, !write_only);
}
