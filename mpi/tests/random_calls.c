/*
 * Random datatypes, views and calls, the same for one seed under every MPI-IO. The program writes
 * down the results of each call, and finally every byte of the file, to be compared between two
 * runs. Sync, barrier and sync separate conflicting accesses of different ranks, as the standard
 * asks; so there is one right outcome. The representation is native or external32; etypes are made
 * of basic types of which both have the same size.
 *
 * Usage: random_calls PATH SEED PHASES OUT [simple]. Writes OUT.RANK (the results) and OUT.bytes
 * (the file).
 *
 * "simple" is the reference. It moves the bytes etype by etype, through a handle of its own without
 * a view, to the places that MPI_Pack finds in the filetype, converted by MPI_Pack_external, and
 * counts pointers itself. The MPI libraries' own other calls are not suitable. With some of these
 * views and datatypes (and external32, with which MPICH 4.0 corrupts its memory) they refuse them
 * on one rank, loop for ever, divide by zero or write to other places.
 */
#include "random_types.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOT = 600, OFFSET_MAX = 60, BUFFER_MARGIN = 64 };

struct run {
  MPI_File file;
  const char *path;
  int rank, ranks;
  struct rng common, own; /* the same on all ranks; this rank's */
  FILE *log;
  MPI_Datatype etype;
  int etype_size;
  const char *representation;
  bool simple;
  MPI_File plain; /* with `simple` */
  int64_t shared, position;
  MPI_Offset displacement; /* of the view */
  int64_t extent, size;    /* of its filetype */
  int *places;             /* where in it each byte of data lies */
};

static void say(struct run *run, const char *what, int code, long long number)
{
  int class = -1;
  MPI_Error_class(code, &class);
  fprintf(run->log, "%s %s %lld\n", what, class == MPI_SUCCESS ? "ok" : "failed", number);
}

static uint64_t hash(const unsigned char *bytes, size_t length)
{
  uint64_t sum = UINT64_C(14695981039346656037);
  for (size_t i = 0; i < length; i++)
    sum = (sum ^ bytes[i]) * UINT64_C(1099511628211);
  return sum;
}

/* A buffer of the program, `count` elements of a random datatype made of etypes. */
struct memory {
  MPI_Datatype type;
  int count;
  int64_t etypes;
  unsigned char *bytes, *buffer; /* all of it; the displacement 0 of element 0 */
  size_t length;
};

static struct memory memory_make(struct run *run, bool fill)
{
  struct memory m = {.type = random_memory_type(&run->own, rng_below(&run->own, 4), 0, run->etype)};
  MPI_Aint lb, extent, true_lb, true_extent;
  int size;
  m.count = rng_below(&run->own, 4);
  MPI_Type_size(m.type, &size);
  MPI_Type_get_extent(m.type, &lb, &extent);
  MPI_Type_get_true_extent(m.type, &true_lb, &true_extent);
  if (size == 0)
    true_lb = true_extent = 0;
  m.etypes = (int64_t)m.count * size / run->etype_size;
  int64_t before = true_lb < 0 ? -true_lb : 0;
  m.length = (size_t)(before + (true_lb > 0 ? true_lb : 0) + true_extent + extent * m.count + 2 * BUFFER_MARGIN);
  m.bytes = malloc(m.length);
  m.buffer = m.bytes + BUFFER_MARGIN + before;
  for (size_t i = 0; i < m.length; i++)
    m.bytes[i] = fill ? (unsigned char)rng_next(&run->own) : 0xa5;
  return m;
}

static void memory_free(struct memory *m)
{
  type_drop(&m->type);
  free(m->bytes);
}

/* Etypes without gaps, so that they mean the same in memory and in every representation. */
static void choose_etype(struct run *run)
{
  const MPI_Datatype all[] = {MPI_BYTE, MPI_SHORT, MPI_INT, MPI_FLOAT, MPI_DOUBLE, MPI_INT64_T, MPI_CHAR};
  MPI_Datatype basic = all[rng_below(&run->common, 7)];
  type_drop(&run->etype);
  run->etype = basic;
  if (rng_below(&run->common, 4) == 0) {
    MPI_Type_contiguous(rng_between(&run->common, 2, 3), basic, &run->etype);
    MPI_Type_commit(&run->etype);
  }
  MPI_Type_size(run->etype, &run->etype_size);
}

/* Packs bit k of each byte's own number, for all k. */
static void find_places(struct run *run, MPI_Datatype filetype)
{
  MPI_Aint lb, extent, low, length;
  int size;
  MPI_Type_size(filetype, &size);
  MPI_Type_get_extent(filetype, &lb, &extent);
  MPI_Type_get_true_extent(filetype, &low, &length);
  unsigned char *all = malloc((size_t)(low + length) + 1), *packed = malloc((size_t)size + 1);
  free(run->places);
  run->places = calloc((size_t)size + 1, sizeof *run->places);
  run->size = size;
  run->extent = extent;
  for (int bit = 0; (low + length) >> bit != 0; bit++) {
    int at = 0;
    for (MPI_Aint i = 0; i < low + length; i++)
      all[i] = (unsigned char)(i >> bit & 1);
    MPI_Pack(all, 1, filetype, packed, size, &at, MPI_COMM_SELF);
    for (int i = 0; i < size; i++)
      run->places[i] |= packed[i] << bit;
  }
  free(all);
  free(packed);
}

static MPI_Offset byte_of(const struct run *run, int64_t etype)
{
  int64_t byte = etype * run->etype_size;
  return run->displacement + byte / run->size * run->extent + run->places[byte % run->size];
}

static void set_view(struct run *run, MPI_Offset displacement, MPI_Datatype filetype)
{
  MPI_Offset told = -1;
  MPI_Datatype etype, back;
  char name[MPI_MAX_DATAREP_STRING] = "";
  run->displacement = displacement;
  run->position = 0;
  run->representation = rng_below(&run->common, 3) == 0 ? "external32" : "native";
  if (run->simple) {
    fprintf(run->log, "set_view ok 0\nview %lld %s\n", (long long)displacement, run->representation);
  } else {
    int code = MPI_File_set_view(run->file, displacement, run->etype, filetype, run->representation, MPI_INFO_NULL);
    say(run, "set_view", code, 0);
    MPI_File_get_view(run->file, &told, &etype, &back, name);
    fprintf(run->log, "view %lld %s\n", (long long)told, name);
    type_drop(&etype);
    type_drop(&back);
  }
  find_places(run, filetype);
  for (int etype = 0; etype < OFFSET_MAX; etype += 7) {
    MPI_Offset byte = byte_of(run, etype);
    int code = run->simple ? MPI_SUCCESS : MPI_File_get_byte_offset(run->file, etype, &byte);
    say(run, "byte", code, byte);
  }
}

/* Sets a view of this rank that shares no byte with those of others. */
static void view_for_writing(struct run *run)
{
  MPI_Datatype inner = random_file_type(&run->own, rng_below(&run->own, 4), run->etype, SLOT), placed, filetype;
  MPI_Type_create_hindexed(1, (int[]){1}, (MPI_Aint[]){(MPI_Aint)run->rank * SLOT}, inner, &placed);
  MPI_Type_create_resized(placed, 0, (MPI_Aint)run->ranks * SLOT, &filetype);
  MPI_Type_commit(&filetype);
  set_view(run, rng_below(&run->common, 100), filetype);
  MPI_Type_free(&placed);
  type_drop(&inner);
  type_drop(&filetype);
}

static void view_for_reading(struct run *run)
{
  MPI_Datatype filetype = random_file_type(&run->own, rng_below(&run->own, 4), run->etype, 2 * SLOT * run->ranks);
  set_view(run, rng_below(&run->own, 200), filetype);
  type_drop(&filetype);
}

static void say_position(struct run *run)
{
  MPI_Offset position = run->position;
  int code = run->simple ? MPI_SUCCESS : MPI_File_get_position(run->file, &position);
  say(run, "position", code, position);
}

static void seek(struct run *run, MPI_Offset position)
{
  run->position = position;
  if (!run->simple)
    MPI_File_seek(run->file, position, MPI_SEEK_SET);
}

static void say_size(struct run *run)
{
  MPI_Offset size = -1;
  MPI_Barrier(MPI_COMM_WORLD);
  int code = MPI_File_get_size(run->file, &size);
  say(run, "size", code, size);
  MPI_Barrier(MPI_COMM_WORLD);
}

static void say_status(struct run *run, const char *what, int code, MPI_Status *status, const struct memory *m)
{
  int count = -1, etypes = -1;
  MPI_Get_count(status, run->etype, &etypes);
  MPI_Get_count(status, m->type, &count);
  say(run, what, code, etypes);
  fprintf(run->log, "of %lld, %d\n", (long long)m->etypes, m->etypes == 0 ? 0 : count);
}

/* Nonblocking and split calls overwrite the result of their begin with that of their end. */
static int finish(int code, MPI_Request *request, MPI_Status *status)
{
  return code == MPI_SUCCESS ? MPI_Wait(request, status) : code;
}

/* Kinds of access, of which these use an explicit offset. */
static bool is_explicit(int kind)
{
  return kind == 0 || kind == 1 || kind == 4 || kind == 6 || kind == 8;
}

/* Converts one etype between memory and the file's form. */
static void convert(struct run *run, bool writes, void *from, void *to)
{
  MPI_Aint place = 0;
  if (strcmp(run->representation, "native") == 0)
    memcpy(to, from, (size_t)run->etype_size);
  else if (writes)
    MPI_Pack_external("external32", from, 1, run->etype, to, run->etype_size, &place);
  else
    MPI_Unpack_external("external32", from, run->etype_size, &place, to, 1, run->etype);
}

/* Does the same as an access that starts at etype `at` of the view. */
static int move_simply(struct run *run, bool writes, int64_t at, struct memory *m, MPI_Status *status)
{
  MPI_Status ignored;
  int length = (int)m->etypes * run->etype_size, place = 0, code = MPI_SUCCESS;
  unsigned char *dense = malloc((size_t)length + 1);
  if (writes && length > 0)
    MPI_Pack(m->buffer, m->count, m->type, dense, length, &place, MPI_COMM_SELF);
  for (int64_t i = 0; i < m->etypes && code == MPI_SUCCESS; i++) {
    unsigned char *element = dense + i * run->etype_size, stored[64];
    MPI_Offset byte = byte_of(run, at + i);
    if (writes) {
      convert(run, true, element, stored);
      code = MPI_File_write_at(run->plain, byte, stored, run->etype_size, MPI_BYTE, &ignored);
    } else {
      code = MPI_File_read_at(run->plain, byte, stored, run->etype_size, MPI_BYTE, &ignored);
      convert(run, false, stored, element);
    }
  }
  place = 0;
  if (!writes && length > 0)
    MPI_Unpack(dense, length, &place, m->buffer, m->count, m->type, MPI_COMM_SELF);
  free(dense);
  MPI_Status_set_elements(status, MPI_BYTE, length);
  return code;
}

static int access_simply(struct run *run, bool writes, int kind, MPI_Offset offset, struct memory *m,
                         MPI_Status *status)
{
  if (is_explicit(kind))
    return move_simply(run, writes, offset, m, status);
  int code = move_simply(run, writes, run->position, m, status);
  run->position += m->etypes;
  return code;
}

/* Moves the bytes by the shared pointer, in the order of ranks. */
static int share_simply(struct run *run, struct memory *m, MPI_Status *status)
{
  int64_t up_to = 0, all = 0;
  MPI_Scan(&m->etypes, &up_to, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(&m->etypes, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  int code = move_simply(run, true, run->shared + up_to - m->etypes, m, status);
  run->shared += all;
  return code;
}

static void write_once(struct run *run)
{
  struct memory m = memory_make(run, true);
  MPI_Offset offset = rng_below(&run->own, OFFSET_MAX);
  MPI_Request request;
  MPI_Status status;
  int kind = rng_below(&run->common, 10), code = 0;
  if (rng_below(&run->own, 3) != 0)
    seek(run, rng_below(&run->own, OFFSET_MAX));
  switch (run->simple ? -1 : kind) {
  case -1:
    code = access_simply(run, true, kind, offset, &m, &status);
    break;
  case 0:
    code = MPI_File_write_at(run->file, offset, m.buffer, m.count, m.type, &status);
    break;
  case 1:
    code = MPI_File_write_at_all(run->file, offset, m.buffer, m.count, m.type, &status);
    break;
  case 2:
    code = MPI_File_write(run->file, m.buffer, m.count, m.type, &status);
    break;
  case 3:
    code = MPI_File_write_all(run->file, m.buffer, m.count, m.type, &status);
    break;
  case 4:
    code = finish(MPI_File_iwrite_at(run->file, offset, m.buffer, m.count, m.type, &request), &request, &status);
    break;
  case 5:
    code = finish(MPI_File_iwrite(run->file, m.buffer, m.count, m.type, &request), &request, &status);
    break;
  case 6:
    MPI_File_write_at_all_begin(run->file, offset, m.buffer, m.count, m.type);
    code = MPI_File_write_at_all_end(run->file, m.buffer, &status);
    break;
  case 7:
    MPI_File_write_all_begin(run->file, m.buffer, m.count, m.type);
    code = MPI_File_write_all_end(run->file, m.buffer, &status);
    break;
  case 8:
    code = finish(MPI_File_iwrite_at_all(run->file, offset, m.buffer, m.count, m.type, &request), &request, &status);
    break;
  default:
    code = finish(MPI_File_iwrite_all(run->file, m.buffer, m.count, m.type, &request), &request, &status);
  }
  fprintf(run->log, "kind %d ", kind);
  say_status(run, "write", code, &status, &m);
  say_position(run);
  memory_free(&m);
}

/* Returns whether the request ends within the file. Past its end, the libraries count in various
 * ways. */
static bool within(struct run *run, MPI_Offset offset, int64_t etypes)
{
  MPI_Offset size = 0;
  MPI_File_get_size(run->file, &size);
  return etypes == 0 || byte_of(run, offset + etypes - 1) + run->etype_size <= size;
}

static void read_once(struct run *run)
{
  struct memory m = memory_make(run, false);
  MPI_Offset offset = rng_below(&run->own, OFFSET_MAX), position = rng_below(&run->own, OFFSET_MAX);
  MPI_Request request;
  MPI_Status status;
  int kind = rng_below(&run->common, 10), code = 0;
  seek(run, position);
  if (!within(run, is_explicit(kind) ? offset : position, m.etypes)) {
    /* Takes part with nothing. */
    m.count = 0;
    m.etypes = 0;
  }
  switch (run->simple ? -1 : kind) {
  case -1:
    code = access_simply(run, false, kind, offset, &m, &status);
    break;
  case 0:
    code = MPI_File_read_at(run->file, offset, m.buffer, m.count, m.type, &status);
    break;
  case 1:
    code = MPI_File_read_at_all(run->file, offset, m.buffer, m.count, m.type, &status);
    break;
  case 2:
    code = MPI_File_read(run->file, m.buffer, m.count, m.type, &status);
    break;
  case 3:
    code = MPI_File_read_all(run->file, m.buffer, m.count, m.type, &status);
    break;
  case 4:
    code = finish(MPI_File_iread_at(run->file, offset, m.buffer, m.count, m.type, &request), &request, &status);
    break;
  case 5:
    code = finish(MPI_File_iread(run->file, m.buffer, m.count, m.type, &request), &request, &status);
    break;
  case 6:
    MPI_File_read_at_all_begin(run->file, offset, m.buffer, m.count, m.type);
    code = MPI_File_read_at_all_end(run->file, m.buffer, &status);
    break;
  case 7:
    MPI_File_read_all_begin(run->file, m.buffer, m.count, m.type);
    code = MPI_File_read_all_end(run->file, m.buffer, &status);
    break;
  case 8:
    code = finish(MPI_File_iread_at_all(run->file, offset, m.buffer, m.count, m.type, &request), &request, &status);
    break;
  default:
    code = finish(MPI_File_iread_all(run->file, m.buffer, m.count, m.type, &request), &request, &status);
  }
  fprintf(run->log, "kind %d ", kind);
  say_status(run, "read", code, &status, &m);
  fprintf(run->log, "bytes %016llx\n", (unsigned long long)hash(m.bytes, m.length));
  say_position(run);
  memory_free(&m);
}

static void settle(struct run *run)
{
  say(run, "sync", MPI_File_sync(run->file), 0);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_File_sync(run->file);
}

static void say_shared(struct run *run)
{
  MPI_Offset position = -1;
  MPI_Barrier(MPI_COMM_WORLD);
  int code = run->simple ? MPI_SUCCESS : MPI_File_get_position_shared(run->file, &position);
  say(run, "shared", code, run->simple ? run->shared : position);
  MPI_Barrier(MPI_COMM_WORLD);
}

/* Shared pointers need one view on all ranks. */
static void shared_phase(struct run *run)
{
  MPI_Datatype filetype = random_file_type(&run->common, rng_below(&run->common, 3), run->etype, SLOT);
  set_view(run, rng_below(&run->common, 100), filetype);
  type_drop(&filetype);
  MPI_Status status;
  run->shared = 0;
  for (int i = rng_between(&run->common, 1, 3); i > 0; i--) {
    struct memory m = memory_make(run, true);
    int code = 0, kind = rng_below(&run->common, 3);
    if (run->simple) {
      code = share_simply(run, &m, &status);
    } else if (kind == 0) {
      code = MPI_File_write_ordered(run->file, m.buffer, m.count, m.type, &status);
    } else if (kind == 1) {
      MPI_File_write_ordered_begin(run->file, m.buffer, m.count, m.type);
      code = MPI_File_write_ordered_end(run->file, m.buffer, &status);
    } else {
      for (int turn = 0; turn < run->ranks; turn++) {
        if (turn == run->rank)
          code = MPI_File_write_shared(run->file, m.buffer, m.count, m.type, &status);
        MPI_Barrier(MPI_COMM_WORLD);
      }
    }
    say_status(run, "shared write", code, &status, &m);
    say_shared(run);
    memory_free(&m);
  }
  settle(run);
  run->shared = rng_below(&run->common, 9);
  say(run, "seek_shared", run->simple ? MPI_SUCCESS : MPI_File_seek_shared(run->file, run->shared, MPI_SEEK_SET), 0);
  say_shared(run);
}

/* Allocated bytes are undefined, and Open MPI's are not zero: the reference makes the file
 * longer instead. */
static int preallocate(struct run *run, MPI_Offset size)
{
  MPI_Offset now = 0;
  if (!run->simple)
    return MPI_File_preallocate(run->file, size);
  MPI_File_get_size(run->file, &now);
  MPI_Barrier(MPI_COMM_WORLD);
  return now < size ? MPI_File_set_size(run->file, size) : MPI_SUCCESS;
}

static void resize(struct run *run)
{
  if (rng_below(&run->common, 2))
    say(run, "set_size", MPI_File_set_size(run->file, rng_below(&run->common, 4 * SLOT * run->ranks)), 0);
  else
    say(run, "preallocate", preallocate(run, rng_below(&run->common, 6 * SLOT)), 0);
  settle(run);
}

static void open_file(struct run *run, int amode)
{
  say(run, "open", MPI_File_open(MPI_COMM_WORLD, (char *)run->path, amode, MPI_INFO_NULL, &run->file), 0);
  if (run->file == MPI_FILE_NULL)
    MPI_Abort(MPI_COMM_WORLD, 3);
  if (run->simple)
    MPI_File_open(MPI_COMM_SELF, (char *)run->path, MPI_MODE_RDWR, MPI_INFO_NULL, &run->plain);
}

static int close_file(struct run *run)
{
  if (run->simple)
    MPI_File_close(&run->plain);
  return MPI_File_close(&run->file);
}

static void phase(struct run *run)
{
  choose_etype(run);
  if (rng_below(&run->common, 4) == 0) {
    shared_phase(run);
  } else {
    view_for_writing(run);
    for (int i = rng_between(&run->common, 1, 5); i > 0; i--)
      write_once(run);
    settle(run);
  }
  say_size(run);
  if (rng_below(&run->common, 4) == 0)
    resize(run);
  if (rng_below(&run->common, 5) == 0) {
    say(run, "close", close_file(run), 0);
    MPI_Barrier(MPI_COMM_WORLD);
    open_file(run, MPI_MODE_RDWR);
  }
  view_for_reading(run);
  for (int i = rng_between(&run->common, 1, 4); i > 0; i--)
    read_once(run);
  settle(run);
  say_size(run);
}

static void copy_out(struct run *run, const char *name)
{
  MPI_Offset size = 0;
  MPI_Status status;
  int got = 0;
  open_file(run, MPI_MODE_RDONLY);
  if (run->rank == 0) {
    MPI_File_get_size(run->file, &size);
    unsigned char *bytes = malloc((size_t)size + 1);
    MPI_File_read_at(run->file, 0, bytes, (int)size, MPI_BYTE, &status);
    MPI_Get_count(&status, MPI_BYTE, &got);
    FILE *out = fopen(name, "wb");
    if (got != size || out == NULL || fwrite(bytes, 1, (size_t)size, out) != (size_t)size || fclose(out) != 0)
      MPI_Abort(MPI_COMM_WORLD, 4);
    free(bytes);
  }
  close_file(run);
}

int main(int argc, char **argv)
{
  struct run run = {.etype = MPI_DATATYPE_NULL};
  char name[4096];
  MPI_Init(&argc, &argv);
  if (argc < 5)
    MPI_Abort(MPI_COMM_WORLD, 2);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &run.ranks);
  run.path = argv[1];
  run.simple = argc > 5;
  run.common.state = strtoull(argv[2], NULL, 0);
  run.own.state = run.common.state * 1000 + (uint64_t)run.rank + 1;
  snprintf(name, sizeof name, "%s.%d", argv[4], run.rank);
  if ((run.log = fopen(name, "w")) == NULL)
    MPI_Abort(MPI_COMM_WORLD, 2);
  if (run.rank == 0)
    MPI_File_delete(argv[1], MPI_INFO_NULL);
  MPI_Barrier(MPI_COMM_WORLD);
  open_file(&run, MPI_MODE_RDWR | MPI_MODE_CREATE);
  for (int i = atoi(argv[3]); i > 0; i--) {
    fprintf(run.log, "-- phase\n");
    phase(&run);
  }
  say(&run, "close", close_file(&run), 0);
  MPI_Barrier(MPI_COMM_WORLD);
  snprintf(name, sizeof name, "%s.bytes", argv[4]);
  copy_out(&run, name);
  fclose(run.log);
  free(run.places);
  type_drop(&run.etype);
  MPI_Finalize();
  return 0;
}
