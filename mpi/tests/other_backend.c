/*
 * A backend of another build: its numbers are not those of the front. The front must not use it, so
 * its functions end the program.
 */
#include "../calls.h"

#include <stdio.h>
#include <stdlib.h>

#ifndef MAGIC
#define MAGIC TATAMI_BACKEND_MAGIC
#endif
#ifndef VERSION
#define VERSION TATAMI_BACKEND_VERSION
#endif
#ifndef COUNT
#define COUNT TATAMI_CALL_COUNT
#endif

static void end_program(void)
{
  fputs("the front called a backend of another build\n", stderr);
  abort();
}

static int start(const tatami_function *real)
{
  (void)real;
  end_program();
  return 0;
}

static const tatami_function ours[COUNT] = {[0 ...(COUNT)-1] = end_program};

__attribute__((visibility("default"))) extern const struct tatami_backend tatami_backend;
const struct tatami_backend tatami_backend = {
    .magic = MAGIC, .version = VERSION, .count = COUNT, .start = start, .ours = ours};
