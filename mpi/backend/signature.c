/*
 * See signature.h. Sizes in external32 are those of MPI-4.1, table 14.2. The MPI libraries' own
 * MPI_Pack_external is not used: MPICH ends the program for MPI_2INT and similar types and swaps
 * the halves of MPI_DOUBLE_COMPLEX; Open MPI reports a size for MPI_LONG that it does not use.
 */
#include "signature.h"

#include "contents.h"

#include <stdlib.h>
#include <string.h>

/* Basic types of several equal elements, which MPI_Type_size counts together. */
struct basic {
  MPI_Datatype type;
  int parts; /* number of equal elements */
};

static int parts_of(MPI_Datatype type)
{
  const struct basic all[] = {
      {MPI_C_COMPLEX, 2},           {MPI_C_DOUBLE_COMPLEX, 2},
      {MPI_C_LONG_DOUBLE_COMPLEX, 2}, {MPI_2INT, 2},
#ifdef MPI_CXX_FLOAT_COMPLEX
      {MPI_CXX_FLOAT_COMPLEX, 2},   {MPI_CXX_DOUBLE_COMPLEX, 2},
      {MPI_CXX_LONG_DOUBLE_COMPLEX, 2},
#endif
      {MPI_COMPLEX, 2},             {MPI_DOUBLE_COMPLEX, 2},
      {MPI_2INTEGER, 2},            {MPI_2REAL, 2},
      {MPI_2DOUBLE_PRECISION, 2},
#ifdef MPI_COMPLEX8
      {MPI_COMPLEX8, 2},
#endif
#ifdef MPI_COMPLEX16
      {MPI_COMPLEX16, 2},
#endif
#ifdef MPI_COMPLEX32
      {MPI_COMPLEX32, 2},
#endif
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (type == all[i].type && type != MPI_DATATYPE_NULL)
      return all[i].parts;
  return 1;
}

static bool any_of(MPI_Datatype type, const MPI_Datatype *all, size_t count)
{
  for (size_t i = 0; i < count; i++)
    if (type == all[i] && type != MPI_DATATYPE_NULL)
      return true;
  return false;
}
#define ANY_OF(type, ...)                                                                                              \
  any_of(type, (const MPI_Datatype[]){__VA_ARGS__}, sizeof((const MPI_Datatype[]){__VA_ARGS__}) / sizeof(MPI_Datatype))

static struct signature element(enum element_kind kind, int memory, int file)
{
  return (struct signature){.repeat = 1, .kind = kind, .memory = memory, .file = file};
}

/* Returns the signature of a basic type that is no pair. */
static struct signature simple(MPI_Datatype type, int size)
{
  if (ANY_OF(type, MPI_LONG))
    return element(SIGNED, size, 4);
  if (ANY_OF(type, MPI_UNSIGNED_LONG))
    return element(UNSIGNED, size, 4);
  if (ANY_OF(type, MPI_WCHAR))
    return element(UNSIGNED, size, 2);
  if (ANY_OF(type, MPI_LONG_DOUBLE, MPI_C_LONG_DOUBLE_COMPLEX))
    return element(LONG_DOUBLE, size, 16);
#ifdef MPI_CXX_LONG_DOUBLE_COMPLEX
  if (ANY_OF(type, MPI_CXX_LONG_DOUBLE_COMPLEX))
    return element(LONG_DOUBLE, size, 16);
#endif
  return element(BYTES, size, size);
}

/* Returns the signature of a pair of MPI_MINLOC, a value and an int. */
static int pair(MPI_Datatype type, struct signature *out)
{
  const struct {
    MPI_Datatype type, first;
    int size;
  } all[] = {{MPI_FLOAT_INT, MPI_FLOAT, sizeof(float)},
             {MPI_DOUBLE_INT, MPI_DOUBLE, sizeof(double)},
             {MPI_LONG_INT, MPI_LONG, sizeof(long)},
             {MPI_SHORT_INT, MPI_SHORT, sizeof(short)},
             {MPI_LONG_DOUBLE_INT, MPI_LONG_DOUBLE, sizeof(long double)}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (type != all[i].type || type == MPI_DATATYPE_NULL)
      continue;
    *out = (struct signature){.repeat = 1, .count = 2, .parts = calloc(2, sizeof *out->parts)};
    if (out->parts == NULL)
      return MPI_ERR_NO_MEM;
    out->parts[0] = simple(all[i].first, all[i].size);
    out->parts[1] = element(BYTES, sizeof(int), sizeof(int));
    return MPI_SUCCESS;
  }
  return MPI_ERR_TYPE;
}

static int basic(MPI_Datatype type, int combiner, struct signature *out)
{
  int size = 0;
  if (pair(type, out) == MPI_SUCCESS)
    return MPI_SUCCESS;
  if (PMPI_Type_size(type, &size) != MPI_SUCCESS)
    return MPI_ERR_TYPE;
  int parts = combiner == MPI_COMBINER_F90_COMPLEX ? 2 : parts_of(type);
  *out = simple(type, size / parts);
  out->repeat = size == 0 ? 0 : parts;
  return MPI_SUCCESS;
}

static int structure(struct contents *c, struct signature *out)
{
  int64_t count = take_count(c);
  if (c->broken || count < 0 || count > c->datatypes)
    return MPI_ERR_TYPE;
  *out = (struct signature){.repeat = 1, .parts = calloc((size_t)count + 1, sizeof *out->parts)};
  if (out->parts == NULL)
    return MPI_ERR_NO_MEM;
  int error = MPI_SUCCESS;
  for (int64_t i = 0; i < count && error == MPI_SUCCESS; i++) {
    int64_t length = take_count(c);
    error = signature_of(c->types[i], &out->parts[i]);
    out->parts[i].repeat *= length;
    out->count = (size_t)i + 1;
  }
  return error;
}

int signature_of(MPI_Datatype datatype, struct signature *out)
{
  struct contents c;
  MPI_Count whole = 0, part = 0;
  *out = (struct signature){0};
  int error = contents_open(datatype, &c);
  if (error == MPI_SUCCESS && contents_predefined(&c)) {
    error = basic(datatype, c.combiner, out);
  } else if (error == MPI_SUCCESS && c.combiner == MPI_COMBINER_STRUCT) {
    error = structure(&c, out);
  } else if (error == MPI_SUCCESS && c.datatypes == 1) {
    /* All other constructors repeat one type. */
    PMPI_Type_size_x(datatype, &whole);
    PMPI_Type_size_x(c.types[0], &part);
    error = signature_of(c.types[0], out);
    out->repeat = part > 0 ? out->repeat * (whole / part) : 0;
  } else if (error == MPI_SUCCESS) {
    error = MPI_ERR_TYPE;
  }
  contents_free(&c);
  return error;
}

void signature_free(struct signature *signature)
{
  for (size_t i = 0; signature->parts != NULL && i < signature->count; i++)
    signature_free(&signature->parts[i]);
  free(signature->parts);
  *signature = (struct signature){0};
}

int64_t signature_memory(const struct signature *signature)
{
  int64_t sum = signature->parts == NULL ? signature->memory : 0;
  for (size_t i = 0; i < signature->count; i++)
    sum += signature_memory(&signature->parts[i]);
  return sum * signature->repeat;
}

int64_t signature_file(const struct signature *signature)
{
  int64_t sum = signature->parts == NULL ? signature->file : 0;
  for (size_t i = 0; i < signature->count; i++)
    sum += signature_file(&signature->parts[i]);
  return sum * signature->repeat;
}

/* ---- elements ---- */

static void reverse(const unsigned char *from, unsigned char *to, int size)
{
  if (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) {
    memcpy(to, from, (size_t)size);
    return;
  }
  switch (size) {
  case 2: {
    uint16_t value;
    memcpy(&value, from, 2);
    value = __builtin_bswap16(value);
    memcpy(to, &value, 2);
    return;
  }
  case 4: {
    uint32_t value;
    memcpy(&value, from, 4);
    value = __builtin_bswap32(value);
    memcpy(to, &value, 4);
    return;
  }
  case 8: {
    uint64_t value;
    memcpy(&value, from, 8);
    value = __builtin_bswap64(value);
    memcpy(to, &value, 8);
    return;
  }
  default:
    for (int i = 0; i < size; i++)
      to[i] = from[size - 1 - i];
  }
}

/* Converts an integer to another size; keeps the sign of a signed one. */
static int resize(const unsigned char *from, int from_size, unsigned char *to, int to_size, bool is_signed)
{
  /* From here on the least significant byte is the first. */
  unsigned char fill = is_signed && (from[from_size - 1] & 0x80) ? 0xff : 0;
  for (int i = 0; i < to_size; i++)
    to[i] = i < from_size ? from[i] : fill;
  for (int i = to_size; i < from_size; i++)
    if (from[i] != fill)
      return MPI_ERR_CONVERSION;
  if (is_signed && from_size > to_size && ((to[to_size - 1] ^ fill) & 0x80))
    return MPI_ERR_CONVERSION;
  return MPI_SUCCESS;
}

/* The x87 format stores the leading bit of the mantissa, which IEEE's 128-bit format omits. */
static void long_double_to_file(const unsigned char *memory, unsigned char *file)
{
  long double value;
  memcpy(&value, memory, sizeof value);
#if defined(__x86_64__) || defined(__i386__)
  __float128 wide = value;
#else
  long double wide = value;
#endif
  unsigned char bytes[16] = {0};
  memcpy(bytes, &wide, sizeof wide < sizeof bytes ? sizeof wide : sizeof bytes);
  reverse(bytes, file, 16);
}

static void long_double_to_memory(const unsigned char *file, unsigned char *memory)
{
  unsigned char bytes[16];
  reverse(file, bytes, 16);
#if defined(__x86_64__) || defined(__i386__)
  __float128 wide;
#else
  long double wide;
#endif
  memcpy(&wide, bytes, sizeof wide < sizeof bytes ? sizeof wide : sizeof bytes);
  long double value = (long double)wide;
  memcpy(memory, &value, sizeof value);
}

static int element_to_file(const struct signature *e, const unsigned char *memory, unsigned char *file)
{
  unsigned char bytes[16];
  if (e->kind == LONG_DOUBLE)
    long_double_to_file(memory, file);
  else if (e->memory == e->file)
    reverse(memory, file, e->file);
  else if (resize(memory, e->memory, bytes, e->file, e->kind == SIGNED) != MPI_SUCCESS)
    return MPI_ERR_CONVERSION;
  else
    reverse(bytes, file, e->file);
  return MPI_SUCCESS;
}

static int element_to_memory(const struct signature *e, const unsigned char *file, unsigned char *memory)
{
  unsigned char bytes[16];
  if (e->kind == LONG_DOUBLE) {
    long_double_to_memory(file, memory);
    return MPI_SUCCESS;
  }
  if (e->memory == e->file) {
    reverse(file, memory, e->file);
    return MPI_SUCCESS;
  }
  reverse(file, bytes, e->file);
  return resize(bytes, e->file, memory, e->memory, e->kind == SIGNED);
}

int signature_to_file(const struct signature *signature, const unsigned char **memory, unsigned char **file)
{
  int error = MPI_SUCCESS;
  if (signature->parts == NULL && signature->memory == 1 && signature->file == 1) {
    memcpy(*file, *memory, (size_t)signature->repeat);
    *memory += signature->repeat;
    *file += signature->repeat;
    return MPI_SUCCESS;
  }
  for (int64_t i = 0; i < signature->repeat && error == MPI_SUCCESS; i++) {
    if (signature->parts == NULL) {
      error = element_to_file(signature, *memory, *file);
      *memory += signature->memory;
      *file += signature->file;
    }
    for (size_t part = 0; part < signature->count && error == MPI_SUCCESS; part++)
      error = signature_to_file(&signature->parts[part], memory, file);
  }
  return error;
}

int signature_to_memory(const struct signature *signature, const unsigned char **file, unsigned char **memory)
{
  int error = MPI_SUCCESS;
  if (signature->parts == NULL && signature->memory == 1 && signature->file == 1) {
    memcpy(*memory, *file, (size_t)signature->repeat);
    *memory += signature->repeat;
    *file += signature->repeat;
    return MPI_SUCCESS;
  }
  for (int64_t i = 0; i < signature->repeat && error == MPI_SUCCESS; i++) {
    if (signature->parts == NULL) {
      error = element_to_memory(signature, *file, *memory);
      *memory += signature->memory;
      *file += signature->file;
    }
    for (size_t part = 0; part < signature->count && error == MPI_SUCCESS; part++)
      error = signature_to_memory(&signature->parts[part], file, memory);
  }
  return error;
}
