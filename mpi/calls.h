/*
 * The functions of MPI-4.1, chapter 14, that the layer replaces. Front and backend share this list:
 * its order is their interface, and both check that they were built with the same one. The MPI
 * library itself does the rest (error handlers, conversion
 * between C and Fortran handles), because every handle that it sees is one of its own.
 */
#ifndef TATAMI_CALLS_H
#define TATAMI_CALLS_H

#include <stddef.h>
#include <stdint.h>

/* Functions that only exist with int counts, or have none. */
#define TATAMI_PLAIN_CALLS(C)                                                                                          \
  C(File_open) C(File_close) C(File_delete) C(File_set_size) C(File_preallocate) C(File_get_size) C(File_get_group)    \
  C(File_get_amode) C(File_set_info) C(File_get_info) C(File_set_view) C(File_get_view) C(File_seek)                   \
  C(File_get_position) C(File_get_byte_offset) C(File_seek_shared) C(File_get_position_shared)                         \
  C(File_set_atomicity) C(File_get_atomicity) C(File_sync) C(File_read_at_all_end) C(File_write_at_all_end)            \
  C(File_read_all_end) C(File_write_all_end) C(File_read_ordered_end) C(File_write_ordered_end)

/* Functions that also have a form with large counts, with a name that ends in _c. */
#define TATAMI_COUNT_CALLS(C)                                                                                          \
  C(File_get_type_extent)                                                                                              \
  C(File_read_at) C(File_write_at) C(File_read_at_all) C(File_write_at_all)                                            \
  C(File_iread_at) C(File_iwrite_at) C(File_iread_at_all) C(File_iwrite_at_all)                                        \
  C(File_read) C(File_write) C(File_read_all) C(File_write_all)                                                        \
  C(File_iread) C(File_iwrite) C(File_iread_all) C(File_iwrite_all)                                                    \
  C(File_read_shared) C(File_write_shared) C(File_iread_shared) C(File_iwrite_shared)                                  \
  C(File_read_ordered) C(File_write_ordered)                                                                           \
  C(File_read_at_all_begin) C(File_write_at_all_begin) C(File_read_all_begin) C(File_write_all_begin)                  \
  C(File_read_ordered_begin) C(File_write_ordered_begin)

enum tatami_call {
#define TATAMI_ENUM(name) CALL_##name,
#define TATAMI_ENUM_BOTH(name) CALL_##name, CALL_##name##_c,
  TATAMI_PLAIN_CALLS(TATAMI_ENUM) TATAMI_COUNT_CALLS(TATAMI_ENUM_BOTH)
#undef TATAMI_ENUM
#undef TATAMI_ENUM_BOTH
      TATAMI_CALL_COUNT
};

/* A function of any of these signatures; the backend never calls one by this type. */
typedef void (*tatami_function)(void);

/* The version of the interface between front and backend, raised when the list above, the structure
 * below or the meaning of a call changes. Both files of a process must have the same version. */
#define TATAMI_BACKEND_VERSION 2
/* A longer or shorter list does not compile before a developer has come here to raise the version. */
_Static_assert(TATAMI_CALL_COUNT == 84, "the list of calls changed: raise TATAMI_BACKEND_VERSION");

/* The first field of `struct tatami_backend`: another value is no such structure. */
#define TATAMI_BACKEND_MAGIC UINT32_C(0x496d6154) /* "TamI" */

/* A backend exports one of these, under the name TATAMI_BACKEND. The front uses nothing behind
 * `count` before it has compared the first three fields with its own numbers. */
struct tatami_backend {
  uint32_t magic;
  uint32_t version;
  uint32_t count; /* the number of entries in `ours`, which is TATAMI_CALL_COUNT in one build */
  /* Called once. `real` has the MPI library's own functions by call number, NULL for missing ones,
   * and stays valid. Returns 0, or -1 if this backend does not fit the library. */
  int (*start)(const tatami_function *real);
  const tatami_function *ours; /* the functions that replace them, by call number; no entry is NULL */
  /* Returns a descriptor of a file in memory with the first bytes of a file of another site, or -1.
   * `info` is a word with the MPI_Info of the open, if has_info is not 0. */
  int (*look)(const char *path, int has_info, uintptr_t info);
};
#define TATAMI_BACKEND "tatami_backend"
/* Fronts of all versions read these three fields of backends of all versions: they never move. */
_Static_assert(offsetof(struct tatami_backend, magic) == 0 && offsetof(struct tatami_backend, version) == 4 &&
                   offsetof(struct tatami_backend, count) == 8,
               "the front finds magic, version and count at these places in every build");

#endif
