/* The access pattern of HPIO (Ching, Choudhary, Liao, Ward, Pundit: Evaluating
 * I/O characteristics and methods for storing structured scientific data,
 * IPDPS 2006): regions of one size, so many for each process, with a space
 * behind each, in memory and in the file:
 *
 *   c-c    contiguous in memory, contiguous in the file
 *   nc-c   regions with spaces in memory, contiguous in the file
 *   c-nc   contiguous in memory, regions with spaces in the file
 *   nc-nc  regions with spaces in both
 *
 * Contiguous in the file: each process has a stretch of its own. Not
 * contiguous: region i of process r is the (i * processes + r)-th of the file.
 * One call moves all regions of a process. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *file, *pattern = "nc-nc";
static uint64_t count = 4096, size = 128, spacing = 128, repeats = 1, seed = 1;
static bool collective, per_process, sync_too, write_only, read_only;

static const struct option_spec specs[] = {
    {"file", OPTION_TEXT, &file, "the file; with --file-per-process a dot and the rank are added"},
    {"pattern", OPTION_TEXT, &pattern, "c-c, nc-c, c-nc or nc-nc: memory, then file (nc-nc)"},
    {"count", OPTION_SIZE, &count, "regions of a process in a call (4096)"},
    {"size", OPTION_SIZE, &size, "bytes of a region (128)"},
    {"spacing", OPTION_SIZE, &spacing, "bytes between regions, in memory and file (128)"},
    {"repeats", OPTION_SIZE, &repeats, "calls, each behind the one before (1)"},
    {"collective", OPTION_FLAG, &collective, "collective calls"},
    {"file-per-process", OPTION_FLAG, &per_process, "N files, contiguous"},
    {"sync", OPTION_FLAG, &sync_too, "MPI_File_sync before the close"},
    {"write-only", OPTION_FLAG, &write_only, "no reading"},
    {"read-only", OPTION_FLAG, &read_only, "a file that is there is read"},
    {"seed", OPTION_SIZE, &seed, "of the contents (1)"},
    {NULL, OPTION_END, NULL, NULL}};

static struct bench b;
static bool memory_nc, file_nc;

/* Returns the position of region i of the whole run in the file. */
static uint64_t place(uint64_t region) {
  uint64_t rank = (uint64_t)b.rank;
  if (per_process)
    return region * size;
  if (!file_nc)
    return (rank * count * repeats + region) * size;
  return (region * (uint64_t)b.ranks + rank) * (size + spacing);
}

static uint64_t stride_in_memory(void) { return memory_nc ? size + spacing : size; }

static MPI_File open_file(const char *name, int mode) {
  MPI_File f;
  MUST(MPI_File_open(per_process ? MPI_COMM_SELF : MPI_COMM_WORLD, name, mode, MPI_INFO_NULL, &f));
  if (per_process)
    return f;
  if (!file_nc) {
    MUST(MPI_File_set_view(f, (MPI_Offset)place(0), MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    return f;
  }
  MPI_Datatype region, tile;
  MUST(MPI_Type_contiguous((int)size, MPI_BYTE, &region));
  MUST(MPI_Type_create_resized(region, 0, (MPI_Aint)((size + spacing) * (uint64_t)b.ranks), &tile));
  MUST(MPI_Type_commit(&tile));
  MUST(MPI_File_set_view(f, (MPI_Offset)place(0), MPI_BYTE, tile, "native", MPI_INFO_NULL));
  MPI_Type_free(&tile);
  MPI_Type_free(&region);
  return f;
}

static void move(MPI_File f, char *data, MPI_Datatype type, int n, bool write) {
  for (uint64_t i = 0; i < repeats; i++) {
    MPI_Status status;
    char *from = data + i * count * stride_in_memory();
    int code = write ? (collective ? MPI_File_write_all(f, from, n, type, &status)
                                   : MPI_File_write(f, from, n, type, &status))
                     : (collective ? MPI_File_read_all(f, from, n, type, &status)
                                   : MPI_File_read(f, from, n, type, &status));
    bench_must(code, write ? "writing" : "reading");
    bench_whole(&status, type, n, write ? "writing" : "reading");
  }
}

static void write_file(const char *name, char *data, MPI_Datatype type, int n) {
  phase_begin(&b);
  MPI_File f = open_file(name, MPI_MODE_CREATE | MPI_MODE_RDWR);
  phase_end(&b, OPEN);
  phase_begin(&b);
  move(f, data, type, n, true);
  phase_end(&b, WRITE);
  if (sync_too) {
    phase_begin(&b);
    MUST(MPI_File_sync(f));
    phase_end(&b, SYNC);
  }
  phase_begin(&b);
  MUST(MPI_File_close(&f));
  phase_end(&b, CLOSE);
}

static void read_file(const char *name, char *data, MPI_Datatype type, int n) {
  phase_begin(&b);
  MPI_File f = open_file(name, MPI_MODE_RDONLY);
  phase_end(&b, REOPEN);
  phase_begin(&b);
  move(f, data, type, n, false);
  phase_end(&b, READ);
  MUST(MPI_File_close(&f));
}

int main(int argc, char **argv) {
  bench_start(&b, "hpio", &argc, &argv, specs);
  memory_nc = strncmp(pattern, "nc-", 3) == 0;
  file_nc = strlen(pattern) > 2 && strcmp(pattern + strlen(pattern) - 3, "-nc") == 0;
  if (file == NULL || count == 0 || count > INT32_MAX || size > INT32_MAX)
    bench_fail("options", "a --file, and a count and size below 2 Gi");
  uint64_t regions = count * repeats, stride = stride_in_memory();
  char *data = bench_buffer(regions * stride), name[4096];
  snprintf(name, sizeof name, per_process ? "%s.%d" : "%s", file, b.rank);
  uint64_t by = per_process ? seed + (uint64_t)b.rank + 1 : seed;
  b.bytes = regions * size;
  MPI_Datatype type;
  MUST(MPI_Type_vector((int)count, (int)size, (int)stride, MPI_BYTE, &type));
  MUST(MPI_Type_commit(&type));
  if (!read_only) {
    for (uint64_t i = 0; i < regions; i++)
      contents_fill(data + i * stride, place(i), size, by);
    write_file(name, data, type, 1);
  }
  if (!write_only) {
    memset(data, 0x5a, regions * stride);
    read_file(name, data, type, 1);
    for (uint64_t i = 0; i < regions; i++) {
      size_t good = contents_check(data + i * stride, place(i), size, by);
      if (good < size)
        bench_bad(&b, name, place(i) + good);
      /* A read must not change the bytes between the regions. */
      for (uint64_t at = size; at < stride; at++)
        if (data[i * stride + at] != 0x5a)
          bench_bad(&b, "the memory between two regions", i * stride + at);
    }
  }
  MPI_Type_free(&type);
  free(data);
  char detail[300];
  snprintf(detail, sizeof detail,
           "\"pattern\":\"%s\",\"shared\":%s,\"collective\":%s,\"count\":%llu,\"size\":%llu,"
           "\"spacing\":%llu,\"repeats\":%llu",
           pattern, per_process ? "false" : "true", collective ? "true" : "false",
           (unsigned long long)count, (unsigned long long)size, (unsigned long long)spacing,
           (unsigned long long)repeats);
  return bench_finish(&b, detail, !write_only);
}
