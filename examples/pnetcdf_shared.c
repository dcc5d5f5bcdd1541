/*
 * One netCDF file, written by all ranks of an MPI job at once and read back.
 *
 *   mpicc pnetcdf_shared.c -lpnetcdf -o pnetcdf_shared
 *   mpirun -n 4 pnetcdf_shared FILE [ROWS [write|read]]
 *
 * The file holds a temperature field of ROWS x COLUMNS doubles, which the
 * ranks write in interleaved columns (the access pattern that parallel file
 * systems find hard), a record variable with three time steps, which they
 * write in blocks, and one row written by each rank on its own (independent
 * access). Then every rank reads the values of its neighbour and compares.
 * The bytes depend on ROWS and the number of ranks alone.
 */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 256, STEPS = 3, CELLS = 1024 };

#define CHECK(call)                                                            \
	do {                                                                   \
		int status_ = (call);                                          \
		if (status_ != NC_NOERR) {                                     \
			fprintf(stderr, "rank %d: %s: %s\n", rank, #call,      \
				ncmpi_strerror(status_));                      \
			MPI_Abort(MPI_COMM_WORLD, 1);                          \
		}                                                              \
	} while (0)

static int rank, ranks;

/* The value at a place: different everywhere, exact in a double. */
static double temperature(long long row, long long column)
{
	return (double)row * COLUMNS + (double)column + 0.25;
}

static int energy(int step, int owner, long long cell)
{
	return step * 1000000 + owner * 10000 + (int)cell;
}

static void *allocate(size_t bytes)
{
	void *memory = malloc(bytes);
	if (memory == NULL) {
		fprintf(stderr, "rank %d: no memory for %zu bytes\n", rank, bytes);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	return memory;
}

static void write_file(const char *path, long long rows)
{
	int file, dim_row, dim_column, dim_time, dim_cell, dim_rank;
	int var_temperature, var_energy, var_note;

	CHECK(ncmpi_create(MPI_COMM_WORLD, path, NC_CLOBBER | NC_64BIT_DATA,
			   MPI_INFO_NULL, &file));
	CHECK(ncmpi_def_dim(file, "time", NC_UNLIMITED, &dim_time));
	CHECK(ncmpi_def_dim(file, "row", rows, &dim_row));
	CHECK(ncmpi_def_dim(file, "column", COLUMNS, &dim_column));
	CHECK(ncmpi_def_dim(file, "cell", (long long)ranks * CELLS, &dim_cell));
	CHECK(ncmpi_def_dim(file, "rank", ranks, &dim_rank));
	int plane[2] = {dim_row, dim_column}, record[2] = {dim_time, dim_cell};
	CHECK(ncmpi_def_var(file, "temperature", NC_DOUBLE, 2, plane, &var_temperature));
	CHECK(ncmpi_def_var(file, "energy", NC_INT, 2, record, &var_energy));
	CHECK(ncmpi_def_var(file, "note", NC_INT, 1, &dim_rank, &var_note));
	CHECK(ncmpi_put_att_text(file, NC_GLOBAL, "title", 22, "One file, many writers"));
	CHECK(ncmpi_enddef(file));

	/* Collective and strided: every rank has each ranks-th column. */
	long long mine = (COLUMNS - rank + ranks - 1) / ranks;
	double *field = allocate(sizeof(double) * (size_t)(rows * mine));
	for (long long r = 0; r < rows; r++)
		for (long long c = 0; c < mine; c++)
			field[r * mine + c] = temperature(r, rank + c * ranks);
	MPI_Offset start[2] = {0, rank}, count[2] = {rows, mine}, stride[2] = {1, ranks};
	CHECK(ncmpi_put_vars_double_all(file, var_temperature, start, count, stride, field));
	free(field);

	/* Collective, one record after the other: the file grows. */
	int *cells = allocate(sizeof(int) * CELLS);
	for (int step = 0; step < STEPS; step++) {
		for (int i = 0; i < CELLS; i++)
			cells[i] = energy(step, rank, i);
		MPI_Offset at[2] = {step, (MPI_Offset)rank * CELLS}, n[2] = {1, CELLS};
		CHECK(ncmpi_put_vara_int_all(file, var_energy, at, n, cells));
	}
	free(cells);

	/* Independent: each rank by itself. */
	CHECK(ncmpi_begin_indep_data(file));
	MPI_Offset where[1] = {rank};
	int note = 100 + rank;
	CHECK(ncmpi_put_var1_int(file, var_note, where, &note));
	CHECK(ncmpi_end_indep_data(file));
	CHECK(ncmpi_close(file));
}

/* Compares the values of the next rank. Returns the number of wrong values. */
static long long read_file(const char *path, long long rows)
{
	int file, var_temperature, var_energy, var_note, owner = (rank + 1) % ranks;
	long long wrong = 0;

	CHECK(ncmpi_open(MPI_COMM_WORLD, path, NC_NOWRITE, MPI_INFO_NULL, &file));
	CHECK(ncmpi_inq_varid(file, "temperature", &var_temperature));
	CHECK(ncmpi_inq_varid(file, "energy", &var_energy));
	CHECK(ncmpi_inq_varid(file, "note", &var_note));

	long long theirs = (COLUMNS - owner + ranks - 1) / ranks;
	double *field = allocate(sizeof(double) * (size_t)(rows * theirs));
	MPI_Offset start[2] = {0, owner}, count[2] = {rows, theirs}, stride[2] = {1, ranks};
	CHECK(ncmpi_get_vars_double_all(file, var_temperature, start, count, stride, field));
	for (long long r = 0; r < rows; r++)
		for (long long c = 0; c < theirs; c++)
			wrong += field[r * theirs + c] != temperature(r, owner + c * ranks);
	free(field);

	int *cells = allocate(sizeof(int) * CELLS);
	for (int step = 0; step < STEPS; step++) {
		MPI_Offset at[2] = {step, (MPI_Offset)owner * CELLS}, n[2] = {1, CELLS};
		CHECK(ncmpi_get_vara_int_all(file, var_energy, at, n, cells));
		for (int i = 0; i < CELLS; i++)
			wrong += cells[i] != energy(step, owner, i);
	}
	free(cells);

	CHECK(ncmpi_begin_indep_data(file));
	MPI_Offset where[1] = {owner};
	int note = 0;
	CHECK(ncmpi_get_var1_int(file, var_note, where, &note));
	wrong += note != 100 + owner;
	CHECK(ncmpi_end_indep_data(file));
	CHECK(ncmpi_close(file));
	return wrong;
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	long long rows = argc > 2 ? atoll(argv[2]) : 512;
	const char *only = argc > 3 ? argv[3] : "";
	int no_read = strcmp(only, "write") == 0, no_write = strcmp(only, "read") == 0;
	if (argc < 2 || argc > 4 || (argc > 3 && !no_read && !no_write) || rows < 1 ||
	    rows > 1000000 || ranks > COLUMNS) {
		if (rank == 0)
			fprintf(stderr, "usage: mpirun -n RANKS pnetcdf_shared FILE [ROWS [write|read]]\n"
					"RANKS at most %d, ROWS 1 to 1000000 (512)\n", COLUMNS);
		MPI_Finalize();
		return 2;
	}

	if (!no_write)
		write_file(argv[1], rows);
	long long wrong = no_read ? 0 : read_file(argv[1], rows), all = 0;
	MPI_Allreduce(&wrong, &all, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0 && all == 0)
		printf("%d ranks wrote %s%s\n", ranks, argv[1],
		       no_read ? "" : " and read it back: all values right");
	else if (rank == 0)
		printf("%d ranks wrote %s: %lld values WRONG\n", ranks, argv[1], all);
	MPI_Finalize();
	return all == 0 ? 0 : 1;
}
