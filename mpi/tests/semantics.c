/*
 * The rules of MPI-4.1, chapter 14, call by call. Usage: semantics PATH [native]
 * With "native", the program skips the calls in which the MPI libraries' own MPI-IO is known to
 * differ.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks, failures, native;
static const char *path;
static char scratch[4096];

#define CHECK(condition, ...)                                                                                          \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      failures++;                                                                                                      \
      printf("%s:%d: rank %d: %s: ", __func__, __LINE__, rank, #condition);                                            \
      printf(__VA_ARGS__);                                                                                             \
      printf("\n");                                                                                                    \
      fflush(stdout);                                                                                                  \
    }                                                                                                                  \
  } while (0)
#define OK(call)                                                                                                       \
  do {                                                                                                                 \
    int result_ = (call);                                                                                              \
    CHECK(result_ == MPI_SUCCESS, "%s is class %d", #call, class_of(result_));                                         \
  } while (0)
#define FAILS(call, expected)                                                                                          \
  do {                                                                                                                 \
    int class_ = class_of(call);                                                                                       \
    CHECK(native ? class_ != MPI_SUCCESS : class_ == (expected), "%s is class %d, not %d", #call, class_, expected);   \
  } while (0)

static int class_of(int code)
{
  int class = -1;
  MPI_Error_class(code, &class);
  return class;
}

static int count_of(MPI_Status *status, MPI_Datatype type)
{
  int count = -7;
  MPI_Get_count(status, type, &count);
  return count;
}

static MPI_File fresh(int amode)
{
  MPI_File file = MPI_FILE_NULL;
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0)
    MPI_File_delete((char *)path, MPI_INFO_NULL);
  MPI_Barrier(MPI_COMM_WORLD);
  OK(MPI_File_open(MPI_COMM_WORLD, (char *)path, amode, MPI_INFO_NULL, &file));
  return file;
}

static void settle(MPI_File file)
{
  OK(MPI_File_sync(file));
  MPI_Barrier(MPI_COMM_WORLD);
  OK(MPI_File_sync(file));
}

static void opening(void)
{
  MPI_File file;
  MPI_Group group, world;
  int amode = 0, result = 0, size = 0;
  if (rank == 0)
    MPI_File_delete((char *)path, MPI_INFO_NULL);
  MPI_Barrier(MPI_COMM_WORLD);
  FAILS(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE);
  FAILS(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_RDWR | MPI_MODE_RDONLY, MPI_INFO_NULL, &file),
        MPI_ERR_AMODE);
  FAILS(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_CREATE, MPI_INFO_NULL, &file), MPI_ERR_AMODE);
  FAILS(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_RDONLY | MPI_MODE_CREATE, MPI_INFO_NULL, &file),
        MPI_ERR_AMODE);
  FAILS(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_RDWR | MPI_MODE_SEQUENTIAL, MPI_INFO_NULL, &file),
        MPI_ERR_AMODE);
  OK(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_EXCL, MPI_INFO_NULL,
                   &file));
  OK(MPI_File_get_amode(file, &amode));
  CHECK(amode == (MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_EXCL), "%d", amode);
  OK(MPI_File_get_group(file, &group));
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_compare(group, world, &result);
  MPI_Group_size(group, &size);
  CHECK(result == MPI_IDENT && size == ranks, "%d %d", result, size);
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  OK(MPI_File_close(&file));
  CHECK(file == MPI_FILE_NULL, "not null");
  FAILS(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_EXCL, MPI_INFO_NULL,
                      &file),
        MPI_ERR_FILE_EXISTS);
  OK(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &file));
  OK(MPI_File_close(&file));
  MPI_Barrier(MPI_COMM_WORLD);
  FAILS(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0)
    FAILS(MPI_File_delete((char *)path, MPI_INFO_NULL), MPI_ERR_NO_SUCH_FILE);
}

static void modes(void)
{
  int value = rank;
  MPI_Status status;
  MPI_Offset offset;
  MPI_File file = fresh(MPI_MODE_WRONLY | MPI_MODE_CREATE);
  OK(MPI_File_write_at(file, 4 * rank, &value, 1, MPI_INT, &status));
  FAILS(MPI_File_read_at(file, 0, &value, 1, MPI_INT, &status), MPI_ERR_ACCESS);
  OK(MPI_File_close(&file));
  OK(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
  FAILS(MPI_File_write_at(file, 0, &value, 1, MPI_INT, &status), MPI_ERR_READ_ONLY);
  FAILS(MPI_File_set_size(file, 0), MPI_ERR_READ_ONLY);
  OK(MPI_File_close(&file));
  OK(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_WRONLY | MPI_MODE_APPEND, MPI_INFO_NULL, &file));
  OK(MPI_File_get_position(file, &offset));
  CHECK(offset == 4 * ranks, "%lld", (long long)offset);
  OK(MPI_File_get_position_shared(file, &offset));
  if (!native)
    CHECK(offset == 4 * ranks, "%lld", (long long)offset);
  OK(MPI_File_close(&file));
  OK(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_WRONLY | MPI_MODE_SEQUENTIAL, MPI_INFO_NULL, &file));
  FAILS(MPI_File_write_at(file, 0, &value, 1, MPI_INT, &status), MPI_ERR_UNSUPPORTED_OPERATION);
  FAILS(MPI_File_write(file, &value, 1, MPI_INT, &status), MPI_ERR_UNSUPPORTED_OPERATION);
  OK(MPI_File_write_ordered(file, &value, 1, MPI_INT, &status));
  OK(MPI_File_close(&file));
}

static void arguments(void)
{
  int value = 1;
  MPI_Offset offset;
  MPI_Status status;
  MPI_File file = fresh(MPI_MODE_RDWR | MPI_MODE_CREATE);
  FAILS(MPI_File_write_at(file, -1, &value, 1, MPI_INT, &status), MPI_ERR_ARG);
  FAILS(MPI_File_write_at(file, 0, &value, -1, MPI_INT, &status), MPI_ERR_COUNT);
  FAILS(MPI_File_write_at(file, 0, &value, 1, MPI_DATATYPE_NULL, &status), MPI_ERR_TYPE);
  FAILS(MPI_File_seek(file, -1, MPI_SEEK_SET), MPI_ERR_ARG);
  FAILS(MPI_File_seek(file, 0, 12345), MPI_ERR_ARG);
  FAILS(MPI_File_set_view(file, -1, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_ARG);
  FAILS(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "nonsense", MPI_INFO_NULL), MPI_ERR_UNSUPPORTED_DATAREP);
  if (!native) {
    FAILS(MPI_File_set_view(file, MPI_DISPLACEMENT_CURRENT, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL),
          MPI_ERR_ARG);
    FAILS(MPI_File_set_view(file, 0, MPI_INT, MPI_SHORT, "native", MPI_INFO_NULL), MPI_ERR_ARG);
    MPI_Datatype backwards;
    MPI_Type_indexed(2, (int[]){1, 1}, (int[]){3, 0}, MPI_INT, &backwards);
    MPI_Type_commit(&backwards);
    FAILS(MPI_File_set_view(file, 0, MPI_INT, backwards, "native", MPI_INFO_NULL), MPI_ERR_ARG);
    MPI_Type_free(&backwards);
    /* One rank has a wrong argument: all ranks get the error. */
    FAILS(MPI_File_set_view(file, rank == 0 ? -3 : 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_ARG);
    if (ranks > 1) {
      FAILS(MPI_File_set_view(file, 0, rank == 0 ? MPI_INT : MPI_SHORT, MPI_INT, "native", MPI_INFO_NULL),
            MPI_ERR_NOT_SAME);
      FAILS(MPI_File_set_size(file, 100 + rank), MPI_ERR_NOT_SAME);
      FAILS(MPI_File_seek_shared(file, rank, MPI_SEEK_SET), MPI_ERR_NOT_SAME);
    }
    OK(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    FAILS(MPI_File_write(file, &value, 3, MPI_CHAR, &status), MPI_ERR_IO);
    OK(MPI_File_get_position(file, &offset));
    CHECK(offset == 0, "%lld", (long long)offset);
  }
  OK(MPI_File_close(&file));
}

static void pointers(void)
{
  MPI_File file = fresh(MPI_MODE_RDWR | MPI_MODE_CREATE);
  MPI_Datatype filetype;
  MPI_Offset offset;
  MPI_Status status;
  int values[6], back[6];
  for (int i = 0; i < 6; i++)
    values[i] = 100 * rank + i, back[i] = -1;
  /* Blocks of 2 ints in turn. */
  MPI_Type_vector(1, 2, 2, MPI_INT, &filetype);
  MPI_Datatype spread;
  MPI_Type_create_resized(filetype, 0, 2 * (MPI_Aint)sizeof(int) * ranks, &spread);
  MPI_Type_commit(&spread);
  OK(MPI_File_set_view(file, 8 * rank, MPI_INT, spread, "native", MPI_INFO_NULL));
  OK(MPI_File_write(file, values, 3, MPI_INT, &status));
  CHECK(count_of(&status, MPI_INT) == 3, "%d", count_of(&status, MPI_INT));
  OK(MPI_File_get_position(file, &offset));
  CHECK(offset == 3, "%lld", (long long)offset);
  OK(MPI_File_write(file, values + 3, 3, MPI_INT, &status));
  OK(MPI_File_get_byte_offset(file, 5, &offset));
  CHECK(offset == 8 * rank + 2 * 8 * ranks + 4, "%lld", (long long)offset);
  settle(file);
  OK(MPI_File_get_size(file, &offset));
  CHECK(offset == 24 * ranks, "%lld", (long long)offset);
  OK(MPI_File_seek(file, -6, MPI_SEEK_CUR));
  OK(MPI_File_read_all(file, back, 6, MPI_INT, &status));
  CHECK(memcmp(values, back, sizeof values) == 0, "%d %d", back[0], back[5]);
  if (!native) {
    OK(MPI_File_seek(file, 0, MPI_SEEK_END));
    OK(MPI_File_get_position(file, &offset));
    CHECK(offset == 6, "%lld", (long long)offset);
    OK(MPI_File_seek(file, -2, MPI_SEEK_END));
    OK(MPI_File_read(file, back, 6, MPI_INT, &status));
    CHECK(count_of(&status, MPI_INT) == 2 && back[0] == values[4] && back[1] == values[5], "%d",
          count_of(&status, MPI_INT));
    OK(MPI_File_read_at(file, 6, back, 1, MPI_INT, &status));
    CHECK(count_of(&status, MPI_INT) == 0, "%d", count_of(&status, MPI_INT));
  }
  MPI_Type_free(&spread);
  /* The view keeps its types although the program has freed its own. */
  MPI_Datatype etype;
  char datarep[MPI_MAX_DATAREP_STRING];
  OK(MPI_File_get_view(file, &offset, &etype, &spread, datarep));
  int size = 0;
  MPI_Type_size(spread, &size);
  CHECK(offset == 8 * rank && etype == MPI_INT && size == 8 && strcmp(datarep, "native") == 0, "%s %d", datarep, size);
  MPI_Type_free(&spread);
  MPI_Type_free(&filetype);
  OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
  if (rank == 0) {
    int all[6 * 64];
    OK(MPI_File_read_at(file, 0, all, 6 * ranks, MPI_INT, &status));
    for (int i = 0; i < 6 * ranks; i++) {
      int expected = i / 2 % ranks * 100 + i / 2 / ranks * 2 + i % 2;
      CHECK(all[i] == expected, "%d: %d, not %d", i, all[i], expected);
    }
  }
  OK(MPI_File_close(&file));
}

static void shared(void)
{
  MPI_File file = fresh(MPI_MODE_RDWR | MPI_MODE_CREATE);
  MPI_Status status;
  MPI_Offset offset;
  int values[64];
  OK(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
  for (int i = 0; i < 64; i++)
    values[i] = 1000 + rank;
  /* Rank r writes r + 1 ints, in any order; then in order. */
  OK(MPI_File_write_shared(file, values, rank + 1, MPI_INT, &status));
  CHECK(count_of(&status, MPI_INT) == rank + 1, "%d", count_of(&status, MPI_INT));
  MPI_Barrier(MPI_COMM_WORLD);
  int sum = ranks * (ranks + 1) / 2;
  OK(MPI_File_get_position_shared(file, &offset));
  CHECK(offset == sum, "%lld", (long long)offset);
  MPI_Barrier(MPI_COMM_WORLD);
  OK(MPI_File_write_ordered(file, values, rank + 1, MPI_INT, &status));
  settle(file);
  int all[2 * 64 * 65 / 2], counts[64] = {0};
  OK(MPI_File_read_at_all(file, 0, all, 2 * sum, MPI_INT, &status));
  CHECK(count_of(&status, MPI_INT) == 2 * sum, "%d", count_of(&status, MPI_INT));
  for (int i = 0; i < sum; i++)
    if (all[i] >= 1000 && all[i] < 1000 + ranks)
      counts[all[i] - 1000]++;
  for (int r = 0, at = sum; r < ranks; r++) {
    CHECK(counts[r] == r + 1, "rank %d wrote %d", r, counts[r]);
    for (int i = 0; i <= r; i++, at++)
      CHECK(all[at] == 1000 + r, "%d: %d", at, all[at]);
  }
  OK(MPI_File_seek_shared(file, sum, MPI_SEEK_SET));
  memset(values, 0, sizeof values);
  int *mine = calloc((size_t)rank + 1, sizeof *mine);
  OK(MPI_File_read_ordered_begin(file, mine, rank + 1, MPI_INT));
  OK(MPI_File_read_ordered_end(file, mine, &status));
  for (int i = 0; i <= rank; i++)
    CHECK(mine[i] == 1000 + rank, "%d", mine[i]);
  OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
  MPI_Request request;
  OK(MPI_File_iread_shared(file, mine, 1, MPI_INT, &request));
  OK(MPI_Wait(&request, &status));
  CHECK(count_of(&status, MPI_INT) == 1 && mine[0] >= 1000 && mine[0] < 1000 + ranks, "%d", mine[0]);
  free(mine);
  MPI_Barrier(MPI_COMM_WORLD);
  OK(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
  OK(MPI_File_get_position_shared(file, &offset));
  CHECK(offset == 0, "%lld", (long long)offset);
  OK(MPI_File_close(&file));
}

static void nonblocking(void)
{
  MPI_File file = fresh(MPI_MODE_RDWR | MPI_MODE_CREATE);
  MPI_Request requests[4];
  MPI_Status statuses[4];
  int values[4] = {rank, rank + 1, rank + 2, rank + 3}, back[4] = {0}, flag = 0;
  for (int i = 0; i < 4; i++)
    OK(MPI_File_iwrite_at(file, 4 * (4 * rank + i), &values[i], 1, MPI_INT, &requests[i]));
  OK(MPI_Waitall(4, requests, statuses));
  for (int i = 0; i < 4; i++)
    CHECK(count_of(&statuses[i], MPI_INT) == 1 && requests[i] == MPI_REQUEST_NULL, "%d", count_of(&statuses[i], MPI_INT));
  settle(file);
  OK(MPI_File_seek(file, 16 * rank, MPI_SEEK_SET));
  OK(MPI_File_iread(file, back, 2, MPI_INT, &requests[0]));
  OK(MPI_File_iread(file, back + 2, 2, MPI_INT, &requests[1]));
  while (!flag)
    OK(MPI_Testall(2, requests, &flag, statuses));
  CHECK(memcmp(values, back, sizeof back) == 0, "%d %d", back[0], back[3]);
  if (!native) { /* Open MPI's romio321 dies of it */
    memset(back, 0, sizeof back);
    OK(MPI_File_iread_at_all(file, 16 * rank, back, 4, MPI_INT, &requests[0]));
    OK(MPI_Wait(&requests[0], statuses));
    CHECK(memcmp(values, back, sizeof back) == 0, "%d %d", back[0], back[3]);
    OK(MPI_File_seek(file, 16 * rank, MPI_SEEK_SET));
    OK(MPI_File_iwrite_all(file, back, 4, MPI_INT, &requests[0]));
    flag = 0;
    OK(MPI_Request_get_status(requests[0], &flag, statuses));
    CHECK(flag, "not complete");
    OK(MPI_Wait(&requests[0], statuses));
    CHECK(count_of(statuses, MPI_INT) == 4, "%d", count_of(statuses, MPI_INT));
  }
  OK(MPI_File_close(&file));
}

static void split(void)
{
  MPI_File file = fresh(MPI_MODE_RDWR | MPI_MODE_CREATE);
  MPI_Status status;
  int values[3] = {rank, 2 * rank, 3 * rank}, back[3] = {-1, -1, -1};
  OK(MPI_File_write_at_all_begin(file, 12 * rank, values, 3, MPI_INT));
  if (!native) {
    FAILS(MPI_File_write_at_all_begin(file, 12 * rank, values, 3, MPI_INT), MPI_ERR_OTHER);
    FAILS(MPI_File_read_all_end(file, values, &status), MPI_ERR_OTHER);
  }
  OK(MPI_File_write_at_all_end(file, values, &status));
  CHECK(count_of(&status, MPI_INT) == 3, "%d", count_of(&status, MPI_INT));
  if (!native)
    FAILS(MPI_File_write_at_all_end(file, values, &status), MPI_ERR_OTHER);
  settle(file);
  OK(MPI_File_seek(file, 12 * rank, MPI_SEEK_SET));
  OK(MPI_File_read_all_begin(file, back, 3, MPI_INT));
  OK(MPI_File_read_all_end(file, back, &status));
  CHECK(memcmp(values, back, sizeof back) == 0, "%d", back[0]);
  OK(MPI_File_close(&file));
}

static void sizes(void)
{
  MPI_File file = fresh(MPI_MODE_RDWR | MPI_MODE_CREATE);
  MPI_Offset size = -1;
  MPI_Status status;
  char bytes[100], zeros[100] = {0};
  memset(bytes, 'x', sizeof bytes);
  OK(MPI_File_write_at_all(file, 100 * rank, bytes, 100, MPI_CHAR, &status));
  settle(file);
  OK(MPI_File_get_size(file, &size));
  CHECK(size == 100 * ranks, "%lld", (long long)size);
  OK(MPI_File_set_size(file, 50));
  OK(MPI_File_get_size(file, &size));
  CHECK(size == 50, "%lld", (long long)size);
  OK(MPI_File_set_size(file, 200));
  OK(MPI_File_read_at(file, 20, bytes, 100, MPI_CHAR, &status));
  CHECK(count_of(&status, MPI_CHAR) == 100 && bytes[29] == 'x' && memcmp(bytes + 30, zeros, 70) == 0, "%d %d",
        bytes[29], bytes[30]);
  OK(MPI_File_preallocate(file, 1000));
  OK(MPI_File_get_size(file, &size));
  CHECK(size == 1000, "%lld", (long long)size);
  OK(MPI_File_preallocate(file, 10));
  OK(MPI_File_get_size(file, &size));
  CHECK(size == 1000, "%lld", (long long)size);
  OK(MPI_File_read_at(file, 950, bytes, 100, MPI_CHAR, &status));
  CHECK(count_of(&status, MPI_CHAR) == 50 && memcmp(bytes, zeros, 50) == 0, "%d", count_of(&status, MPI_CHAR));
  OK(MPI_File_close(&file));
}

static void representations(void)
{
  MPI_File file = fresh(MPI_MODE_RDWR | MPI_MODE_CREATE);
  MPI_Status status;
  MPI_Aint extent = 0;
  double values[3] = {1.5 + rank, -2.25, 1e300}, back[3] = {0};
  int number = 0x01020304;
  if (!native) {
    OK(MPI_File_set_view(file, 24 * rank, MPI_DOUBLE, MPI_DOUBLE, "internal", MPI_INFO_NULL));
    OK(MPI_File_write(file, values, 3, MPI_DOUBLE, &status));
    OK(MPI_File_seek(file, 0, MPI_SEEK_SET));
    OK(MPI_File_read(file, back, 3, MPI_DOUBLE, &status));
    CHECK(memcmp(values, back, sizeof back) == 0, "%g", back[0]);
    memset(back, 0, sizeof back);
  }
  OK(MPI_File_set_view(file, 24 * rank, MPI_DOUBLE, MPI_DOUBLE, "external32", MPI_INFO_NULL));
  OK(MPI_File_get_type_extent(file, MPI_DOUBLE, &extent));
  CHECK(extent == 8, "%ld", (long)extent);
  OK(MPI_File_write_all(file, values, 3, MPI_DOUBLE, &status));
  CHECK(count_of(&status, MPI_DOUBLE) == 3, "%d", count_of(&status, MPI_DOUBLE));
  settle(file);
  OK(MPI_File_read_at_all(file, 0, back, 3, MPI_DOUBLE, &status));
  CHECK(memcmp(values, back, sizeof back) == 0, "%g", back[0]);
  OK(MPI_File_set_view(file, 24 * ranks, MPI_INT, MPI_INT, "external32", MPI_INFO_NULL));
  if (rank == 0)
    OK(MPI_File_write_at(file, 0, &number, 1, MPI_INT, &status));
  settle(file);
  OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
  unsigned char raw[4] = {0};
  OK(MPI_File_read_at(file, 24 * ranks, raw, 4, MPI_BYTE, &status));
  CHECK(raw[0] == 1 && raw[1] == 2 && raw[2] == 3 && raw[3] == 4, "%d %d %d %d", raw[0], raw[1], raw[2], raw[3]);
  if (!native) {
    long numbers[2] = {-5, 7}, read_back[3] = {0, 0, 99};
    struct {
      short a;
      int b;
    } pair = {3, 4}, pair_back = {0, 0};
    long double wide = 1.25L, wide_back = 0;
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "external32", MPI_INFO_NULL));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_type_extent(file, MPI_LONG, &extent));
    CHECK(extent == 4, "%ld", (long)extent);
    if (rank == 0) {
      OK(MPI_File_set_errhandler(file, MPI_ERRORS_RETURN));
      OK(MPI_File_write_at(file, 0, numbers, 2, MPI_LONG, &status));
      CHECK(count_of(&status, MPI_LONG) == 2, "%d", count_of(&status, MPI_LONG));
      OK(MPI_File_read_at(file, 0, read_back, 2, MPI_LONG, &status));
      CHECK(read_back[0] == -5 && read_back[1] == 7, "%ld %ld", read_back[0], read_back[1]);
      numbers[0] = 1L << 40;
      FAILS(MPI_File_write_at(file, 0, numbers, 1, MPI_LONG, &status), MPI_ERR_CONVERSION);
      OK(MPI_File_write_at(file, 8, &pair, 1, MPI_SHORT_INT, &status));
      OK(MPI_File_read_at(file, 8, &pair_back, 1, MPI_SHORT_INT, &status));
      CHECK(pair_back.a == 3 && pair_back.b == 4, "%d %d", pair_back.a, pair_back.b);
      OK(MPI_File_write_at(file, 16, &wide, 1, MPI_LONG_DOUBLE, &status));
      OK(MPI_File_read_at(file, 16, &wide_back, 1, MPI_LONG_DOUBLE, &status));
      CHECK(wide_back == wide, "%Lg", wide_back);
    }
  }
  OK(MPI_File_close(&file));
}

static void atomicity(void)
{
  MPI_File file = fresh(MPI_MODE_RDWR | MPI_MODE_CREATE);
  MPI_Status status;
  int flag = -1, values[1000], back[1000];
  OK(MPI_File_get_atomicity(file, &flag));
  CHECK(flag == 0, "%d", flag);
  OK(MPI_File_set_atomicity(file, 1));
  OK(MPI_File_get_atomicity(file, &flag));
  CHECK(flag == 1, "%d", flag);
  /* All ranks write the same places with gaps: each read returns the bytes of one rank as a
   * whole. */
  MPI_Datatype gaps;
  MPI_Type_vector(1000, 1, 2, MPI_INT, &gaps);
  MPI_Type_commit(&gaps);
  OK(MPI_File_set_view(file, 0, MPI_INT, gaps, "native", MPI_INFO_NULL));
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < 1000; i++)
      values[i] = 1000 * round + rank;
    OK(MPI_File_write_at(file, 0, values, 1000, MPI_INT, &status));
    OK(MPI_File_read_at(file, 0, back, 1000, MPI_INT, &status));
    for (int i = 1; i < 1000; i++)
      CHECK(back[i] == back[0], "round %d: %d beside %d", round, back[i], back[0]);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  /* Without sync, the next rank sees the written bytes. */
  if (rank == 0)
    OK(MPI_File_write_at(file, 0, values, 1000, MPI_INT, &status));
  MPI_Barrier(MPI_COMM_WORLD);
  OK(MPI_File_read_at(file, 0, back, 1000, MPI_INT, &status));
  CHECK(back[0] == 19000 && back[999] == 19000, "%d %d", back[0], back[999]);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == ranks - 1)
    OK(MPI_File_write_at(file, 0, values, 1000, MPI_INT, &status));
  MPI_Barrier(MPI_COMM_WORLD);
  OK(MPI_File_read_at(file, 0, back, 1000, MPI_INT, &status));
  CHECK(back[0] == 19000 + ranks - 1 && back[999] == back[0], "%d %d", back[0], back[999]);
  MPI_Type_free(&gaps);
  OK(MPI_File_set_atomicity(file, 0));
  OK(MPI_File_close(&file));
}

static int called;
static void handler(MPI_File *file, int *code, ...)
{
  (void)file;
  (void)code;
  called++;
}

static void errors(void)
{
  MPI_Errhandler mine, got;
  MPI_File file = fresh(MPI_MODE_RDWR | MPI_MODE_CREATE);
  int value = 0;
  OK(MPI_File_create_errhandler(handler, &mine));
  OK(MPI_File_set_errhandler(file, mine));
  OK(MPI_File_get_errhandler(file, &got));
  CHECK(got == mine, "another handler");
  MPI_Errhandler_free(&got);
  MPI_File_write_at(file, -5, &value, 1, MPI_INT, MPI_STATUS_IGNORE);
  CHECK(called == 1, "%d", called);
  OK(MPI_File_call_errhandler(file, MPI_ERR_FILE));
  CHECK(called == 2, "%d", called);
  MPI_Errhandler_free(&mine);
#ifdef MPIR_ERRORS_THROW_EXCEPTIONS
  /* The C++ functions of MPICH throw when they see the error; C returns it. */
  OK(MPI_File_set_errhandler(file, MPIR_ERRORS_THROW_EXCEPTIONS));
  FAILS(MPI_File_seek(file, -1, MPI_SEEK_SET), MPI_ERR_ARG);
#endif
  OK(MPI_File_set_errhandler(file, MPI_ERRORS_RETURN));
  OK(MPI_File_close(&file));
  CHECK(MPI_File_c2f(MPI_FILE_NULL) == MPI_File_c2f(MPI_File_f2c(MPI_File_c2f(MPI_FILE_NULL))), "handles");
}

/* Opens that fail call the handler of MPI_FILE_NULL, of which the program has released its own
 * reference. */
static void handler_of_no_file(void)
{
  MPI_Errhandler mine;
  MPI_File file;
  if (rank == 0)
    MPI_File_delete((char *)path, MPI_INFO_NULL);
  MPI_Barrier(MPI_COMM_WORLD);
#ifdef MPIR_ERRORS_THROW_EXCEPTIONS
  OK(MPI_File_set_errhandler(MPI_FILE_NULL, MPIR_ERRORS_THROW_EXCEPTIONS));
  FAILS(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE);
#endif
  OK(MPI_File_create_errhandler(handler, &mine));
  OK(MPI_File_set_errhandler(MPI_FILE_NULL, mine));
  OK(MPI_Errhandler_free(&mine));
  called = 0;
  for (int i = 1; i <= 3; i++) {
    FAILS(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE);
    CHECK(called == i, "%d, not %d", called, i);
  }
  /* MPICH itself loses a reference with each close. */
  for (int i = 0; !native && i < 3; i++) {
    OK(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
    FAILS(MPI_File_seek(file, -1, MPI_SEEK_SET), MPI_ERR_ARG);
    CHECK(called == i + 4, "%d, not %d", called, i + 4);
    OK(MPI_File_close(&file));
  }
  OK(MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN));
}

static void hints(void)
{
  MPI_Info info, back;
  MPI_File file;
  char value[64];
  int flag = 0;
  MPI_Info_create(&info);
  MPI_Info_set(info, "cb_nodes", "2");
  if (rank == 0)
    MPI_File_delete((char *)path, MPI_INFO_NULL);
  MPI_Barrier(MPI_COMM_WORLD);
  OK(MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_RDWR | MPI_MODE_CREATE, info, &file));
  OK(MPI_File_set_info(file, info));
  OK(MPI_File_get_info(file, &back));
  MPI_Info_get(back, "cb_nodes", 63, value, &flag);
  MPI_Info_free(&back);
  MPI_Info_free(&info);
  OK(MPI_File_close(&file));
}

/* Two handles of one file in one process, as PnetCDF has them; and a communicator that is a part
 * of the world. */
static void handles(void)
{
  MPI_File all = fresh(MPI_MODE_RDWR | MPI_MODE_CREATE), own;
  MPI_Status status;
  int value = 42 + rank, back = 0;
  OK(MPI_File_open(MPI_COMM_SELF, (char *)path, MPI_MODE_RDWR, MPI_INFO_NULL, &own));
  OK(MPI_File_write_at(own, 4 * rank, &value, 1, MPI_INT, &status));
  OK(MPI_File_sync(own));
  MPI_Barrier(MPI_COMM_WORLD);
  OK(MPI_File_sync(all));
  OK(MPI_File_read_at_all(all, 4 * ((rank + 1) % ranks), &back, 1, MPI_INT, &status));
  CHECK(back == 42 + (rank + 1) % ranks, "%d", back);
  MPI_Barrier(MPI_COMM_WORLD);
  value += 1000;
  OK(MPI_File_write_at_all(all, 4 * rank, &value, 1, MPI_INT, &status));
  settle(all);
  OK(MPI_File_read_at(own, 4 * ((rank + 1) % ranks), &back, 1, MPI_INT, &status));
  CHECK(back == 1042 + (rank + 1) % ranks, "%d", back);
  OK(MPI_File_close(&own));
  OK(MPI_File_close(&all));
}

#if MPI_VERSION >= 4
static void large_counts(void)
{
  MPI_File file = fresh(MPI_MODE_RDWR | MPI_MODE_CREATE);
  MPI_Status status;
  MPI_Count count = 2, extent = 0, got = 0;
  int values[2] = {rank, -rank}, back[2] = {1, 1};
  OK(MPI_File_write_at_c(file, 8 * rank, values, count, MPI_INT, &status));
  OK(MPI_Get_count_c(&status, MPI_INT, &got));
  CHECK(got == 2, "%lld", (long long)got);
  settle(file);
  OK(MPI_File_seek(file, 8 * rank, MPI_SEEK_SET));
  OK(MPI_File_read_all_c(file, back, count, MPI_INT, &status));
  CHECK(memcmp(values, back, sizeof back) == 0, "%d", back[0]);
  OK(MPI_File_get_type_extent_c(file, MPI_INT, &extent));
  CHECK(extent == 4, "%lld", (long long)extent);
  MPI_Datatype type;
  MPI_Type_vector_c(2, 1, 2, MPI_INT, &type);
  MPI_Type_commit(&type);
  OK(MPI_File_set_view(file, 16 * rank, MPI_INT, type, "native", MPI_INFO_NULL));
  OK(MPI_File_write_all_c(file, values, count, MPI_INT, &status));
  OK(MPI_File_get_byte_offset(file, 1, &(MPI_Offset){0}));
  MPI_Type_free(&type);
  OK(MPI_File_close(&file));
}
#endif

int main(int argc, char **argv)
{
  int level;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  snprintf(scratch, sizeof scratch, "%s", argc > 1 ? argv[1] : "semantics.dat");
  path = scratch;
  native = argc > 2;
  static const struct {
    const char *name;
    void (*run)(void);
  } tests[] = {{"opening", opening},         {"modes", modes},           {"arguments", arguments},
               {"pointers", pointers},       {"shared", shared},         {"nonblocking", nonblocking},
               {"split", split},             {"sizes", sizes},           {"representations", representations},
               {"atomicity", atomicity},     {"errors", errors},         {"hints", hints},
               {"handles", handles},         {"handler_of_no_file", handler_of_no_file},
#if MPI_VERSION >= 4
               {"large_counts", large_counts},
#endif
  };
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    if (getenv("ONLY") != NULL && strcmp(getenv("ONLY"), tests[i].name) != 0)
      continue;
    int before = failures;
    tests[i].run();
    int now = failures - before, all = 0;
    MPI_Allreduce(&now, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
      printf("%s: %s\n", tests[i].name, all == 0 ? "ok" : "FAILED");
    fflush(stdout);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0)
    MPI_File_delete((char *)path, MPI_INFO_NULL);
  int all = 0;
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return all != 0;
}
