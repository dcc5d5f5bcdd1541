/*
 * The functions of MPI-4.1, chapter 14, that the layer replaces. Front and backend share this list:
 * its order is their interface. The MPI library itself does the rest (error handlers, conversion
 * between C and Fortran handles), because every handle that it sees is one of its own.
 */
#ifndef TATAMI_CALLS_H
#define TATAMI_CALLS_H

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

/* The type of `tatami_backend_start`, which a backend exports. `real` has the MPI library's own
 * functions by call number, NULL for missing ones, and stays valid. Fills `ours`. Returns 0, or
 * -1 if this backend does not fit the library. */
typedef int (*tatami_backend_start_fn)(const tatami_function *real, tatami_function *ours);
#define TATAMI_BACKEND_START "tatami_backend_start"

#endif
