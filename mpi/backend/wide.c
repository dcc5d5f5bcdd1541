/* See wide.h. */
#include "wide.h"

#include <limits.h>

int narrow_make(MPI_Count count, MPI_Datatype datatype, struct narrow *narrow)
{
  *narrow = (struct narrow){(int)count, datatype, false};
  if (count <= INT_MAX)
    return MPI_SUCCESS;
  MPI_Count lb, extent;
  MPI_Datatype parts[2] = {MPI_DATATYPE_NULL, MPI_DATATYPE_NULL}, all;
  if (count / INT_MAX > INT_MAX || PMPI_Type_get_extent_x(datatype, &lb, &extent) != MPI_SUCCESS)
    return MPI_ERR_COUNT;
  MPI_Aint rest = (MPI_Aint)(count / INT_MAX * INT_MAX * extent);
  int error = PMPI_Type_vector((int)(count / INT_MAX), INT_MAX, INT_MAX, datatype, &parts[0]);
  if (error == MPI_SUCCESS)
    error = PMPI_Type_contiguous((int)(count % INT_MAX), datatype, &parts[1]);
  if (error == MPI_SUCCESS)
    error = PMPI_Type_create_struct(2, (int[]){1, 1}, (MPI_Aint[]){0, rest}, parts, &all);
  if (error == MPI_SUCCESS) {
    PMPI_Type_commit(&all);
    *narrow = (struct narrow){1, all, true};
  }
  for (int i = 0; i < 2; i++)
    if (parts[i] != MPI_DATATYPE_NULL)
      PMPI_Type_free(&parts[i]);
  return error;
}

void narrow_free(struct narrow *narrow)
{
  if (narrow->made)
    PMPI_Type_free(&narrow->datatype);
  narrow->made = false;
}
