/* Accesses by the shared pointer in the order of ranks: one scan, one step of the pointer, one broadcast. */
#include "backend.h"

int ordered_offset(struct file *file, int64_t etypes, int error, int64_t *offset)
{
  /* The sum of errors is 0 only where there is none; their sum is no class, so the largest is asked for then. */
  int64_t own[2] = {error == MPI_SUCCESS ? etypes : 0, error != MPI_SUCCESS}, up_to[2];
  MPI_Request request = MPI_REQUEST_NULL;
  atomic_store(&file->shared_used, true);
  if (finish(PMPI_Iscan(own, up_to, 2, MPI_INT64_T, MPI_SUM, file->comm, &request), &request) != MPI_SUCCESS)
    return MPI_ERR_OTHER;
  int last = file->ranks - 1;
  int64_t told[2] = {0, up_to[1]}; /* where the pointer was; whether anything went wrong */
  if (file->rank == last && up_to[1] == 0)
    told[1] = class_of(tio_shared_add(file->io, up_to[0], &told[0])) != MPI_SUCCESS;
  if (broadcast(file->comm, told, sizeof told, last) != MPI_SUCCESS)
    return MPI_ERR_OTHER;
  if (told[1] != 0) {
    int worst = agree(file, error);
    return worst != MPI_SUCCESS ? worst : MPI_ERR_IO;
  }
  *offset = told[0] + up_to[0] - own[0];
  return MPI_SUCCESS;
}
