/* One netCDF-4 file, written by all processes and read back by others:
 *
 *   netcdf4_shared write|read FILE */
#include <mpi.h>
#include <netcdf.h>
#include <netcdf_par.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 300, COLUMNS = 200, STEPS = 3, CELLS = 500 };

static int rank, ranks;

static void must(int code, const char *what) {
  if (code == NC_NOERR)
    return;
  fprintf(stderr, "process %d: %s: %s\n", rank, what, code < 0 ? nc_strerror(code) : "wrong value");
  MPI_Abort(MPI_COMM_WORLD, 1);
}
#define MUST(call) must((call), #call)

static double plane(size_t row, size_t column) { return (double)(row * COLUMNS + column) + 0.25; }
static int record(size_t step, size_t owner, size_t cell) { return (int)(step * 1000000 + owner * 1000 + cell); }

static void move_plane(int file, int variable, size_t owner, int write) {
  static double values[ROWS * COLUMNS];
  size_t n = (COLUMNS - owner + (size_t)ranks - 1) / (size_t)ranks;
  size_t start[2] = {0, owner}, count[2] = {ROWS, n};
  ptrdiff_t stride[2] = {1, ranks};
  for (size_t i = 0; i < ROWS * n; i++)
    values[i] = write ? plane(i / n, owner + i % n * (size_t)ranks) : 0;
  if (write)
    MUST(nc_put_vars_double(file, variable, start, count, stride, values));
  else
    MUST(nc_get_vars_double(file, variable, start, count, stride, values));
  for (size_t i = 0; i < ROWS * n; i++)
    must(values[i] == plane(i / n, owner + i % n * (size_t)ranks) ? 0 : 1, "plane");
}

static void move_record(int file, int variable, size_t step, size_t owner, int write) {
  int values[CELLS];
  size_t start[2] = {step, owner * CELLS}, count[2] = {1, CELLS};
  for (size_t i = 0; i < CELLS; i++)
    values[i] = write ? record(step, owner, i) : 0;
  if (write)
    MUST(nc_put_vara_int(file, variable, start, count, values));
  else
    MUST(nc_get_vara_int(file, variable, start, count, values));
  for (size_t i = 0; i < CELLS; i++)
    must(values[i] == record(step, owner, i) ? 0 : 1, "record");
}

int main(int argc, char **argv) {
  int file, variables[2], dims[4];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 3)
    must(1, "netcdf4_shared write|read FILE");
  int write = strcmp(argv[1], "write") == 0;
  if (write) {
    MUST(nc_create_par(argv[2], NC_CLOBBER | NC_NETCDF4, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    MUST(nc_def_dim(file, "row", ROWS, &dims[0]));
    MUST(nc_def_dim(file, "column", COLUMNS, &dims[1]));
    MUST(nc_def_dim(file, "step", NC_UNLIMITED, &dims[2]));
    MUST(nc_def_dim(file, "cell", (size_t)ranks * CELLS, &dims[3]));
    MUST(nc_def_var(file, "plane", NC_DOUBLE, 2, dims, &variables[0]));
    MUST(nc_def_var(file, "record", NC_INT, 2, dims + 2, &variables[1]));
    MUST(nc_put_att_text(file, NC_GLOBAL, "title", 8, "One file"));
    MUST(nc_enddef(file));
  } else {
    MUST(nc_open_par(argv[2], NC_NOWRITE, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    MUST(nc_inq_varid(file, "plane", &variables[0]));
    MUST(nc_inq_varid(file, "record", &variables[1]));
  }
  size_t owner = (size_t)(write ? rank : (rank + 1) % ranks);
  MUST(nc_var_par_access(file, variables[0], NC_INDEPENDENT));
  MUST(nc_var_par_access(file, variables[1], NC_COLLECTIVE));
  move_plane(file, variables[0], owner, write);
  for (size_t step = 0; step < STEPS; step++)
    move_record(file, variables[1], step, owner, write);
  MUST(nc_close(file));
  if (rank == 0)
    printf("all values right\n");
  MPI_Finalize();
  return 0;
}
