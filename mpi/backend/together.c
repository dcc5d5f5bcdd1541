/*
 * Collective calls that wait without keeping others from the CPU. MPI libraries wait by spinning.
 * With more processes than CPUs, the process for which all others wait then runs only after their
 * time slices: 4 processes on 2 CPUs took 20 to 80 ms for each collective call, and each open and
 * close has several.
 */
#define _GNU_SOURCE
#include "backend.h"

#include <sched.h>
#include <time.h>

/* Nanoseconds. A wait first spins, then yields the CPU, then sleeps for increasing times. */
enum { SPIN = 20000, YIELD = 200000, SLEEP_FIRST = 20000, SLEEP_MAX = 200000 };

static int64_t now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int finish(int started, MPI_Request *request)
{
  int done = 0;
  if (started != MPI_SUCCESS || PMPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
    return MPI_ERR_OTHER;
  int64_t began = done ? 0 : now(), nap = SLEEP_FIRST;
  while (!done) {
    int64_t waited = now() - began;
    if (waited > YIELD) {
      nanosleep(&(struct timespec){.tv_nsec = nap}, NULL);
      nap = nap * 2 < SLEEP_MAX ? nap * 2 : SLEEP_MAX;
    } else if (waited > SPIN) {
      sched_yield();
    }
    if (PMPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      return MPI_ERR_OTHER;
  }
  return MPI_SUCCESS;
}

int broadcast(MPI_Comm comm, void *bytes, size_t length, int root)
{
  MPI_Request request = MPI_REQUEST_NULL;
  return finish(PMPI_Ibcast(bytes, (int)length, MPI_BYTE, root, comm, &request), &request);
}

int maxima(struct file *file, const int64_t *own, int64_t *all, int count)
{
  MPI_Request request = MPI_REQUEST_NULL;
  for (int i = 0; i < count; i++)
    all[i] = own[i];
  if (file->ranks == 1)
    return MPI_SUCCESS;
  return finish(PMPI_Iallreduce(own, all, count, MPI_INT64_T, MPI_MAX, file->comm, &request), &request);
}

int collect(struct file *file, const void *own, size_t length, void *all)
{
  MPI_Request request = MPI_REQUEST_NULL;
  return finish(PMPI_Igather(own, (int)length, MPI_BYTE, all, (int)length, MPI_BYTE, 0, file->comm, &request),
                &request);
}

int collect_everywhere(struct file *file, const void *own, size_t length, void *all)
{
  MPI_Request request = MPI_REQUEST_NULL;
  return finish(PMPI_Iallgather(own, (int)length, MPI_BYTE, all, (int)length, MPI_BYTE, file->comm, &request),
                &request);
}

int agree(struct file *file, int error)
{
  int64_t own = error, worst;
  return maxima(file, &own, &worst, 1) == MPI_SUCCESS ? (int)worst : MPI_ERR_OTHER;
}
