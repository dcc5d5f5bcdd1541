/*
 * Lets programs end that wait for ever in MPI_Finalize: those of MPICH 4.0 or
 * 4.1 with UCX (Debian 12), on several hosts over TCP. MPICH 4.2 needs it not.
 *
 *   cc -O2 -shared -fPIC mpich_finalize.c -o mpich_finalize.so
 *   LD_PRELOAD=$PWD/mpich_finalize.so mpirun.mpich -hosts n1,n2 -n 2 ./program
 *
 * In MPI_Finalize, a rank asks UCX to flush its connections. Over TCP, UCX then
 * waits until the other side has answered. Afterwards the rank waits for the
 * process manager until all ranks are there. Meanwhile it does not run UCX. So
 * a slower rank gets no answer to its own flush, and all wait for each other.
 * With this library, a rank runs UCX while it waits for the process manager.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

/* Milliseconds between two runs of UCX while the process manager is silent. */
enum { PAUSE = 1 };

/* What MPICH needs to send and receive; NULL before and afterwards. */
static void *worker;

int ucp_worker_create(void *context, const void *parameters, void **made)
{
	int (*create)(void *, const void *, void **) =
		dlsym(RTLD_NEXT, "ucp_worker_create");
	int status = create(context, parameters, made);
	if (status == 0)
		worker = *made;
	return status;
}

void ucp_worker_destroy(void *gone)
{
	void (*destroy)(void *) = dlsym(RTLD_NEXT, "ucp_worker_destroy");
	if (worker == gone)
		worker = NULL;
	destroy(gone);
}

/* Waits until the process manager has written to this descriptor. */
static void await_manager(int fd)
{
	unsigned (*progress)(void *) = dlsym(RTLD_NEXT, "ucp_worker_progress");
	struct pollfd manager = { .fd = fd, .events = POLLIN };
	while (poll(&manager, 1, PAUSE) == 0)
		progress(worker);
}

ssize_t read(int fd, void *bytes, size_t size)
{
	static ssize_t (*next)(int, void *, size_t);
	if (next == NULL)
		next = dlsym(RTLD_NEXT, "read");
	if (worker != NULL) {
		/* The process manager gives each rank the number of its descriptor. */
		const char *manager = getenv("PMI_FD");
		if (manager != NULL && atoi(manager) == fd)
			await_manager(fd);
	}
	return next(fd, bytes, size);
}
