/*
 * File types whose bounds are not those of their data, and whose copies overlap, lie between each
 * other's blocks or go back. The program checks bytes and file offsets against a model of each
 * byte. Usage: filetypes PATH [native]
 *
 * The standard forbids overlap within a file type for writing; the positions of copies matter only
 * to an access that reaches the second one. HDF5 and PnetCDF make such types and access one copy.
 * With "native" the program does only that, with the types that both MPI libraries take.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REGION = 8192, BASE = 2048, BLOCKS_MAX = 64, ACCESS_MAX = 2048 };

static int rank, ranks, failures, native;
static MPI_File file;
static unsigned char model[REGION]; /* of this rank's part of the file */
static const char *current;

#define CHECK(condition, ...)                                                                                          \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      failures++;                                                                                                      \
      printf("%s: line %d: rank %d: %s: ", current, __LINE__, rank, #condition);                                       \
      printf(__VA_ARGS__);                                                                                             \
      printf("\n");                                                                                                    \
      fflush(stdout);                                                                                                  \
    }                                                                                                                  \
  } while (0)
#define OK(call) CHECK((call) == MPI_SUCCESS, "failed")

/* A type, and its data: runs of bytes in the order of the type map. */
struct filetype {
  MPI_Datatype type;
  int count, at[BLOCKS_MAX], length[BLOCKS_MAX];
};

static void run(struct filetype *t, int at, int length)
{
  t->at[t->count] = at;
  t->length[t->count++] = length;
}

static void rows(struct filetype *t, int at, int length, int count, int stride)
{
  for (int i = 0; i < count; i++)
    run(t, at + i * stride, length);
}

static MPI_Datatype bytes(int length)
{
  MPI_Datatype type;
  MPI_Type_contiguous(length, MPI_BYTE, &type);
  return type;
}

static void resize(struct filetype *t, MPI_Datatype old, int lb, int extent)
{
  MPI_Type_create_resized(old, lb, extent, &t->type);
  MPI_Type_free(&old);
}

/* PnetCDF: the header, and a variable after it. */
static void header_and_variable(struct filetype *t)
{
  MPI_Datatype variable, plain = bytes(40);
  MPI_Type_create_resized(plain, 0, 40, &variable);
  MPI_Type_create_struct(2, (int[]){512, 1}, (MPI_Aint[]){0, 512}, (MPI_Datatype[]){MPI_BYTE, variable}, &t->type);
  MPI_Type_free(&variable);
  MPI_Type_free(&plain);
  run(t, 0, 552);
}

/* HDF5: chunks at their addresses; a subarray of those that are written in part. */
static void chunks(struct filetype *t)
{
  MPI_Datatype part, whole = bytes(144);
  MPI_Type_create_subarray(2, (int[]){6, 6}, (int[]){3, 4}, (int[]){1, 2}, MPI_ORDER_C, MPI_INT, &part);
  MPI_Type_create_struct(4, (int[]){1, 1, 1, 1}, (MPI_Aint[]){0, 288, 432, 1000},
                         (MPI_Datatype[]){whole, part, part, whole}, &t->type);
  MPI_Type_free(&part);
  MPI_Type_free(&whole);
  run(t, 0, 144);
  rows(t, 288 + 32, 16, 3, 24);
  rows(t, 432 + 32, 16, 3, 24);
  run(t, 1000, 144);
}

static void bound_above(struct filetype *t)
{
  resize(t, bytes(40), 100, 60);
  run(t, 0, 40);
}

static void bound_below(struct filetype *t)
{
  MPI_Datatype vector;
  MPI_Type_vector(3, 8, 20, MPI_BYTE, &vector);
  resize(t, vector, -50, 80);
  rows(t, 0, 8, 3, 20);
}

static void data_below(struct filetype *t)
{
  MPI_Datatype blocks;
  MPI_Type_create_hindexed(3, (int[]){8, 8, 16}, (MPI_Aint[]){-24, -8, 12}, MPI_BYTE, &blocks);
  resize(t, blocks, -24, 64);
  run(t, -24, 8);
  run(t, -8, 8);
  run(t, 12, 16);
}

static void no_extent(struct filetype *t)
{
  MPI_Datatype vector;
  MPI_Type_vector(4, 8, 16, MPI_BYTE, &vector);
  resize(t, vector, 0, 0);
  rows(t, 0, 8, 4, 16);
}

/* The columns of a matrix: each copy lies between the blocks of the others. */
static void columns(struct filetype *t)
{
  MPI_Datatype column;
  MPI_Type_vector(6, 8, 32, MPI_BYTE, &column);
  resize(t, column, 0, 8);
  rows(t, 0, 8, 6, 32);
}

static void short_extent(struct filetype *t)
{
  resize(t, bytes(40), 0, 16);
  run(t, 0, 40);
}

static void back(struct filetype *t)
{
  MPI_Datatype vector;
  MPI_Type_vector(2, 8, 24, MPI_BYTE, &vector);
  resize(t, vector, 0, -16);
  rows(t, 0, 8, 2, 24);
}

static void overlap(struct filetype *t)
{
  MPI_Type_create_hindexed(3, (int[]){16, 16, 8}, (MPI_Aint[]){0, 8, 32}, MPI_BYTE, &t->type);
  run(t, 0, 16);
  run(t, 8, 16);
  run(t, 32, 8);
}

static void in_order(struct filetype *t)
{
  MPI_Type_create_subarray(2, (int[]){6, 8}, (int[]){3, 4}, (int[]){1, 2}, MPI_ORDER_C, MPI_INT, &t->type);
  rows(t, 40, 16, 3, 32);
}

static const struct {
  const char *name;
  void (*make)(struct filetype *);
  int native; /* both MPI libraries take it */
} cases[] = {
    {"a header and a variable", header_and_variable, 1},
    {"chunks", chunks, 1},
    {"a lower bound above the data", bound_above, 1},
    {"a lower bound below the data", bound_below, 0},
    {"data below displacement 0", data_below, 0},
    {"no extent", no_extent, 0},
    {"columns", columns, 0},
    {"an extent shorter than the data", short_extent, 0},
    {"a negative extent", back, 0},
    {"a file type that overlaps itself", overlap, 0},
    {"a file type in order", in_order, 1},
};

static int size_of(const struct filetype *t)
{
  int size = 0;
  for (int i = 0; i < t->count; i++)
    size += t->length[i];
  return size;
}

/* Returns the position of byte `k` of the stream in the rank's region. */
static int place(const struct filetype *t, int k)
{
  MPI_Aint lb, extent;
  int size = size_of(t), rest = k % size, i = 0;
  MPI_Type_get_extent(t->type, &lb, &extent);
  for (; rest >= t->length[i]; i++)
    rest -= t->length[i];
  return BASE + k / size * (int)extent + t->at[i] + rest;
}

static void settle(void)
{
  OK(MPI_File_sync(file));
  MPI_Barrier(MPI_COMM_WORLD);
  OK(MPI_File_sync(file));
}

/* Compares this rank's whole part of the file. */
static void compare(void)
{
  static unsigned char found[REGION];
  MPI_Status status;
  settle();
  OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
  OK(MPI_File_read_at_all(file, (MPI_Offset)rank * REGION, found, REGION, MPI_BYTE, &status));
  for (int i = 0; i < REGION; i++)
    if (found[i] != model[i]) {
      CHECK(found[i] == model[i], "byte %d is %d, not %d", i - BASE, found[i], model[i]);
      memcpy(model, found, REGION);
      return;
    }
}

static void view(const struct filetype *t)
{
  OK(MPI_File_set_view(file, (MPI_Offset)rank * REGION + BASE, MPI_BYTE, t->type, "native", MPI_INFO_NULL));
}

static void write_some(const struct filetype *t, int from, int count, int collective)
{
  static unsigned char value;
  unsigned char data[ACCESS_MAX];
  MPI_Status status;
  int told = -1;
  for (int k = 0; k < count; k++) {
    data[k] = ++value | 1;
    model[place(t, from + k)] = data[k];
  }
  if (collective)
    OK(MPI_File_write_at_all(file, from, data, count, MPI_BYTE, &status));
  else
    OK(MPI_File_write_at(file, from, data, count, MPI_BYTE, &status));
  MPI_Get_count(&status, MPI_BYTE, &told);
  CHECK(told == count, "%d of %d", told, count);
}

static void read_some(const struct filetype *t, int from, int count)
{
  unsigned char data[ACCESS_MAX];
  MPI_Status status;
  int told = -1;
  memset(data, 0, sizeof data);
  OK(MPI_File_read_at_all(file, from, data, count, MPI_BYTE, &status));
  MPI_Get_count(&status, MPI_BYTE, &told);
  CHECK(told == count, "%d of %d", told, count);
  for (int k = 0; k < count; k++)
    if (data[k] != model[place(t, from + k)]) {
      CHECK(0, "stream byte %d is %d, not %d", from + k, data[k], model[place(t, from + k)]);
      return;
    }
}

static void offsets(const struct filetype *t, int count)
{
  for (int k = 0; k < count; k += 5) {
    MPI_Offset byte = -1;
    OK(MPI_File_get_byte_offset(file, k, &byte));
    CHECK(byte == (MPI_Offset)rank * REGION + place(t, k), "stream byte %d is byte %lld", k, (long long)byte);
  }
}

static void try_case(int number)
{
  struct filetype t = {0};
  current = cases[number].name;
  cases[number].make(&t);
  MPI_Type_commit(&t.type);
  int size = size_of(&t);
  /* One copy: by halves, and as a whole. */
  view(&t);
  offsets(&t, size);
  write_some(&t, 0, size / 2, 0);
  write_some(&t, size / 2, size - size / 2, 0);
  compare();
  view(&t);
  read_some(&t, 0, size);
  write_some(&t, 0, size, 1);
  compare();
  view(&t);
  read_some(&t, 3, size - 5);
  if (!native) {
    /* Later copies: if a byte is written twice, the later write counts. */
    int much = 3 * size < ACCESS_MAX ? 3 * size : ACCESS_MAX;
    offsets(&t, much);
    write_some(&t, size / 3, much - size / 3, 1);
    compare();
    view(&t);
    read_some(&t, 0, much);
    write_some(&t, size, size / 2, 0);
    write_some(&t, 2, size, 0);
    read_some(&t, 1, size);
    compare();
  }
  MPI_Type_free(&t.type);
}

/* Accesses to bytes before the file are refused, and change nothing else. */
static void before_the_file(void)
{
  struct filetype t = {0};
  MPI_Status status;
  MPI_Offset size = 0, after = 0;
  unsigned char data[64] = {0};
  int class = MPI_SUCCESS;
  current = "copies that leave the file";
  back(&t);
  MPI_Type_commit(&t.type);
  OK(MPI_File_get_size(file, &size));
  OK(MPI_File_set_view(file, 16, MPI_BYTE, t.type, "native", MPI_INFO_NULL));
  OK(MPI_File_read_at(file, 0, data, 32, MPI_BYTE, &status));
  MPI_Error_class(MPI_File_read_at(file, 0, data, 48, MPI_BYTE, &status), &class);
  CHECK(class == MPI_ERR_ARG, "class %d", class);
  MPI_Error_class(MPI_File_write_at(file, 32, data, 16, MPI_BYTE, &status), &class);
  CHECK(class == MPI_ERR_ARG, "class %d", class);
  MPI_Type_free(&t.type);
  data_below(&t);
  MPI_Type_commit(&t.type);
  OK(MPI_File_set_view(file, 24, MPI_BYTE, t.type, "native", MPI_INFO_NULL));
  MPI_Error_class(MPI_File_set_view(file, 23, MPI_BYTE, t.type, "native", MPI_INFO_NULL), &class);
  CHECK(class == MPI_ERR_ARG, "class %d", class);
  MPI_Type_free(&t.type);
  OK(MPI_File_get_size(file, &after));
  CHECK(size == after, "%lld, then %lld", (long long)size, (long long)after);
}

int main(int argc, char **argv)
{
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  native = argc > 2 && strcmp(argv[2], "native") == 0;
  current = "opening";
  OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
  MPI_Status status;
  memset(model, 0xf0 + rank, sizeof model);
  OK(MPI_File_write_at_all(file, (MPI_Offset)rank * REGION, model, REGION, MPI_BYTE, &status));
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    if (!native || cases[i].native)
      try_case((int)i);
  if (!native)
    before_the_file();
  current = "closing";
  OK(MPI_File_close(&file));
  int all = 0;
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0 && all == 0)
    printf("all values right\n");
  MPI_Finalize();
  return all != 0;
}
