/*
 * The interface of libtatami_gateway_MPI.so, by which an I/O process (tatami gateway) keeps files
 * through the MPI-IO of an MPI library. crates/gateway/src/mpi_library.rs has the same in Rust.
 *
 * Results: 0 or a count, or a negative errno; then `explain` returns MPI's own words. Calls come
 * one at a time. Offsets and lengths are bytes.
 */
#ifndef TATAMI_GATEWAY_H
#define TATAMI_GATEWAY_H

#include <stdint.h>

/* Raised when a function changes its meaning. */
#define TATAMI_GATEWAY_VERSION 1

struct tatami_gateway {
  uint64_t version;
  /* Makes this process an MPI process. MPI libraries end the process where that fails. */
  int64_t (*start)(void);
  int64_t (*finish)(void);
  /* Opens an existing file for reading (1), writing (2) or both (3). */
  int64_t (*open_file)(const char *path, int64_t access, void **file);
  int64_t (*close_file)(void *file);
  /* Move the bytes of `count` ranges, in the order of offsets and without overlap; each is shorter
   * than 2 GiB, and so are all. A read returns the bytes up to the end of the file. */
  int64_t (*write_ranges)(void *file, uint64_t count, const uint64_t *offsets, const uint64_t *lengths,
                          const void *bytes);
  int64_t (*read_ranges)(void *file, uint64_t count, const uint64_t *offsets, const uint64_t *lengths, void *bytes);
  int64_t (*find_size)(void *file);
  int64_t (*set_size)(void *file, uint64_t size);
  int64_t (*sync_file)(void *file);
  int64_t (*remove_file)(const char *path);
  const char *(*explain)(void);
};

#endif
