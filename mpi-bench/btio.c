/* The access pattern of BT-IO of the NAS Parallel Benchmarks (Wong, Van der
 * Wijngaart: NAS Parallel Benchmarks I/O Version 2.4, 2003), without the
 * solver: a grid of N x N x N points with five doubles each, written every
 * fifth time step behind the one before.
 *
 * Diagonal multi-partitioning: P = q * q processes; the grid is cut into q
 * slabs in each direction, and of the q * q * q cells each process has q, one
 * in every slab of every direction. In memory a cell has two layers of ghost
 * points around it.
 *
 *   full    a file view and a memory type of nested subarrays, collective calls
 *   simple  a call for each row of a cell, at explicit offsets, independent
 *   epio    a file per process, each cell written contiguously: the N-N limit */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES = 5, GHOSTS = 2, POINT = VALUES * 8, CELLS_MAX = 64 };

static const char *file, *class = "A", *mode = "full";
static uint64_t dumps, seed = 1;
static bool sync_too, write_only, read_only;

static const struct option_spec specs[] = {
    {"file", OPTION_TEXT, &file, "the file; with --mode epio a dot and the rank are added"},
    {"class", OPTION_TEXT, &class, "S, W, A, B or C: 12, 24, 64, 102, 162 points a side (A)"},
    {"mode", OPTION_TEXT, &mode, "full, simple or epio (full)"},
    {"dumps", OPTION_SIZE, &dumps, "times that the grid is written (12 for S, 40)"},
    {"sync", OPTION_FLAG, &sync_too, "MPI_File_sync before the close"},
    {"write-only", OPTION_FLAG, &write_only, "no reading"},
    {"read-only", OPTION_FLAG, &read_only, "a file that is there is read"},
    {"seed", OPTION_SIZE, &seed, "of the contents (1)"},
    {NULL, OPTION_END, NULL, NULL}};

/* Sizes are in points and in the order of the file: z, y, x; x is dense. */
struct cell {
  uint64_t size[3], start[3];
  uint64_t at; /* bytes before it in memory */
};

static struct bench b;
static uint64_t side, cells, memory, points;
static struct cell cell[CELLS_MAX];
static bool full, epio;

static uint64_t slab_start(uint64_t slab) {
  uint64_t rest = side % cells;
  return slab * (side / cells) + (slab < rest ? slab : rest);
}

static void partition(void) {
  for (cells = 1; cells * cells < (uint64_t)b.ranks; cells++)
    ;
  if (cells * cells != (uint64_t)b.ranks || cells > CELLS_MAX || cells > side)
    bench_fail("BT-IO", "needs a square number of processes");
  uint64_t i = (uint64_t)b.rank % cells, j = (uint64_t)b.rank / cells;
  for (uint64_t c = 0; c < cells; c++) {
    uint64_t slab[3] = {c, (j + cells - c) % cells, (i + c) % cells};
    uint64_t inside = 1, with_ghosts = 1;
    for (int d = 0; d < 3; d++) {
      cell[c].start[d] = slab_start(slab[d]);
      cell[c].size[d] = slab_start(slab[d] + 1) - cell[c].start[d];
      inside *= cell[c].size[d];
      with_ghosts *= cell[c].size[d] + 2 * GHOSTS;
    }
    cell[c].at = memory;
    memory += with_ghosts * POINT;
    points += inside;
  }
}

/* Returns the position of a row of a cell in memory; z and y count from its first inner row. */
static uint64_t in_memory(const struct cell *c, uint64_t z, uint64_t y) {
  uint64_t rows = c->size[1] + 2 * GHOSTS, row = c->size[2] + 2 * GHOSTS;
  return c->at + (((z + GHOSTS) * rows + y + GHOSTS) * row + GHOSTS) * POINT;
}

static uint64_t in_file(const struct cell *c, uint64_t dump, uint64_t z, uint64_t y) {
  uint64_t plane = dump * side + c->start[0] + z;
  return ((plane * side + c->start[1] + y) * side + c->start[2]) * POINT;
}

/* Calls `what` for every row of this process's cells. */
static void rows(uint64_t dump, char *data,
                 void (*what)(char *row, uint64_t place, uint64_t len, void *), void *with) {
  for (const struct cell *c = cell; c < cell + cells; c++)
    for (uint64_t z = 0; z < c->size[0]; z++)
      for (uint64_t y = 0; y < c->size[1]; y++)
        what(data + in_memory(c, z, y), in_file(c, dump, z, y), c->size[2] * POINT, with);
}

static void fill(char *row, uint64_t place, uint64_t len, void *unused) {
  (void)unused;
  contents_fill(row, place, len, seed);
}

static void check(char *row, uint64_t place, uint64_t len, void *unused) {
  (void)unused;
  size_t good = contents_check(row, place, len, seed);
  if (good < len)
    bench_bad(&b, file, place + good);
}

static void write_row(char *row, uint64_t place, uint64_t len, void *f) {
  MPI_Status status;
  MUST(MPI_File_write_at(*(MPI_File *)f, (MPI_Offset)place, row, (int)(len / 8), MPI_DOUBLE, &status));
  bench_whole(&status, MPI_DOUBLE, (int)(len / 8), "writing");
}

static void read_row(char *row, uint64_t place, uint64_t len, void *f) {
  MPI_Status status;
  MUST(MPI_File_read_at(*(MPI_File *)f, (MPI_Offset)place, row, (int)(len / 8), MPI_DOUBLE, &status));
  bench_whole(&status, MPI_DOUBLE, (int)(len / 8), "reading");
}

/* Returns one type of all cells: in memory if `ghosts` is set, else in the file. */
static MPI_Datatype all_cells(MPI_Datatype point, bool ghosts) {
  MPI_Datatype part[CELLS_MAX], all;
  int ones[CELLS_MAX];
  MPI_Aint at[CELLS_MAX];
  for (uint64_t c = 0; c < cells; c++) {
    int sizes[3], subsizes[3], starts[3];
    for (int d = 0; d < 3; d++) {
      subsizes[d] = (int)cell[c].size[d];
      sizes[d] = (int)(ghosts ? cell[c].size[d] + 2 * GHOSTS : side);
      starts[d] = (int)(ghosts ? GHOSTS : cell[c].start[d]);
    }
    MUST(MPI_Type_create_subarray(3, sizes, subsizes, starts, MPI_ORDER_C, point, &part[c]));
    ones[c] = 1;
    at[c] = ghosts ? (MPI_Aint)cell[c].at : 0;
  }
  MUST(MPI_Type_create_struct((int)cells, ones, at, part, &all));
  MUST(MPI_Type_commit(&all));
  for (uint64_t c = 0; c < cells; c++)
    MPI_Type_free(&part[c]);
  return all;
}

static void move(MPI_File f, uint64_t dump, char *data, MPI_Datatype in_memory_type, bool write) {
  MPI_Status status;
  if (full) {
    MPI_Offset at = (MPI_Offset)(dump * points);
    MUST(write ? MPI_File_write_at_all(f, at, data, 1, in_memory_type, &status)
               : MPI_File_read_at_all(f, at, data, 1, in_memory_type, &status));
    bench_whole(&status, in_memory_type, 1, write ? "writing" : "reading");
  } else if (epio) {
    MUST(write ? MPI_File_write(f, data, 1, in_memory_type, &status)
               : MPI_File_read(f, data, 1, in_memory_type, &status));
    bench_whole(&status, in_memory_type, 1, write ? "writing" : "reading");
  } else {
    rows(dump, data, write ? write_row : read_row, &f);
  }
}

static MPI_File open_file(const char *name, int amode, MPI_Datatype point, MPI_Datatype in_file_type) {
  MPI_File f;
  MUST(MPI_File_open(epio ? MPI_COMM_SELF : MPI_COMM_WORLD, name, amode, MPI_INFO_NULL, &f));
  if (full)
    MUST(MPI_File_set_view(f, 0, point, in_file_type, "native", MPI_INFO_NULL));
  return f;
}

static void write_file(const char *name, char *data, MPI_Datatype point, MPI_Datatype in_memory_type,
                       MPI_Datatype in_file_type) {
  phase_begin(&b);
  MPI_File f = open_file(name, MPI_MODE_CREATE | MPI_MODE_RDWR, point, in_file_type);
  phase_end(&b, OPEN);
  for (uint64_t dump = 0; dump < dumps; dump++) {
    rows(dump, data, fill, NULL);
    phase_begin(&b);
    move(f, dump, data, in_memory_type, true);
    phase_end(&b, WRITE);
  }
  if (sync_too) {
    phase_begin(&b);
    MUST(MPI_File_sync(f));
    phase_end(&b, SYNC);
  }
  phase_begin(&b);
  MUST(MPI_File_close(&f));
  phase_end(&b, CLOSE);
}

static void read_file(const char *name, char *data, MPI_Datatype point, MPI_Datatype in_memory_type,
                      MPI_Datatype in_file_type) {
  phase_begin(&b);
  MPI_File f = open_file(name, MPI_MODE_RDONLY, point, in_file_type);
  phase_end(&b, REOPEN);
  for (uint64_t dump = 0; dump < dumps; dump++) {
    memset(data, 0x5a, memory);
    phase_begin(&b);
    move(f, dump, data, in_memory_type, false);
    phase_end(&b, READ);
    rows(dump, data, check, NULL);
  }
  MUST(MPI_File_close(&f));
}

int main(int argc, char **argv) {
  bench_start(&b, "btio", &argc, &argv, specs);
  static const char letters[] = "SWABC";
  static const uint64_t sides[] = {12, 24, 64, 102, 162};
  const char *letter = strlen(class) == 1 ? strchr(letters, class[0]) : NULL;
  full = strcmp(mode, "full") == 0;
  epio = strcmp(mode, "epio") == 0;
  if (file == NULL || letter == NULL || (!full && !epio && strcmp(mode, "simple") != 0))
    bench_fail("options", "a --file, a class and a mode");
  side = sides[letter - letters];
  if (dumps == 0)
    dumps = letter == letters ? 60 / 5 : 200 / 5;
  partition();
  MPI_Datatype point;
  MUST(MPI_Type_contiguous(VALUES, MPI_DOUBLE, &point));
  MUST(MPI_Type_commit(&point));
  MPI_Datatype in_memory_type = all_cells(point, true), in_file_type = all_cells(point, false);
  char *data = bench_buffer(memory), name[4096];
  snprintf(name, sizeof name, epio ? "%s.%d" : "%s", file, b.rank);
  b.bytes = points * POINT * dumps;
  if (!read_only)
    write_file(name, data, point, in_memory_type, in_file_type);
  if (!write_only)
    read_file(name, data, point, in_memory_type, in_file_type);
  free(data);
  MPI_Type_free(&in_memory_type);
  MPI_Type_free(&in_file_type);
  MPI_Type_free(&point);
  char detail[200];
  snprintf(detail, sizeof detail, "\"class\":\"%s\",\"mode\":\"%s\",\"side\":%llu,\"dumps\":%llu",
           class, mode, (unsigned long long)side, (unsigned long long)dumps);
  return bench_finish(&b, detail, !write_only);
}
