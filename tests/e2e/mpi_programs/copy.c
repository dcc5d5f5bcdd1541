/* Copies a file that it reads by MPI-IO to one that it writes with stdio.
 *
 *   copy FROM TO */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void must(int good, const char *what) {
  if (good)
    return;
  fprintf(stderr, "copy: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv) {
  static char buffer[1000003];
  MPI_File from;
  MPI_Offset size, at = 0;
  MPI_Init(&argc, &argv);
  must(argc == 3, "copy FROM TO");
  must(MPI_File_open(MPI_COMM_SELF, argv[1], MPI_MODE_RDONLY, MPI_INFO_NULL, &from) == MPI_SUCCESS,
       "the file does not open");
  must(MPI_File_get_size(from, &size) == MPI_SUCCESS, "the file has no size");
  FILE *to = fopen(argv[2], "wb");
  must(to != NULL, "the copy does not open");
  for (;;) {
    MPI_Status status;
    int n = 0;
    must(MPI_File_read(from, buffer, sizeof buffer, MPI_BYTE, &status) == MPI_SUCCESS, "a read fails");
    MPI_Get_count(&status, MPI_BYTE, &n);
    if (n == 0)
      break;
    must(fwrite(buffer, 1, (size_t)n, to) == (size_t)n, "a write fails");
    at += n;
  }
  must(at == size, "the file is not as long as it says");
  must(fclose(to) == 0, "the copy does not close");
  MPI_File_close(&from);
  MPI_Finalize();
  return 0;
}
