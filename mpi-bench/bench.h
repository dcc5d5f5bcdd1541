/* The common parts of the MPI programs besides common.h: errors, times and the report. */
#ifndef TATAMI_MPI_BENCH_BENCH_H
#define TATAMI_MPI_BENCH_BENCH_H

#include "common.h"
#include <mpi.h>

/* The timed phases. The seconds of a phase are those of its slowest process. */
enum phase { OPEN, WRITE, SYNC, CLOSE, REOPEN, READ, PHASES };

struct bench {
  const char *program;
  int rank, ranks;
  double seconds[PHASES]; /* this process's */
  double cpu[PHASES];     /* user and system time of this process */
  double began, cpu_began;
  uint64_t bytes;         /* written or read by this process */
  uint64_t bad;           /* wrong bytes found by this process, at least */
};

/* Starts MPI and reads the options. Ends the program if they are wrong. */
void bench_start(struct bench *b, const char *program, int *argc, char ***argv,
                 const struct option_spec *specs);

/* Ends all processes with a sentence. */
_Noreturn void bench_fail(const char *what, const char *why);

/* Fails unless an MPI call returned MPI_SUCCESS. */
void bench_must(int code, const char *call);
#define MUST(call) bench_must((call), #call)

/* Start and stop the phase's clock; all processes begin together. */
void phase_begin(struct bench *b);
void phase_end(struct bench *b, enum phase phase);

/* Checks that the status of a transfer reports all of it as done. */
void bench_whole(const MPI_Status *status, MPI_Datatype type, int count, const char *call);

/* Returns memory whose pages have been touched. */
void *bench_buffer(uint64_t len);

/* Prints `detail`, which is the inner part of a JSON object, and the times of all processes;
 * ends MPI. Returns the program's exit code: 1 for wrong bytes. */
int bench_finish(struct bench *b, const char *detail, bool verified);

/* Counts a wrong byte, and reports the first. */
void bench_bad(struct bench *b, const char *file, uint64_t offset);

#endif
