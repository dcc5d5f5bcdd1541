/*
 * A file on another machine, written by all ranks of an MPI job and read back.
 *
 *   mpicc pnetcdf_remote.c -lpnetcdf -o pnetcdf_remote
 *   tatami mpirun -n 4 pnetcdf_remote FILE [HOST]
 *
 * The only difference from a program that writes a local file is the MPI_Info
 * key "host". FILE is then a path on that machine.
 */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>

enum { MINE = 1000 };

#define CHECK(call)                                                            \
	do {                                                                   \
		int status_ = (call);                                          \
		if (status_ != NC_NOERR) {                                     \
			fprintf(stderr, "%s: %s\n", #call, ncmpi_strerror(status_)); \
			MPI_Abort(MPI_COMM_WORLD, 1);                          \
		}                                                              \
	} while (0)

int main(int argc, char **argv)
{
	int rank, ranks, file, dim, var, values[MINE], wrong = 0, all = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc < 2) {
		fprintf(stderr, "usage: tatami mpirun -n RANKS pnetcdf_remote FILE [HOST]\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}

	MPI_Info info;
	MPI_Info_create(&info);
	if (argc > 2)
		MPI_Info_set(info, "host", argv[2]); /* as in: ssh HOST */

	CHECK(ncmpi_create(MPI_COMM_WORLD, argv[1], NC_CLOBBER, info, &file));
	CHECK(ncmpi_def_dim(file, "cell", (MPI_Offset)ranks * MINE, &dim));
	CHECK(ncmpi_def_var(file, "energy", NC_INT, 1, &dim, &var));
	CHECK(ncmpi_enddef(file));
	MPI_Offset start = (MPI_Offset)rank * MINE, count = MINE;
	for (int i = 0; i < MINE; i++)
		values[i] = (int)start + i;
	CHECK(ncmpi_put_vara_int_all(file, var, &start, &count, values));
	CHECK(ncmpi_close(file));

	/* Each rank reads what the next rank has written. */
	start = (MPI_Offset)((rank + 1) % ranks) * MINE;
	CHECK(ncmpi_open(MPI_COMM_WORLD, argv[1], NC_NOWRITE, info, &file));
	CHECK(ncmpi_inq_varid(file, "energy", &var));
	CHECK(ncmpi_get_vara_int_all(file, var, &start, &count, values));
	CHECK(ncmpi_close(file));
	for (int i = 0; i < MINE; i++)
		wrong += values[i] != (int)start + i;
	MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks wrote %s on %s and read it back: %d values wrong\n", ranks,
		       argv[1], argc > 2 ? argv[2] : "this machine", all);
	MPI_Info_free(&info);
	MPI_Finalize();
	return all == 0 ? 0 : 1;
}
