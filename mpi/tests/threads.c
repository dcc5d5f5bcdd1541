/*
 * MPI_THREAD_MULTIPLE: threads of each rank write through one shared handle, and through handles of
 * their own, with datatypes that come and go. Usage: threads PATH
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, ROUNDS = 100, BLOCK = 6 };

static int rank, ranks;
static MPI_File all;
static const char *path;

static int value_of(int writer, int thread, int round, int i)
{
  return ((writer * THREADS + thread) * ROUNDS + round) * BLOCK + i;
}

/* Every second int of a buffer, to the place of this thread and round. */
static void *work(void *argument)
{
  int thread = *(int *)argument, wrong = 0;
  char own_path[4096];
  MPI_File own;
  MPI_Status status;
  snprintf(own_path, sizeof own_path, "%s.%d.%d", path, rank, thread);
  wrong += MPI_File_open(MPI_COMM_SELF, own_path, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE,
                         MPI_INFO_NULL, &own) != MPI_SUCCESS;
  for (int round = 0; round < ROUNDS && wrong == 0; round++) {
    MPI_Datatype gaps;
    int values[2 * BLOCK], back[2 * BLOCK] = {0}, count = 0;
    MPI_Type_vector(BLOCK, 1, 2, MPI_INT, &gaps);
    MPI_Type_commit(&gaps);
    for (int i = 0; i < BLOCK; i++)
      values[2 * i] = value_of(rank, thread, round, i);
    MPI_Offset place = 4 * (MPI_Offset)value_of(rank, thread, round, 0);
    wrong += MPI_File_write_at(all, place, values, 1, gaps, &status) != MPI_SUCCESS;
    wrong += MPI_File_write(own, values, 1, gaps, &status) != MPI_SUCCESS;
    wrong += MPI_File_read_at(all, place, back, 1, gaps, &status) != MPI_SUCCESS;
    MPI_Get_count(&status, MPI_INT, &count);
    wrong += count != BLOCK;
    for (int i = 0; i < BLOCK; i++)
      if (back[2 * i] != values[2 * i]) {
        wrong++;
        fprintf(stderr, "rank %d, thread %d, round %d: %d, not %d, was read back (%d elements)\n", rank, thread,
                round, back[2 * i], values[2 * i], count);
      }
    MPI_Type_free(&gaps);
  }
  wrong += MPI_File_close(&own) != MPI_SUCCESS;
  *(int *)argument = wrong;
  return NULL;
}

int main(int argc, char **argv)
{
  int level, wrong = 0, sum = 0, arguments[THREADS];
  pthread_t threads[THREADS];
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < 2 || level < MPI_THREAD_MULTIPLE)
    MPI_Abort(MPI_COMM_WORLD, 2);
  path = argv[1];
  wrong += MPI_File_open(MPI_COMM_WORLD, (char *)path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &all) !=
           MPI_SUCCESS;
  for (int i = 0; i < THREADS; i++) {
    arguments[i] = i;
    pthread_create(&threads[i], NULL, work, &arguments[i]);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    wrong += arguments[i];
  }
  MPI_File_sync(all);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_File_sync(all);
  int total = value_of(ranks, 0, 0, 0), *everything = calloc((size_t)total, sizeof *everything);
  MPI_File_read_at_all(all, 0, everything, total, MPI_INT, MPI_STATUS_IGNORE);
  for (int i = 0; i < total; i++)
    if (everything[i] != i) {
      wrong++;
      fprintf(stderr, "rank %d reads %d at %d (rank %d, thread %d, round %d)\n", rank, everything[i], i,
              i / value_of(1, 0, 0, 0), i / value_of(0, 1, 0, 0) % THREADS, i / BLOCK % ROUNDS);
    }
  free(everything);
  wrong += MPI_File_close(&all) != MPI_SUCCESS;
  MPI_Allreduce(&wrong, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    printf("%d wrong\n", sum);
  MPI_Finalize();
  return sum != 0;
}
