/* Hints: MPI_Info to the C API's form and back. */
#include "ours.h"

#include <stdlib.h>
#include <string.h>

static char *value_of(MPI_Info info, const char *key)
{
  int length = 0, found = 0;
  if (PMPI_Info_get_valuelen(info, key, &length, &found) != MPI_SUCCESS || !found)
    return NULL;
  char *value = calloc((size_t)length + 1, 1);
  if (value != NULL)
    PMPI_Info_get(info, key, length, value, &found);
  return value;
}

const char **hints_of(MPI_Info info)
{
  int keys = 0;
  if (info != MPI_INFO_NULL && PMPI_Info_get_nkeys(info, &keys) != MPI_SUCCESS)
    keys = 0;
  const char **hints = calloc(2 * (size_t)keys + 1, sizeof *hints);
  size_t used = 0;
  for (int i = 0; hints != NULL && i < keys; i++) {
    char key[MPI_MAX_INFO_KEY + 1] = "";
    PMPI_Info_get_nthkey(info, i, key);
    char *value = value_of(info, key), *copy = strdup(key);
    if (value == NULL || copy == NULL) {
      free(value);
      free(copy);
      continue;
    }
    hints[used++] = copy;
    hints[used++] = value;
  }
  return hints;
}

void hints_free(const char **hints)
{
  for (size_t i = 0; hints != NULL && hints[i] != NULL; i++)
    free((void *)hints[i]);
  free(hints);
}

void hints_merge(MPI_Info into, MPI_Info from)
{
  const char **hints = hints_of(from);
  for (size_t i = 0; hints != NULL && hints[i] != NULL; i += 2)
    PMPI_Info_set(into, hints[i], hints[i + 1]);
  hints_free(hints);
}

/* Parses "key=value\n" lines into an info object. */
static void hints_parse(MPI_Info into, char *text)
{
  char *rest = NULL;
  for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
    char *equals = strchr(line, '=');
    if (equals == NULL || equals[1] == '\0')
      continue;
    *equals = '\0';
    PMPI_Info_set(into, line, equals + 1);
  }
}

int our_File_get_info(MPI_File handle, MPI_Info *info)
{
  struct file *file = file_of(handle);
  if (file == NULL)
    return REAL(File_get_info)(handle, info);
  if (info == NULL)
    return fail(file, MPI_ERR_ARG);
  char text[4096];
  if (PMPI_Info_dup(file->hints, info) != MPI_SUCCESS)
    return fail(file, MPI_ERR_NO_MEM);
  if (tio_hints(file->io, text, sizeof text) > 0)
    hints_parse(*info, text);
  return MPI_SUCCESS;
}

int our_File_set_info(MPI_File handle, MPI_Info info)
{
  struct file *file = file_of(handle);
  if (file == NULL)
    return REAL(File_set_info)(handle, info);
  if (info != MPI_INFO_NULL)
    hints_merge(file->hints, info);
  return MPI_SUCCESS;
}
