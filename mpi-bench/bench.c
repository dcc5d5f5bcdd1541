#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static double cpu_now(void) {
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0)
    return 0;
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

void bench_start(struct bench *b, const char *program, int *argc, char ***argv,
                 const struct option_spec *specs) {
  memset(b, 0, sizeof *b);
  b->program = program;
  if (MPI_Init(argc, argv) != MPI_SUCCESS) {
    fprintf(stderr, "%s: MPI does not start\n", program);
    exit(2);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &b->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &b->ranks);
  const char *problem = options_read(*argc, *argv, specs);
  if (problem != NULL) {
    if (b->rank == 0) {
      fprintf(stderr, "%s: %s\n", program, problem);
      options_help(program, specs);
    }
    MPI_Finalize();
    exit(2);
  }
}

_Noreturn void bench_fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  MPI_Abort(MPI_COMM_WORLD, 2);
  exit(2);
}

void bench_must(int code, const char *call) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (code == MPI_SUCCESS)
    return;
  MPI_Error_string(code, text, &length);
  bench_fail(call, text);
}

void phase_begin(struct bench *b) {
  MPI_Barrier(MPI_COMM_WORLD);
  b->cpu_began = cpu_now();
  b->began = MPI_Wtime();
}

void phase_end(struct bench *b, enum phase phase) {
  b->seconds[phase] += MPI_Wtime() - b->began;
  b->cpu[phase] += cpu_now() - b->cpu_began;
}

void bench_whole(const MPI_Status *status, MPI_Datatype type, int count, const char *call) {
  int got = 0;
  MPI_Get_count(status, type, &got);
  if (got != count)
    bench_fail(call, "did a part only");
}

void *bench_buffer(uint64_t len) {
  void *buffer = malloc(len > 0 ? len : 1);
  if (buffer == NULL)
    bench_fail("malloc", "no memory");
  memset(buffer, 0, len);
  return buffer;
}

void bench_bad(struct bench *b, const char *file, uint64_t offset) {
  if (b->bad++ == 0)
    fprintf(stderr, "%s: process %d: wrong byte at %llu of %s\n", b->program, b->rank,
            (unsigned long long)offset, file);
}

int bench_finish(struct bench *b, const char *detail, bool verified) {
  static const char *const names[PHASES] = {"open", "write", "sync", "close", "reopen", "read"};
  double seconds[PHASES], cpu[PHASES];
  unsigned long long mine[2] = {b->bytes, b->bad}, all[2];
  MPI_Allreduce(b->seconds, seconds, PHASES, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(b->cpu, cpu, PHASES, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(mine, all, 2, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (b->rank == 0) {
    printf("{\"program\":\"%s\",\"ranks\":%d,%s,\"bytes\":%llu", b->program, b->ranks, detail,
           all[0]);
    printf(",\"seconds\":{");
    for (int p = 0; p < PHASES; p++)
      printf("%s\"%s\":%.6f", p > 0 ? "," : "", names[p], seconds[p]);
    printf("},\"cpu\":{");
    for (int p = 0; p < PHASES; p++)
      printf("%s\"%s\":%.6f", p > 0 ? "," : "", names[p], cpu[p]);
    printf("},\"verified\":%s,\"bad\":%llu}\n", verified && all[1] == 0 ? "true" : "false", all[1]);
    fflush(stdout);
  }
  MPI_Finalize();
  return all[1] == 0 ? 0 : 1;
}
