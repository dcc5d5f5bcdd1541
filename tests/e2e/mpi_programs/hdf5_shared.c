/* One HDF5 file, written by all processes and read back by others:
 *
 *   hdf5_shared write|read FILE
 *
 * grid     512 x 384 doubles, columns dealt out in turn, collective
 * chunked  256 x 256 ints in chunks, allocated early, a quarter for each process
 * wide     600 x 1200 ints in chunks of 60 x 60, the rows dealt out in blocks, collective
 * rows     a row of 1,000 longs for each process, independent calls
 * The bytes depend on the number of processes alone. */
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 512, COLUMNS = 384, SIDE = 256, HIGH = 600, WIDE = 1200, LENGTH = 1000 };

static int rank, ranks;

static hid_t must(hid_t id, const char *what) {
  if (id < 0) {
    fprintf(stderr, "process %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return id;
}
#define MUST(call) must((call), #call)

static double grid_value(long row, long column) { return (double)(row * COLUMNS + column) + 0.5; }
static int chunk_value(long row, long column) { return (int)(row * 1000003 + column * 17); }
static long row_value(long owner, long i) { return owner * 1000000 + i; }

/* The columns owner, owner + ranks, … */
static hid_t my_columns(hid_t file_space, int owner, hsize_t *mine) {
  *mine = (hsize_t)((COLUMNS - owner + ranks - 1) / ranks);
  hsize_t start[2] = {0, (hsize_t)owner}, stride[2] = {1, (hsize_t)ranks};
  hsize_t count[2] = {ROWS, *mine}, part[2] = {ROWS, *mine};
  MUST(H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, stride, count, NULL));
  return MUST(H5Screate_simple(2, part, NULL));
}

static void grid(hid_t data, hid_t how, int owner, int write) {
  hsize_t mine;
  hid_t space = MUST(H5Dget_space(data)), memory = my_columns(space, owner, &mine);
  double *values = calloc(ROWS * mine + 1, sizeof *values);
  for (long r = 0; write && r < ROWS; r++)
    for (long c = 0; c < (long)mine; c++)
      values[r * (long)mine + c] = grid_value(r, owner + c * ranks);
  if (write)
    MUST(H5Dwrite(data, H5T_NATIVE_DOUBLE, memory, space, how, values));
  else
    MUST(H5Dread(data, H5T_NATIVE_DOUBLE, memory, space, how, values));
  for (long r = 0; r < ROWS; r++)
    for (long c = 0; c < (long)mine; c++)
      if (values[r * (long)mine + c] != grid_value(r, owner + c * ranks))
        must(-1, "a wrong value in the grid");
  free(values);
  H5Sclose(memory);
  H5Sclose(space);
}

static void chunked(hid_t data, hid_t how, int owner, int write) {
  static int values[SIDE][SIDE];
  long first = (long)SIDE * owner / ranks, end = (long)SIDE * (owner + 1) / ranks;
  hsize_t start[2] = {0, (hsize_t)first}, count[2] = {SIDE, (hsize_t)(end - first)};
  hsize_t whole[2] = {SIDE, SIDE};
  hid_t space = MUST(H5Dget_space(data)), memory = MUST(H5Screate_simple(2, whole, NULL));
  MUST(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL));
  MUST(H5Sselect_hyperslab(memory, H5S_SELECT_SET, start, NULL, count, NULL));
  memset(values, 0, sizeof values);
  for (long r = 0; write && r < SIDE; r++)
    for (long c = first; c < end; c++)
      values[r][c] = chunk_value(r, c);
  if (write)
    MUST(H5Dwrite(data, H5T_NATIVE_INT, memory, space, how, values));
  else
    MUST(H5Dread(data, H5T_NATIVE_INT, memory, space, how, values));
  for (long r = 0; r < SIDE; r++)
    for (long c = first; c < end; c++)
      if (values[r][c] != chunk_value(r, c))
        must(-1, "a wrong value in the chunks");
  H5Sclose(memory);
  H5Sclose(space);
}

/* Parts of many chunks in one collective access: with Open MPI the extent of its file
 * type is shorter than its data. */
static void wide(hid_t data, hid_t how, int owner, int write) {
  static int values[HIGH][WIDE];
  long first = (long)HIGH * owner / ranks, end = (long)HIGH * (owner + 1) / ranks;
  hsize_t start[2] = {(hsize_t)first, 0}, count[2] = {(hsize_t)(end - first), WIDE}, whole[2] = {HIGH, WIDE};
  hid_t space = MUST(H5Dget_space(data)), memory = MUST(H5Screate_simple(2, whole, NULL));
  MUST(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL));
  MUST(H5Sselect_hyperslab(memory, H5S_SELECT_SET, start, NULL, count, NULL));
  memset(values, 0, sizeof values);
  for (long r = first; write && r < end; r++)
    for (long c = 0; c < WIDE; c++)
      values[r][c] = chunk_value(r, c);
  if (write)
    MUST(H5Dwrite(data, H5T_NATIVE_INT, memory, space, how, values));
  else
    MUST(H5Dread(data, H5T_NATIVE_INT, memory, space, how, values));
  for (long r = first; r < end; r++)
    for (long c = 0; c < WIDE; c++)
      if (values[r][c] != chunk_value(r, c))
        must(-1, "a wrong value in the wide chunks");
  H5Sclose(memory);
  H5Sclose(space);
}

static void rows(hid_t data, int owner, int write) {
  long values[LENGTH] = {0};
  hsize_t start[2] = {(hsize_t)owner, 0}, count[2] = {1, LENGTH};
  hid_t space = MUST(H5Dget_space(data)), memory = MUST(H5Screate_simple(2, count, NULL));
  MUST(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL));
  for (long i = 0; write && i < LENGTH; i++)
    values[i] = row_value(owner, i);
  if (write)
    MUST(H5Dwrite(data, H5T_NATIVE_LONG, memory, space, H5P_DEFAULT, values));
  else
    MUST(H5Dread(data, H5T_NATIVE_LONG, memory, space, H5P_DEFAULT, values));
  for (long i = 0; i < LENGTH; i++)
    if (values[i] != row_value(owner, i))
      must(-1, "a wrong value in the rows");
  H5Sclose(memory);
  H5Sclose(space);
}

static hid_t dataset(hid_t file, const char *name, hid_t type, hsize_t a, hsize_t b, hsize_t chunk) {
  hsize_t sizes[2] = {a, b}, chunks[2] = {chunk, chunk};
  hid_t space = MUST(H5Screate_simple(2, sizes, NULL)), how = MUST(H5Pcreate(H5P_DATASET_CREATE));
  /* Without times, the same values make the same bytes. */
  MUST(H5Pset_obj_track_times(how, 0));
  if (chunk > 0)
    MUST(H5Pset_chunk(how, 2, chunks));
  hid_t data = MUST(H5Dcreate2(file, name, type, space, H5P_DEFAULT, how, H5P_DEFAULT));
  H5Pclose(how);
  H5Sclose(space);
  return data;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 3)
    must(-1, "hdf5_shared write|read FILE");
  int write = strcmp(argv[1], "write") == 0;
  hid_t access = MUST(H5Pcreate(H5P_FILE_ACCESS)), how = MUST(H5Pcreate(H5P_DATASET_XFER));
  MUST(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL));
  MUST(H5Pset_dxpl_mpio(how, H5FD_MPIO_COLLECTIVE));
  hid_t file, parts[4];
  if (write) {
    file = MUST(H5Fcreate(argv[2], H5F_ACC_TRUNC, H5P_DEFAULT, access));
    parts[0] = dataset(file, "grid", H5T_IEEE_F64LE, ROWS, COLUMNS, 0);
    parts[1] = dataset(file, "chunked", H5T_STD_I32LE, SIDE, SIDE, 100);
    parts[2] = dataset(file, "rows", H5T_STD_I64LE, (hsize_t)ranks, LENGTH, 0);
    parts[3] = dataset(file, "wide", H5T_STD_I32LE, HIGH, WIDE, 60);
  } else {
    file = MUST(H5Fopen(argv[2], H5F_ACC_RDONLY, access));
    parts[0] = MUST(H5Dopen2(file, "grid", H5P_DEFAULT));
    parts[1] = MUST(H5Dopen2(file, "chunked", H5P_DEFAULT));
    parts[2] = MUST(H5Dopen2(file, "rows", H5P_DEFAULT));
    parts[3] = MUST(H5Dopen2(file, "wide", H5P_DEFAULT));
  }
  /* Another process reads than has written. */
  int owner = write ? rank : (rank + 1) % ranks;
  grid(parts[0], how, owner, write);
  chunked(parts[1], how, owner, write);
  rows(parts[2], owner, write);
  wide(parts[3], how, owner, write);
  for (int i = 0; i < 4; i++)
    MUST(H5Dclose(parts[i]));
  H5Pclose(how);
  H5Pclose(access);
  MUST(H5Fclose(file));
  if (rank == 0)
    printf("all values right\n");
  MPI_Finalize();
  return 0;
}
