/* The common parts of the programs of this folder: options, contents that any reader can check,
 * times, and the line that each of them prints.
 *
 * The contents of a file do not depend on its writer: byte i of a file is a function of i and a
 * seed. So every program can verify every file, with any number of processes, through MPI-IO or
 * with read(2). */
#ifndef TATAMI_MPI_BENCH_COMMON_H
#define TATAMI_MPI_BENCH_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes of a file that are data: of every `period` bytes the first `data`. The others were
 * never written and are zeros, unless any_holes permits any value: MPI promises nothing, and
 * MPICH 4.0's data sieving writes the old bytes of its buffer. data == period: all bytes are
 * data. */
struct pattern {
  uint64_t seed;
  uint64_t data;
  uint64_t period;
  bool any_holes;
};

/* Fills `len` bytes with the contents of a file from `offset` on. */
void contents_fill(void *to, uint64_t offset, size_t len, uint64_t seed);

/* Compares `len` bytes with the contents from `offset` on. Returns the number
 * of good bytes before the first bad one: `len` when all are good. */
size_t contents_check(const void *bytes, uint64_t offset, size_t len, uint64_t seed);

/* The same for a stretch of a file with holes. */
size_t pattern_check(const void *bytes, uint64_t offset, size_t len, const struct pattern *p);

/* One option: --name VALUE, or --name alone where it is a flag. */
enum option_kind { OPTION_END, OPTION_FLAG, OPTION_SIZE, OPTION_TEXT };
struct option_spec {
  const char *name;
  enum option_kind kind;
  void *to; /* bool, uint64_t or const char * */
  const char *help;
};

/* Reads the options of a command line; sizes may end in k, m or g (powers of 1,024). Returns
 * NULL, or the fault as a text in a static buffer. */
const char *options_read(int argc, char **argv, const struct option_spec *specs);
void options_help(const char *program, const struct option_spec *specs);

#endif
