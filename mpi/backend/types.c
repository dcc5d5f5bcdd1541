/*
 * Shapes of datatypes, kept while the datatypes live. The MPI library may use a datatype's handle
 * for another one after MPI_Type_free. So each type that can be freed has an attribute whose delete
 * function drops the shape.
 */
#include "backend.h"

#include "wordmap.h"

#include <stdlib.h>

static struct wordmap types = WORDMAP(0);
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int keyval = MPI_KEYVAL_INVALID;

static void type_free(struct type *type)
{
  tio_shape_release(type->shape);
  free(type);
}

static int forget(MPI_Datatype datatype, int key, void *value, void *extra)
{
  (void)key;
  (void)extra;
  struct type *type = wordmap_take(&types, (uintptr_t)datatype);
  if (type != NULL && type == value)
    type_free(type);
  return MPI_SUCCESS;
}

static void make_keyval(void)
{
  if (PMPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, forget, &keyval, NULL) != MPI_SUCCESS)
    keyval = MPI_KEYVAL_INVALID;
}

/* Two threads may come here with one datatype: the lock lets the second one find the shape of
 * the first one. */
static int make(MPI_Datatype datatype, const struct type **out)
{
  struct type *type = calloc(1, sizeof *type);
  if (type == NULL)
    return MPI_ERR_NO_MEM;
  int error = flatten(datatype, NATIVE, &type->shape);
  if (error == MPI_SUCCESS) {
    type->size = (int64_t)tio_shape_size(type->shape);
    type->extent = tio_shape_extent(type->shape);
    if (wordmap_put(&types, (uintptr_t)datatype, type) != 0)
      error = MPI_ERR_NO_MEM;
    else if (!type_is_predefined(datatype) && PMPI_Type_set_attr(datatype, keyval, type) != MPI_SUCCESS) {
      wordmap_take(&types, (uintptr_t)datatype);
      error = MPI_ERR_TYPE;
    }
  }
  if (error != MPI_SUCCESS) {
    type_free(type);
    return error;
  }
  *out = type;
  return MPI_SUCCESS;
}

int type_of(MPI_Datatype datatype, const struct type **out)
{
  static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
  const struct type *known = wordmap_get(&types, (uintptr_t)datatype);
  if (known != NULL) {
    *out = known;
    return MPI_SUCCESS;
  }
  if (datatype == MPI_DATATYPE_NULL)
    return MPI_ERR_TYPE;
  pthread_once(&once, make_keyval);
  if (keyval == MPI_KEYVAL_INVALID)
    return MPI_ERR_OTHER;
  pthread_mutex_lock(&making);
  int error = MPI_SUCCESS;
  known = wordmap_get(&types, (uintptr_t)datatype);
  if (known == NULL)
    error = make(datatype, &known);
  pthread_mutex_unlock(&making);
  *out = known;
  return error;
}
