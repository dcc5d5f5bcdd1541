/*
 * A backend: the MPI-IO functions of one MPI library's ABI, on files of libtatami_io. It is
 * compiled once for each mpi.h. The backend calls MPI functions by their PMPI_ names, so that tools
 * that watch MPI_ calls see the program's only. It reaches PMPI_File_* functions by REAL, because
 * their names lead to the front.
 */
#ifndef TATAMI_BACKEND_H
#define TATAMI_BACKEND_H

#include <mpi.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../../crates/capi/include/tatami_io.h"
#include "../calls.h"

/* Large-count functions came with MPI 4. */
#define HAVE_LARGE_COUNTS (MPI_VERSION >= 4)

/* ---- entry.c: the MPI library's own functions ---- */
extern const tatami_function *tatami_real;
#define REAL(name) ((__typeof__(&PMPI_##name))tatami_real[CALL_##name])

/* ---- types.c, flatten.c: datatypes as shapes ---- */
enum representation { NATIVE, INTERNAL, EXTERNAL32 };

struct type {
  tio_shape *shape;
  int64_t size;   /* bytes of data */
  int64_t extent; /* bytes from one element to the next */
};
/* Returns the type as it lies in memory; kept while the datatype lives. An error class on
 * failure. */
int type_of(MPI_Datatype datatype, const struct type **out);
/* Makes a new shape for the type as it lies in memory or in a file. */
int flatten(MPI_Datatype datatype, enum representation rep, tio_shape **out);
int flatten_darray(const tio_shape *child, int size, int rank, int dimensions, const int64_t *sizes,
                   const int *distributions, const int *arguments, const int *grid, int order, tio_shape **out);
int flatten_subarray(const tio_shape *child, int dimensions, const int64_t *sizes, const int64_t *subsizes,
                     const int64_t *starts, int order, tio_shape **out);
bool type_is_predefined(MPI_Datatype datatype);

/* ---- files.c: files by their handles ---- */
struct split { /* the split collective operation under way */
  enum tatami_call end; /* the call that ends it; 0 (which is File_open) where there is none */
  int64_t bytes;
  int error;
};

struct file {
  MPI_File shadow; /* the program's handle: the MPI library's, of an empty file */
  MPI_Comm comm;   /* for this file alone */
  int rank, ranks;
  int amode, flags;
  char *path;
  tio_file *io;
  MPI_Info hints;

  int64_t displacement;
  MPI_Datatype etype, filetype; /* duplicates where they are not predefined */
  enum representation rep;
  int64_t etype_size; /* bytes in the file */

  atomic_int_least64_t position; /* the individual file pointer, in etypes */
  bool atomic;
  atomic_bool shared_used; /* the shared pointer may have been moved by this rank since the last set_view */
  struct split split;
};

/* Returns the file of a handle; NULL for a file of the MPI library. */
struct file *file_of(MPI_File handle);
int file_register(struct file *file);
void file_forget(struct file *file);
int shadow_open(MPI_File *shadow);
void shadow_close(MPI_File *shadow);

/* ---- errors.c ---- */
/* All of these take and return error classes; 0 is MPI_SUCCESS. */
int class_of(int64_t result);        /* of what a tio_ function returned */
/* Explains the error, if the user wants that, and returns it. */
int refuse(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fail(struct file *file, int error); /* calls the file's error handler unless the error is 0; returns the error */
int fail_no_file(int error);        /* the same with that of MPI_FILE_NULL */

/* ---- together.c: collective calls that do not spin for long; the error is MPI_ERR_OTHER ---- */
int finish(int started, MPI_Request *request); /* waits for the request of this result */
int broadcast(MPI_Comm comm, void *bytes, size_t length, int root);
int maxima(struct file *file, const int64_t *own, int64_t *all, int count); /* of each number, the largest */
int collect(struct file *file, const void *own, size_t length, void *all);  /* `length` of each, to rank 0 */
int collect_everywhere(struct file *file, const void *own, size_t length, void *all); /* the same, to every rank */
int agree(struct file *file, int error); /* the largest of all ranks' */

/* ---- info.c: hints ---- */
const char **hints_of(MPI_Info info); /* for tio_; NULL without memory */
void hints_free(const char **hints);
void hints_merge(MPI_Info into, MPI_Info from);

/* ---- sync.c: the beginning of a view epoch ---- */
/* Collective. Brings all ranks' tiles to the index; returns the agreed error. The purpose: */
enum publication { SYNC, CLOSE, CHANGE };
int publish(struct file *file, enum publication what, int error);
/* Collective. Begins a new epoch after all earlier accesses of all ranks; includes agreement on
 * `error`. */
int new_epoch(struct file *file, int error);

/* ---- access.c: moving bytes ---- */
enum pointer { EXPLICIT, INDIVIDUAL, SHARED, ORDERED };
struct access {
  enum pointer pointer;
  bool writes;
  MPI_Offset offset; /* in etypes, with EXPLICIT */
  void *buffer;
  MPI_Count count;
  MPI_Datatype datatype;
};
/* Does an access. `bytes`: number of moved bytes of the buffer's data. */
int access_run(struct file *file, const struct access *access, int64_t *bytes);
void status_set(MPI_Status *status, int64_t bytes);

/* ---- external32.c ---- */
int external32_write(struct file *file, int64_t stream, const struct access *access, int64_t dense, int64_t *bytes);
int external32_read(struct file *file, int64_t stream, const struct access *access, int64_t dense, int64_t *bytes);
/* Returns the bytes of one element of the datatype in a file as external32. */
int external32_dense(MPI_Datatype datatype, int64_t *size);

/* ---- ordered.c ---- */
/* Collective. Returns the start of this rank's part, in etypes, given its length. */
int ordered_offset(struct file *file, int64_t etypes, int error, int64_t *offset);

#endif
