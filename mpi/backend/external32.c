/*
 * The representation external32: big-endian and of fixed sizes. A write packs the program's memory,
 * converts it, and writes one run of bytes; a read does the reverse.
 */
#include "backend.h"

#include "signature.h"

#include <stdlib.h>

int external32_dense(MPI_Datatype datatype, int64_t *size)
{
  struct signature signature;
  int error = signature_of(datatype, &signature);
  if (error == MPI_SUCCESS)
    *size = signature_file(&signature);
  signature_free(&signature);
  return error;
}

/* The state of a conversion: the elements of one datatype, and two dense buffers for all of
 * them. */
struct conversion {
  const struct type *type;
  struct signature signature;
  unsigned char *memory, *file;
  int64_t memory_bytes;
};

static int conversion_make(const struct access *access, int64_t dense, struct conversion *c)
{
  *c = (struct conversion){0};
  int error = type_of(access->datatype, &c->type);
  if (error == MPI_SUCCESS)
    error = signature_of(access->datatype, &c->signature);
  if (error != MPI_SUCCESS)
    return error;
  c->memory_bytes = c->type->size * access->count;
  c->memory = malloc((size_t)c->memory_bytes + 1);
  c->file = malloc((size_t)dense + 1);
  if (c->memory == NULL || c->file == NULL)
    return MPI_ERR_NO_MEM;
  c->signature.repeat *= access->count;
  return MPI_SUCCESS;
}

static void conversion_free(struct conversion *c)
{
  signature_free(&c->signature);
  free(c->memory);
  free(c->file);
}

static int to_file(const struct access *access, struct conversion *c)
{
  const unsigned char *from = c->memory;
  unsigned char *to = c->file;
  int64_t packed = tio_pack(access->buffer, (uint64_t)access->count, c->type->shape, c->memory,
                            (size_t)c->memory_bytes);
  return packed < 0 ? class_of(packed) : signature_to_file(&c->signature, &from, &to);
}

int external32_write(struct file *file, int64_t stream, const struct access *access, int64_t dense, int64_t *bytes)
{
  struct conversion c;
  int error = conversion_make(access, dense, &c);
  if (error == MPI_SUCCESS)
    error = to_file(access, &c);
  if (error == MPI_SUCCESS)
    error = class_of(tio_write(file->io, (uint64_t)stream, c.file, (uint64_t)dense, NULL));
  if (error == MPI_SUCCESS)
    *bytes = c.memory_bytes;
  conversion_free(&c);
  return error;
}

/* Returns the bytes of memory of the elements that lie wholly within the first `got` bytes of
 * the file's form. */
static int64_t whole_elements(const struct signature *s, int64_t *got)
{
  int64_t memory = 0, one = 0;
  if (s->parts == NULL) {
    int64_t count = s->file > 0 ? *got / s->file : 0;
    if (count > s->repeat)
      count = s->repeat;
    else if (count < s->repeat)
      one = *got; /* no later element is whole */
    *got -= count * s->file + (count < s->repeat ? one - count * s->file : 0);
    return count * s->memory;
  }
  for (int64_t i = 0; i < s->repeat && *got > 0; i++)
    for (size_t part = 0; part < s->count && *got > 0; part++)
      memory += whole_elements(&s->parts[part], got);
  return memory;
}

int external32_read(struct file *file, int64_t stream, const struct access *access, int64_t dense, int64_t *bytes)
{
  struct conversion c;
  int64_t got = 0, whole = 0;
  int error = conversion_make(access, dense, &c);
  if (error == MPI_SUCCESS) {
    got = tio_read(file->io, (uint64_t)stream, c.file, (uint64_t)dense, NULL);
    error = class_of(got);
  }
  if (error == MPI_SUCCESS && got > 0) {
    const unsigned char *from = c.file;
    unsigned char *to = c.memory;
    /* The bytes past the end of the file are converted as zeros, and then not copied to the
     * program. */
    for (int64_t i = got; i < dense; i++)
      c.file[i] = 0;
    whole = got == dense ? c.memory_bytes : whole_elements(&c.signature, &got);
    error = signature_to_memory(&c.signature, &from, &to);
  }
  if (error == MPI_SUCCESS && whole > 0)
    error = class_of(tio_unpack(c.memory, (size_t)whole, access->buffer, (uint64_t)access->count, c.type->shape));
  if (error == MPI_SUCCESS)
    *bytes = whole;
  conversion_free(&c);
  return error;
}
