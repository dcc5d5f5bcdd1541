/*
 * tatami_io.h - files of N ranks, written as N local streams, mapped by views.
 *
 * An MPI-IO front end (or any other parallel program) calls these functions, which know nothing of
 * MPI. The library is libtatami_io.so. It installs no signal handler, writes nothing to stdout or
 * stderr, and takes no fcntl lock. It starts one thread only where the ranks of an open container
 * are on several machines: that thread sends their heartbeat.
 *
 * Conventions
 *   - Every function may be called from any thread. Calls on one handle from several threads at
 *     once are safe. Each call is carried out as a whole.
 *   - Results: 0 or a count (>= 0) on success, a negative errno (-ENOENT, -ENOSPC, ...) on failure.
 *     Functions that return a pointer return NULL on failure. tio_error() then returns a message.
 *   - "Collective" means that all ranks of an open call the function in the same order. The front
 *     end carries bytes between them. The library itself waits for other ranks in two cases only:
 *     for locks (tio_lock, and briefly where the file's index is replaced), and at a rank's first
 *     write. That write waits at most 3 s for the rank of its node that sends the request for both
 *     ranks.
 *   - All sizes and offsets are bytes. A *stream position* counts bytes of data visible through the
 *     rank's view: byte 0 is the first visible byte. A front end converts etypes with the etype
 *     size that it gave to tio_view.
 *   - No panic and no C++ or Rust exception crosses this boundary; an internal defect is -EIO.
 */
#ifndef TATAMI_IO_H
#define TATAMI_IO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface, raised when a function changes its meaning. tio_version()
 * returns the version of the loaded library. */
#define TIO_VERSION 1
uint32_t tio_version(void);

typedef struct tio_file tio_file;   /* one rank's handle of one open */
typedef struct tio_shape tio_shape; /* a datatype without basic types; counted, immutable */

/* ---- Flags of an open ------------------------------------------------------------------------ */

#define TIO_RDONLY 0x001          /* exactly one of the first three */
#define TIO_RDWR 0x002
#define TIO_WRONLY 0x004
#define TIO_CREATE 0x008          /* make the file where there is none */
#define TIO_EXCL 0x010            /* with TIO_CREATE: -EEXIST where there is one */
#define TIO_DELETE_ON_CLOSE 0x020 /* tio_publish(closing = 1) removes the file */
#define TIO_UNIQUE 0x040          /* the only open of the file: reads look for no others */
#define TIO_APPEND 0x080          /* no effect here: the front end starts at the end */
#define TIO_SEQUENTIAL 0x100      /* no effect here: a matter of the front end */

/* ---- Hints ----------------------------------------------------------------------------------- */
/*
 * A NULL-terminated array key, value, key, value, ..., NULL; or NULL. Unknown keys and values
 * without a meaning are ignored, as MPI requires. Keys:
 *   tatami_container   "true": make the file a container where it does not exist; "false": leave it
 *                      to other drivers, unless it is a container already
 *   tatami_tiled       "false": leave a file on a mount of a Tatami volume to other drivers; "true"
 *                      is the default
 *   tatami_plain       "true": claim an ordinary file, too (the engine `plain`: same calls, one
 *                      file, nothing tiled)
 *   host               the file lies on that machine of another site, which ssh reaches; with
 *   user, port         the user and the port for ssh, and
 *   path               the directory of the program `tatami` there
 *   tatami_write_behind  "true": writes to another site may wait for the next sync or close, also
 *                      where several processes have the file open
 *   tatami_backend     how another site keeps the file: "auto", "posix", "volume", "mpi",
 *                      "mpi:openmpi" or "mpi:mpich"
 *   ind_rd_buffer_size bytes read at a time where a request is scattered (data sieving); default
 *                      4 MiB
 *   romio_ds_read      "disable": never read a gap to save a call
 * Environment: TATAMI_CONTAINER = colon-separated directories. New files in them become containers;
 *                                 "1": all new files do;
 *              TATAMI_PLAIN     = the same for ordinary files that the engine `plain` claims;
 *              TATAMI_SITES     = /DIR=tatami://[user@]host[:port]/DIR, separated by commas: paths
 *                                 here that stand for paths of other sites
 *              TATAMI_BACKEND   = the hint tatami_backend of files without it
 *              TATAMI_TILED     = "0": as tatami_tiled "false" for all files without a hint.
 * A path tatami://[user@]host[:port]/PATH names a file of another site, too.
 * The library claims a path that starts with "tatami:" in any case, and opens it without that
 * prefix. Other prefixes of the kind "ufs:", "nfs:" ask for another driver: not claimed.
 */

/* Returns 1, 2 or 3: open this path here (2 where a file of a volume is named by a link, 3 for a file
 * of another site); 0: leave it to the MPI library; < 0: an error that the open should report. Cheap for paths that are not
 * claimed (a statx of the path, or of its directory, and a poll of the mount table).
 * A file on a mount of a Tatami volume is claimed where this process may read the volume's key.
 * Paths may be relative, and may lead through symbolic links. One rank must call it and send the
 * result to the others: another rank may see the file a moment later. */
int tio_claims(const char *path, int flags, const char *const *hints);

/* ---- Shapes ---------------------------------------------------------------------------------- */
/*
 * Each function returns a new reference, which the caller gives back with tio_shape_release. The
 * new shape does not depend on its children's references. NULL: a negative size, an overflow of
 * 64 bits, or no memory. Displacements and strides are bytes. `count` elements of a child follow
 * each other at its extent.
 */
tio_shape *tio_bytes(uint64_t len);                              /* one run of len bytes, or 0 */
tio_shape *tio_contiguous(uint64_t count, const tio_shape *child);
tio_shape *tio_hvector(uint64_t count, uint64_t blocklen, int64_t stride, const tio_shape *child);
tio_shape *tio_hindexed(size_t n, const uint64_t *blocklens, const int64_t *displacements, const tio_shape *child);
tio_shape *tio_struct(size_t n, const uint64_t *blocklens, const int64_t *displacements,
                      const tio_shape *const *children);
tio_shape *tio_resized(int64_t lb, int64_t extent, const tio_shape *child);
tio_shape *tio_shape_retain(const tio_shape *shape);             /* one more reference */
void tio_shape_release(tio_shape *shape);                        /* NULL is allowed */
uint64_t tio_shape_size(const tio_shape *shape);                 /* bytes of data in it */
int64_t tio_shape_lb(const tio_shape *shape);
int64_t tio_shape_extent(const tio_shape *shape);
int64_t tio_shape_true_lb(const tio_shape *shape);
int64_t tio_shape_true_extent(const tio_shape *shape);
int tio_shape_is_contiguous(const tio_shape *shape);             /* 1: repetitions are one run */
/* Copy `count` elements between memory laid out by `mem` and a dense buffer of count * size bytes.
 * A front end needs this to convert representations (external32). Return the bytes copied. */
int64_t tio_pack(const void *from, uint64_t count, const tio_shape *mem, void *dense, size_t dense_len);
int64_t tio_unpack(const void *dense, size_t dense_len, void *to, uint64_t count, const tio_shape *mem);

/* ---- Opening --------------------------------------------------------------------------------- */
/*
 * Collective:
 *   1. rank 0 calls tio_claims and sends the result to the others;
 *   2. every rank calls tio_node. Rank 0 gathers the node numbers; every rank gets the inbox
 *      numbers of all;
 *   3. rank 0 calls tio_begin: it creates the file, checks the flags, recovers the bytes of dead
 *      jobs, and returns a token. After a failure nothing has to be undone: send the error to the
 *      others;
 *   4. rank 0 broadcasts the token; every rank (0, too) calls tio_open with it;
 *   5. if tio_open failed on any rank, the ranks where it succeeded call tio_close. No rank writes
 *      before it knows that all have opened.
 * The handle starts with the byte view (displacement 0, etype and filetype one byte) in a first
 * view epoch.
 */
#define TIO_TOKEN_MAX 4096
/* Returns the number of the node to which the mount of the path belongs. `claim` is the result
 * of tio_claims on rank 0. `inbox`, where it is not NULL, receives the number of this process's
 * inbox; 0 where the process has none. Another rank of the node passes descriptors of a volume's
 * file through the inbox (a UNIX socket that only processes of this user can use). */
int tio_node(const char *path, int claim, uint32_t *node, uint64_t *inbox);
/* `nodes`: the results of tio_node by rank, or NULL when all ranks are processes of this
 * machine. `token_len`: in, the room (TIO_TOKEN_MAX is always enough); out, the length. `mode`:
 * permissions of a new file, before umask. */
int tio_begin(const char *path, int flags, unsigned mode, const char *const *hints, uint32_t ranks,
              const uint32_t *nodes, void *token, size_t *token_len);
/* `inboxes`: the inbox numbers from tio_node by rank, or NULL: then each rank that writes sends
 * its own request to its node. */
int tio_open(const char *path, int flags, const char *const *hints, uint32_t rank, const void *token,
             size_t token_len, const uint64_t *inboxes, tio_file **out);

/* ---- View epochs and views ------------------------------------------------------------------- */
/*
 * Of two writes to one byte, that of the later view epoch wins; within one epoch that of the lower
 * rank. (Under the byte view the later write wins, as in POSIX.) An epoch begins with the open, and
 * with each of sync, set_view, set_size, preallocate and set_atomicity. Rank 0 calls tio_stamp and
 * broadcasts the stamp. Every rank calls tio_epoch after it has seen that all others are done with
 * the operations before (a broadcast after a gather, or a barrier, shows that).
 */
uint64_t tio_stamp(tio_file *file); /* 0 only where file is NULL */
int tio_epoch(tio_file *file, uint64_t stamp);
/* Checks a view. Returns 0, or -EINVAL: bytes before the file, decreasing displacements, sizes that
 * do not fit each other, etype size 0. Overlapping copies of the filetype are no error: of bytes
 * that one call writes twice, the later one in the stream counts. Needs no handle, so that all
 * ranks can agree on errors before any of them changes its view. */
int tio_view_check(uint64_t disp, uint64_t etype_size, const tio_shape *filetype);
/* Sets this rank's view. The byte view is any with a contiguous filetype and displacement 0. */
int tio_view(tio_file *file, uint64_t disp, uint64_t etype_size, const tio_shape *filetype);

/* ---- Bytes ----------------------------------------------------------------------------------- */
/*
 * `mem` is the shape of one of the `count` elements in the caller's buffer (NULL: one byte).
 * Element i starts i extents behind `buf`. Bytes are transferred in type-map order.
 * tio_write returns count * size, or an error; after an error a prefix may have been written.
 * tio_read returns fewer bytes than asked for only at the end of the file; the rest of the buffer
 * is untouched.
 */
int64_t tio_write(tio_file *file, uint64_t stream, const void *buf, uint64_t count, const tio_shape *mem);
int64_t tio_read(tio_file *file, uint64_t stream, void *buf, uint64_t count, const tio_shape *mem);

/* File offset of a stream position (MPI_File_get_byte_offset). */
int tio_offset_of(tio_file *file, uint64_t stream, uint64_t *file_offset);
/* Stream position of the first etype that starts at or past the end of the file (for MPI_SEEK_END
 * and MPI_MODE_APPEND); a multiple of the view's etype size. */
int tio_stream_at_end(tio_file *file, uint64_t *stream);

/* Size of the file as of now, writes of other ranks included. */
int tio_size(tio_file *file, uint64_t *size);
/* MPI_File_set_size, MPI_File_preallocate: all ranks seal and rank 0 publishes (as for sync,
 * durable = 0); rank 0 calls one of these; then a new epoch begins on all ranks. preallocate never
 * shrinks. */
int tio_set_size(tio_file *file, uint64_t size);
int tio_preallocate(tio_file *file, uint64_t size);

/* ---- Sync and close -------------------------------------------------------------------------- */
/*
 * Collective, for sync and for close alike (also where the file is open for reading only):
 *   1. every rank: tio_seal. durable != 0 brings the rank's bytes to the disk. The returned bytes
 *      stay valid until the next call on this handle by any thread; length 0 is usual;
 *   2. rank 0 gathers the bytes of all ranks (in rank order) and calls tio_publish: from then on
 *      the file is whole without the journals of this open. A rank on which tio_seal failed
 *      takes part with length 0;
 *   3. rank 0 broadcasts the result; every rank: tio_sealed(result); then a new epoch (sync), or
 *      tio_close.
 * tio_close without that sequence loses nothing either: the next tio_begin of the file recovers the
 * bytes from the journals. A rank's handle that others still use must not be closed before step 3.
 */
int tio_seal(tio_file *file, int durable, const void **bytes, size_t *len);
int tio_publish(tio_file *file, uint32_t n, const void *const *bytes, const size_t *lens, int durable, int closing);
int tio_sealed(tio_file *file, int published);
int tio_close(tio_file *file); /* frees the handle in any case */

/* ---- Atomic mode, shared pointers ------------------------------------------------------------ */
/*
 * Atomic mode: every rank calls tio_set_atomic after all have sealed, rank 0 has published, and a
 * new epoch has begun. Then each access is tio_lock, tio_write or tio_read, tio_unlock: one
 * whole-file lock (flock) held by one handle and thread at a time, across processes and machines.
 * tio_lock is not recursive.
 */
int tio_set_atomic(tio_file *file, int on);
int tio_lock(tio_file *file);
int tio_unlock(tio_file *file);
/* One shared pointer per open, starts at 0, in any unit (etypes): add returns its value before. */
int tio_shared_add(tio_file *file, int64_t delta, int64_t *before);
int tio_shared_set(tio_file *file, int64_t value);

/* ---- The rest -------------------------------------------------------------------------------- */
/* Writes "key=value\n" of the hints in force, NUL-terminated, cut to len. Returns the full length
 * without the NUL. */
int tio_hints(tio_file *file, char *buf, size_t len);
/* Removes the file at a path (container or ordinary file). -ENOENT; -EISDIR for a directory that is
 * no container. */
int tio_delete(const char *path);
/* Size, mode and times as of one ordinary file, as a program with stat(2) expects them. */
typedef struct tio_stat {
  uint64_t size;
  uint32_t mode;
  uint32_t container; /* 1: a container, 0: an ordinary file */
  int64_t mtime_sec;
  int64_t mtime_nsec;
} tio_stat;
int tio_stat_path(const char *path, tio_stat *out);
/* Returns a descriptor of a file in memory with the first bytes (at most 64 KiB) of a file of another
 * site, which the caller closes. For libraries that look at a file before they open it. -EREMOTE for
 * a file of this site; -ENOENT, -EACCES and others of opening the file. */
int tio_look(const char *path, const char *const *hints);

/* ---- Many small files ------------------------------------------------------------------------ */
/*
 * Files of one directory, written or read as a whole. In a directory of a Tatami volume with the
 * policy "inline", up to 1,024 small files share a request. The library opens all other files one
 * by one. Both calls return the number of files that failed; a negative errno (and tio_error) says
 * that the directory or an argument was wrong.
 */
typedef struct tio_content {
  const char *name; /* in the directory, without '/' */
  void *bytes;      /* the bytes to write, which stay as they are; or room for those to read */
  uint64_t length;  /* of the bytes, or of the room */
  int64_t result;   /* the length of the file, or a negative errno */
} tio_content;
/* Writes files. An existing one gets these bytes instead of its own. `mode` is as for open(2). */
int64_t tio_write_files(const char *dir, tio_content *files, size_t count, uint32_t mode);
/* Reads files. Of a file that is longer than its room, only the first bytes are stored. */
int64_t tio_read_files(const char *dir, tio_content *files, size_t count);

/* The calling thread's last error: the operation, the path, and the system's message. Never NULL;
 * valid until the thread's next call. */
const char *tio_error(void);
/* Sets the function that hears of waits for a node that does not answer, once for each outage of a
 * node, when a call has waited for 2 s: "waiting for node1 (down for 2 s; gives up in 58 s)". The
 * waiting thread calls it; `why` is valid during that call. It must not call this library. NULL,
 * the default, reports nothing. */
void tio_report_waits(void (*report)(const char *why));

#ifdef __cplusplus
}
#endif
#endif
