/* Files on another site: arrays by PnetCDF and by plain MPI-IO, many opens, and noncontiguous
 * accesses. Run by `make bench-remote` (tests/src/bin/measure-remote.rs).
 *
 *   remote DIR ROUNDS [arrays|bulk MIB]
 *
 * With `arrays`, there are no noncontiguous accesses. With `bulk`, there is one file of MIB mebibytes alone,
 * of noise and then of numbers. Each line of the output is a JSON object with the seconds of one round, those
 * of the slowest process. `pure` is the time of the calls that move bytes; `total` is that from the
 * open to the end of the close; `cpu` is the CPU time of the whole machine meanwhile. */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPENS = 100, REGION = 8, REGIONS = 1 << 19, STEP = 16 << 20 };

struct array {
  const char *name;
  nc_type type;
  MPI_Offset sides[3];
};

static const struct array arrays[] = {
    {"int 16x16x16", NC_INT, {16, 16, 16}},       {"double 16x16x8", NC_DOUBLE, {16, 16, 8}},
    {"int 64x64x64", NC_INT, {64, 64, 64}},       {"double 64x64x32", NC_DOUBLE, {64, 64, 32}},
    {"int 256x256x256", NC_INT, {256, 256, 256}}, {"double 256x256x128", NC_DOUBLE, {256, 256, 128}},
};

/* The times of one round. */
struct times {
  double open, pure, close, total, cpu;
};

static int rank, ranks;
static char path[4096];

static void fail(const char *what, const char *why) {
  fprintf(stderr, "remote: %s: %s\n", what, why);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void must_mpi(int code, const char *call) {
  char why[MPI_MAX_ERROR_STRING];
  int len;
  if (code == MPI_SUCCESS)
    return;
  MPI_Error_string(code, why, &len);
  fail(call, why);
}

static void must_nc(int code, const char *call) {
  if (code != NC_NOERR)
    fail(call, ncmpi_strerror(code));
}

#define MPI(call) must_mpi((call), #call)
#define NC(call) must_nc((call), #call)

/* The seconds that the processors of the machine have worked. */
static double cpu_time(void) {
  unsigned long long user, nice, system, idle, wait, irq, soft;
  FILE *file = fopen("/proc/stat", "r");
  int found = file == NULL ? 0
                           : fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice,
                                    &system, &idle, &wait, &irq, &soft);
  if (file != NULL)
    fclose(file);
  return found == 7 ? (double)(user + nice + system + irq + soft) / (double)sysconf(_SC_CLK_TCK) : 0;
}

static double begin(void) {
  MPI(MPI_Barrier(MPI_COMM_WORLD));
  return MPI_Wtime();
}

static void report(const char *what, const char *library, const char *how, uint64_t bytes,
                   struct times own) {
  double mine[5] = {own.open, own.pure, own.close, own.total, own.cpu}, all[5];
  MPI(MPI_Reduce(mine, all, 5, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD));
  if (rank == 0)
    printf("{\"what\":\"%s\",\"library\":\"%s\",\"how\":\"%s\",\"bytes\":%llu,\"open\":%.9f,"
           "\"pure\":%.9f,\"close\":%.9f,\"total\":%.9f,\"cpu\":%.2f}\n",
           what, library, how, (unsigned long long)bytes, all[0], all[1], all[2], all[3], all[4]);
  fflush(stdout);
}

static void *allocate(size_t bytes) {
  void *memory = malloc(bytes);
  if (memory == NULL)
    fail("memory", "none");
  return memory;
}

/* The part of an array that this process has. */
struct part {
  MPI_Offset start[3], count[3];
  size_t bytes, at;
};

static struct part part_of(const struct array *array) {
  struct part part = {{0, 0, 0}, {array->sides[0] / ranks, array->sides[1], array->sides[2]}, 0, 0};
  size_t size = array->type == NC_INT ? sizeof(int) : sizeof(double);
  part.start[0] = part.count[0] * rank;
  part.bytes = (size_t)(part.count[0] * part.count[1] * part.count[2]) * size;
  part.at = part.bytes * (size_t)rank;
  return part;
}

static void write_netcdf(const struct array *array, const struct part *part, const void *data) {
  int file, dims[3], var;
  struct times times = {0, 0, 0, 0, 0};
  double start = begin(), from;
  NC(ncmpi_create(MPI_COMM_WORLD, path, NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
  NC(ncmpi_def_dim(file, "x", array->sides[0], &dims[0]));
  NC(ncmpi_def_dim(file, "y", array->sides[1], &dims[1]));
  NC(ncmpi_def_dim(file, "z", array->sides[2], &dims[2]));
  NC(ncmpi_def_var(file, "array", array->type, 3, dims, &var));
  NC(ncmpi_enddef(file));
  times.open = MPI_Wtime() - start;
  from = begin();
  if (array->type == NC_INT)
    NC(ncmpi_put_vara_int_all(file, var, part->start, part->count, data));
  else
    NC(ncmpi_put_vara_double_all(file, var, part->start, part->count, data));
  times.pure = MPI_Wtime() - from;
  from = begin();
  NC(ncmpi_close(file));
  times.close = MPI_Wtime() - from;
  times.total = MPI_Wtime() - start;
  report(array->name, "pnetcdf", "write", part->bytes * (size_t)ranks, times);
}

static void read_netcdf(const struct array *array, const struct part *part, void *data) {
  int file, var;
  struct times times = {0, 0, 0, 0, 0};
  double start = begin(), from;
  NC(ncmpi_open(MPI_COMM_WORLD, path, NC_NOWRITE, MPI_INFO_NULL, &file));
  NC(ncmpi_inq_varid(file, "array", &var));
  times.open = MPI_Wtime() - start;
  from = begin();
  if (array->type == NC_INT)
    NC(ncmpi_get_vara_int_all(file, var, part->start, part->count, data));
  else
    NC(ncmpi_get_vara_double_all(file, var, part->start, part->count, data));
  times.pure = MPI_Wtime() - from;
  from = begin();
  NC(ncmpi_close(file));
  times.close = MPI_Wtime() - from;
  times.total = MPI_Wtime() - start;
  report(array->name, "pnetcdf", "read", part->bytes * (size_t)ranks, times);
}

/* Writes or reads the part of this process by plain MPI-IO, through `tile` if it is a type. */
static void access_plain(const char *what, const char *how, size_t at, void *data, size_t bytes,
                         MPI_Datatype tile) {
  int writes = strcmp(how, "write") == 0;
  int mode = writes ? MPI_MODE_CREATE | MPI_MODE_RDWR : MPI_MODE_RDONLY;
  MPI_File file;
  MPI_Status status;
  struct times times = {0, 0, 0, 0, 0};
  double start = begin(), from;
  MPI(MPI_File_open(MPI_COMM_WORLD, path, mode, MPI_INFO_NULL, &file));
  if (tile != MPI_DATATYPE_NULL) {
    MPI(MPI_File_set_view(file, (MPI_Offset)at, MPI_BYTE, tile, "native", MPI_INFO_NULL));
    at = 0;
  }
  times.open = MPI_Wtime() - start;
  from = begin();
  if (writes)
    MPI(MPI_File_write_at_all(file, (MPI_Offset)at, data, (int)bytes, MPI_BYTE, &status));
  else
    MPI(MPI_File_read_at_all(file, (MPI_Offset)at, data, (int)bytes, MPI_BYTE, &status));
  times.pure = MPI_Wtime() - from;
  from = begin();
  MPI(MPI_File_close(&file));
  times.close = MPI_Wtime() - from;
  times.total = MPI_Wtime() - start;
  report(what, "mpi", how, bytes * (size_t)ranks, times);
}

/* Every write makes a new file: to write over one costs the other side less. */
static void remove_file(void) {
  begin();
  if (rank == 0)
    MPI_File_delete(path, MPI_INFO_NULL);
}

static void expect_same(const void *one, const void *other, size_t bytes, const char *what) {
  if (memcmp(one, other, bytes) != 0)
    fail(what, "wrong bytes");
}

static void measure_array(const struct array *array) {
  struct part part = part_of(array);
  void *data = allocate(part.bytes), *back = allocate(part.bytes);
  for (size_t i = 0; i < part.bytes / 8; i++)
    ((double *)data)[i] = (double)(part.at + i);
  remove_file();
  write_netcdf(array, &part, data);
  memset(back, 0, part.bytes);
  read_netcdf(array, &part, back);
  expect_same(data, back, part.bytes, array->name);
  remove_file();
  access_plain(array->name, "write", part.at, data, part.bytes, MPI_DATATYPE_NULL);
  memset(back, 0, part.bytes);
  access_plain(array->name, "read", part.at, back, part.bytes, MPI_DATATYPE_NULL);
  expect_same(data, back, part.bytes, array->name);
  free(data);
  free(back);
}

/* The pattern of HPIO: regions of 8 bytes with a space of 8 bytes behind each, dealt out in turn. */
static void measure_regions(void) {
  size_t bytes = (size_t)REGION * REGIONS / (size_t)ranks;
  char *data = allocate(bytes), *back = allocate(bytes);
  MPI_Datatype region, tile;
  for (size_t i = 0; i < bytes; i++)
    data[i] = (char)(i * 31 + (size_t)rank);
  MPI(MPI_Type_contiguous(REGION, MPI_BYTE, &region));
  MPI(MPI_Type_create_resized(region, 0, 2 * REGION * ranks, &tile));
  MPI(MPI_Type_commit(&tile));
  remove_file();
  access_plain("contiguous", "write", bytes * (size_t)rank, data, bytes, MPI_DATATYPE_NULL);
  access_plain("contiguous", "read", bytes * (size_t)rank, back, bytes, MPI_DATATYPE_NULL);
  expect_same(data, back, bytes, "contiguous");
  remove_file();
  access_plain("regions", "write", (size_t)(2 * REGION * rank), data, bytes, tile);
  memset(back, 0, bytes);
  access_plain("regions", "read", (size_t)(2 * REGION * rank), back, bytes, tile);
  expect_same(data, back, bytes, "regions");
  MPI_Type_free(&region);
  MPI_Type_free(&tile);
  free(data);
  free(back);
}

/* One large file, in accesses of STEP bytes. */
static void measure_bulk(const char *what, size_t bytes, int is_noise) {
  size_t all = bytes / (size_t)ranks, start = all * (size_t)rank;
  char *data = allocate(all), *back = allocate(all);
  uint64_t state = 88172645463325252u + (uint64_t)rank;
  for (size_t i = 0; i < all / 8; i++) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    double number = 1.0 + (double)(start / 8 + i) / 7;
    memcpy(data + 8 * i, is_noise ? (void *)&state : (void *)&number, 8);
  }
  memset(back, 0, all);
  remove_file();
  for (int reads = 0; reads < 2; reads++) {
    int mode = reads ? MPI_MODE_RDONLY : MPI_MODE_CREATE | MPI_MODE_RDWR;
    struct times times = {0, 0, 0, 0, 0};
    MPI_File file;
    MPI_Status status;
    double worked = cpu_time(), first = begin(), from;
    MPI(MPI_File_open(MPI_COMM_WORLD, path, mode, MPI_INFO_NULL, &file));
    times.open = MPI_Wtime() - first;
    from = begin();
    for (size_t at = 0; at < all; at += STEP) {
      int len = (int)(all - at < STEP ? all - at : STEP);
      if (reads)
        MPI(MPI_File_read_at_all(file, (MPI_Offset)(start + at), back + at, len, MPI_BYTE, &status));
      else
        MPI(MPI_File_write_at_all(file, (MPI_Offset)(start + at), data + at, len, MPI_BYTE, &status));
    }
    times.pure = MPI_Wtime() - from;
    from = begin();
    MPI(MPI_File_close(&file));
    times.close = MPI_Wtime() - from;
    times.total = MPI_Wtime() - first;
    MPI(MPI_Barrier(MPI_COMM_WORLD));
    times.cpu = cpu_time() - worked;
    report(what, "mpi", reads ? "read" : "write", bytes, times);
  }
  expect_same(data, back, all, what);
  free(data);
  free(back);
}

/* The times of one of many opens in a row. */
static void measure_opens(const char *dir) {
  struct times times = {0, 0, 0, 0, 0};
  double start = begin();
  for (int i = 0; i < OPENS; i++) {
    MPI_File file;
    double from = MPI_Wtime(), opened;
    snprintf(path, sizeof path, "%s/many.%d", dir, i);
    MPI(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    opened = MPI_Wtime();
    times.open += (opened - from) / OPENS;
    MPI(MPI_File_close(&file));
    times.close += (MPI_Wtime() - opened) / OPENS;
  }
  times.total = (MPI_Wtime() - start) / OPENS;
  report("opens", "mpi", "open", 0, times);
  for (int i = 0; rank == 0 && i < OPENS; i++) {
    snprintf(path, sizeof path, "%s/many.%d", dir, i);
    MPI(MPI_File_delete(path, MPI_INFO_NULL));
  }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < 3 || ranks > 16 || 16 % ranks != 0)
    fail("usage", "remote DIR ROUNDS [arrays|bulk MIB], 1, 2, 4, 8 or 16 ranks");
  MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);

  /* The first open logs in. */
  MPI_File file;
  struct times login = {0, 0, 0, 0, 0};
  snprintf(path, sizeof path, "%s/first", argv[1]);
  double from = begin();
  MPI(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
  login.open = MPI_Wtime() - from;
  MPI(MPI_File_close(&file));
  report("first open", "mpi", "open", 0, login);

  int is_bulk = argc > 4 && strcmp(argv[3], "bulk") == 0;
  for (int round = 0; is_bulk && round < atoi(argv[2]); round++) {
    snprintf(path, sizeof path, "%s/bulk", argv[1]);
    measure_bulk("noise", (size_t)atol(argv[4]) << 20, 1);
    measure_bulk("numbers", (size_t)atol(argv[4]) << 20, 0);
  }
  for (int round = 0; !is_bulk && round < atoi(argv[2]); round++) {
    snprintf(path, sizeof path, "%s/array", argv[1]);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
      measure_array(&arrays[i]);
    snprintf(path, sizeof path, "%s/regions", argv[1]);
    if (argc == 3)
      measure_regions();
    measure_opens(argv[1]);
  }
  MPI_Finalize();
  return 0;
}
