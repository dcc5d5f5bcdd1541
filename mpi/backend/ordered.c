/* Accesses by the shared pointer in the order of ranks: one scan, one step of the pointer, one
 * broadcast. */
#include "backend.h"

int ordered_offset(struct file *file, int64_t etypes, int error, int64_t *offset)
{
  /* The sum of the error flags is 0 only without an error. The sum of error classes would be no
   * class; after an error, the ranks agree on the largest. */
  int64_t own[2] = {error == MPI_SUCCESS ? etypes : 0, error != MPI_SUCCESS}, up_to[2];
  MPI_Request request = MPI_REQUEST_NULL;
  atomic_store(&file->shared_used, true);
  if (finish(PMPI_Iscan(own, up_to, 2, MPI_INT64_T, MPI_SUM, file->comm, &request), &request) != MPI_SUCCESS)
    return MPI_ERR_OTHER;
  int last = file->ranks - 1;
  int64_t told[2] = {0, up_to[1]}; /* the pointer's old position; the error flag */
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
